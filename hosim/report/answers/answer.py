"""The answer of a study, for the shell, a notebook and a page: a sentence, a few rows, and the next
commands.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table

from hosim.plain_text import counted
from hosim.report.printing import open_table, paragraph

MOST_LINES, _BAR, _WIDTH = 12, 32, 79
"""The most lines, the characters of the longest bar, and the most characters of a line."""


def text_curve(
    points: Sequence[tuple[str, float | None, str]], most: int = MOST_LINES
) -> list[str]:
    """Return a line for each point, which has a name, a value or ``None``, and the value's text.
    Of more than ``most`` points, the first, the last and evenly spaced ones between are drawn.

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
"""The number of rows that an answer shows by default."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a study, as text.

    ``title`` is the question, ``verdict`` answers it in a sentence or two, and ``good`` is true if
    something fits. ``rows`` have a cell for each of ``columns``; if they are ``ranked``, the best
    one is first. The first ``left`` columns are text, and the short form has ``shown`` rows. In a
    list of names the second column ``wraps``. ``rest`` describes the omitted rows. A reader of the
    figures needs the ``notes``, which the shell prints on stderr. ``figures`` has the few most
    important ones with their labels; ``curve`` has the lines of a drawing in text. ``chosen`` has
    the values that the question omitted and hosim chose. ``next_commands`` has commands with what
    they show.
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
    """Return the answer for a terminal, with ``every`` row on request, and without a ``title`` that
    was already shown. The option ``shows`` shows the omitted rows.
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
    # a command stays on one line, so that it can be copied
    yield paragraph(
        *(f"next: {line}  ({why})" for line, why in answer.next_commands), wrapped=False
    )


def rows_table(answer: Answer, most: int | None = None) -> Table:
    """Return the table of an answer's rows, or of the first ``most``; the best row is green."""
    table = open_table(
        "", *answer.columns, left=answer.left, wraps=answer.columns[1:2] if answer.wraps else ()
    )
    table.title = None
    for k, row in enumerate(answer.rows[:most]):
        table.add_row(*row, style="green" if not k and answer.good and answer.ranked else None)
    return table
