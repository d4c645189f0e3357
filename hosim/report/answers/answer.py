"""The answer to a study, made once and shown by the shell, a notebook and a page: a sentence, a few
rows, and what to ask next.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table

from hosim.plain_text import counted
from hosim.report.printing import open_table, paragraph

MOST_LINES, _BAR, _WIDTH = 12, 32, 79
"""Lines at most, the characters of the longest bar, and those that a line may have."""


def text_curve(
    points: Sequence[tuple[str, float | None, str]], most: int = MOST_LINES
) -> list[str]:
    """Lines for points that each have a name, a value (``None``: there is none) and its text. Of
    more than ``most`` points the first, the last and evenly spaced ones between are drawn.

    >>> for line in text_curve([("8 GiB", 40.0, "40 ms"), ("12 GiB", 20.0, "20 ms")]):
    ...     print(line)
    8 GiB   ################################  40 ms
    12 GiB  ################  20 ms
    >>> text_curve([("4 GiB", None, "does not fit")])
    ['4 GiB  does not fit']
    """
    if len(points) > most:
        points = [points[k * (len(points) - 1) // (most - 1)] for k in range(most)]
    room = max((len(name) for name, _, _ in points), default=0)
    longest = max((value for _, value, _ in points if value is not None), default=0.0)
    said = max((len(text) for _, _, text in points), default=0)
    widest = max(4, min(_BAR, _WIDTH - room - said - 4))
    lines = []
    for name, value, text in points:
        bar = "#" * max(1, round(widest * value / longest)) if value and longest else ""
        lines.append("  ".join([name.ljust(room), *([bar] if bar else []), text]))
    return lines


ROWS = 5
"""Rows that an answer shows, unless all are asked for."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a study, as text.

    ``title`` is the question, ``verdict`` answers it in a sentence or two, and ``good`` is whether
    something fits. ``rows`` have a cell for each of ``columns``, the best row first where they are
    ``ranked``; ``left`` of the columns are text, and ``shown`` rows are those of the short form. In
    a list of names the second column ``wraps``.
    ``rest`` says what a reader of all rows would see of those left out.
    ``notes`` are what a reader of the figures has to know, which the shell says on stderr.
    ``figures`` are the few that matter most, each with its label; ``curve`` are the lines of a
    drawing in text. ``chosen`` is what was chosen for a question that left it out. ``next_commands`` are commands with what they tell.
    """

    title: str
    verdict: str
    good: bool = True
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    left: int = 1
    shown: int = ROWS
    wraps: bool = False
    ranked: bool = True
    rest: str = ""
    figures: tuple[tuple[str, str], ...] = ()
    curve: tuple[str, ...] = ()
    chosen: str = ""
    next_commands: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


def answered(
    answer: Answer, *, title: bool = True, every: bool = False, shows: str = "--all"
) -> RenderableType:
    """The answer for a terminal: with all rows where ``every`` one is asked for, and without its
    ``title`` where that is shown already. The option ``shows`` has the rows that are left out.
    """
    return Group(*_parts(answer, title, every, shows))


def _parts(answer: Answer, title: bool, every: bool, shows: str) -> Iterator[RenderableType]:
    if title:
        yield paragraph(answer.title)
    yield paragraph(answer.verdict, style="bold" if answer.good else "bold red")
    if answer.curve:
        yield paragraph("", *answer.curve, wrapped=False)
    if answer.rows:
        yield rows_table(answer, None if every else answer.shown)
    more = len(answer.rows) - answer.shown
    said = [f"{counted(more, 'more row')} ({shows})"] if more > 0 and not every else []
    if rest := "; ".join([*said, *([answer.rest] if answer.rest else [])]):
        yield paragraph(f"... {rest}", style="dim")
    if answer.chosen:
        yield paragraph(answer.chosen, style="dim")
    # a command stays one line, which can be copied
    yield paragraph(
        *(f"next: {line}  ({why})" for line, why in answer.next_commands), wrapped=False
    )


def rows_table(answer: Answer, most: int | None = None) -> Table:
    """The rows of an answer, or the first ones, the best of which is green."""
    table = open_table(
        "", *answer.columns, left=answer.left, wraps=answer.columns[1:2] if answer.wraps else ()
    )
    table.title = None
    for k, row in enumerate(answer.rows[:most]):
        table.add_row(*row, style="green" if not k and answer.good and answer.ranked else None)
    return table
