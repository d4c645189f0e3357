"""Tables and paragraphs for a terminal. Text is data: no markup, no control characters, no line
breaks but those between lines.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from rich import box
from rich.cells import cell_len, chop_cells
from rich.console import Console, ConsoleOptions, RenderResult
from rich.containers import Lines
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from hosim.plain_text import printable

READABLE = 28
"""Characters a line of prose needs in a column."""
LONG_NAME = 40
"""Characters up to which names are not broken if leaving out other columns prevents it."""
_GAP = 2
"""Characters of space that each column takes."""
_AFTER_PART = re.compile(r"(?<=[./_=:,-])(?![./_=:,\d-])|(?<=\D[./_=:,-])(?=\d)")
"""The places at which a word may break: after a sign between its parts, not within a number."""


@dataclass(frozen=True, slots=True)
class ColumnNeed:
    """The needs of a column: its width in characters, and the group that it should not be parted
    from.

    ``empty`` says that no row has anything in it, ``rank`` that it may be left out: the lowest
    first, ``None`` never.
    """

    width: int
    group: str
    empty: bool = False
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class FittedColumns:
    """Places of columns: the blocks that a table is printed in, one below the other, and what is
    left out.
    """

    blocks: tuple[tuple[int, ...], ...]
    left_out: tuple[int, ...] = ()


def fitted(columns: Sequence[ColumnNeed], width: int, keys: int) -> FittedColumns:
    """The columns that fit: empty ones go first, then those that may be left out, and no more of
    either than needed.

    What is still too wide is printed in several blocks, each of which begins with the first
    ``keys`` columns, or with the first alone where these would take more than half of the width.
    """
    keys = max(keys, 1)
    shown = list(range(len(columns)))
    candidates = [i for i in reversed(shown[keys:]) if columns[i].empty]
    spare = [
        (rank, i)
        for i in shown[1:]
        if i not in candidates and (rank := columns[i].rank) is not None
    ]
    candidates += [i for _, i in sorted(spare)]
    left_out: list[int] = []
    while candidates and total(columns, shown) > width:
        left_out.append(candidates.pop(0))
        shown.remove(left_out[-1])
    if total(columns, shown) <= width:
        return FittedColumns((tuple(shown),), tuple(sorted(left_out)))
    first = [i for i in shown if i < keys]
    if total(columns, first) > width // 2:
        first = shown[:1]
    blocks, block = [], list(first)
    rest = [i for i in shown if i not in first]
    for _, grouped in groupby(rest, key=lambda i: columns[i].group):
        group = list(grouped)
        parts = [group] if total(columns, [*first, *group]) <= width else [[i] for i in group]
        for part in parts:
            if len(block) > len(first) and total(columns, [*block, *part]) > width:
                blocks.append(tuple(block))
                block = list(first)
            block += part
    return FittedColumns((*blocks, tuple(block)), tuple(sorted(left_out)))


def total(columns: Sequence[ColumnNeed], shown: Sequence[int]) -> int:
    """The width of a table of these columns."""
    return sum(columns[i].width + _GAP for i in shown)


def broken(text: str, width: int) -> str:
    r"""The text in lines of at most ``width`` characters: they end after words, and within a longer
    word after its parts.

    >>> broken("moved model.layers.11.mlp.weight now", 16).split("\n")
    ['moved', 'model.layers.11.', 'mlp.weight now']
    """
    return "\n".join(line for given in text.split("\n") for line in _lines(given, max(width, 1)))


def _lines(text: str, width: int) -> list[str]:
    lines, line = [], ""
    for word in text.split(" "):
        if line and cell_len(line) + 1 + cell_len(word) <= width:
            line = f"{line} {word}"
            continue
        if line:
            lines.append(line)
        *full, line = _pieces(word, width)
        lines += full
    return [*lines, line]


def _pieces(word: str, width: int) -> list[str]:
    """A word in pieces of at most ``width`` characters, cut after its parts, and within a part
    where that is longer.
    """
    if cell_len(word) <= width:
        return [word]
    pieces = [""]
    for part in _AFTER_PART.split(word):
        if pieces[-1] and cell_len(pieces[-1]) + cell_len(part) > width:
            pieces.append("")
        *full, rest = chop_cells(pieces[-1] + part, width)
        pieces[-1:] = [*full, rest]
    return pieces


class OpenTable(Table):
    """A table that prints strings as they are: what cannot be printed is an escape, and nothing in
    them is markup.

    Where it is too wide for the terminal, headers break, then columns without anything in them and
    those in ``spare`` (the first one first) are left out and named below the table; what is still
    too wide goes into blocks below each other, each with the first ``keys`` columns.
    """

    keys = 1
    spare: Sequence[str] = ()

    def add_row(self, *cells: Any, style: Any = None, end_section: bool = False) -> None:
        """A row; a string is one line of data, a :class:`rich.text.Text` is printed as it is."""
        super().add_row(
            *(lines_of(c) if isinstance(c, str) else c for c in cells),
            style=style,
            end_section=end_section,
        )

    def add_column(self, header: Any = "", footer: Any = "", **settings: Any) -> None:
        """A column; its header may have several lines, and a word that is too long for a cell
        breaks.
        """
        settings.setdefault("overflow", "fold")
        super().add_column(
            lines_of(*header.split("\n")) if isinstance(header, str) else header, footer, **settings
        )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table; no figure loses a digit, however narrow the terminal is."""
        if not self.show_header:
            yield from Table.__rich_console__(self, console, options)
            return
        width, columns = options.max_width, self.columns
        needs = [self._need(i) for i in range(len(columns))]
        if (whole := total(needs, range(len(needs)))) > width:
            columns = [replace(column, header=_broken_header(column)) for column in columns]
            needs = [
                replace(need, width=_width(column, not i))
                for i, (column, need) in enumerate(zip(columns, needs, strict=True))
            ]
        found = fitted(needs, width, self.keys)
        for number, places in enumerate(found.blocks):
            fits = total(needs, places) <= width
            shown = [columns[i] if fits else replace(columns[i], no_wrap=False) for i in places]
            if not number and self.title:
                yield self.title
            yield from Table.__rich_console__(self._block(shown), console, options)
        if found.left_out:
            yield paragraph(self._left_out(found.left_out, needs, whole), style="dim", space=True)

    def _need(self, place: int) -> ColumnNeed:
        column = self.columns[place]
        name = str(column.header)
        return ColumnNeed(
            _width(column, not place),
            name.split("\n")[0],
            all(str(cell) in ("", "-") for cell in column.cells),
            self.spare.index(name) if name in self.spare else None,
        )

    def _left_out(self, places: Sequence[int], needs: Sequence[ColumnNeed], whole: int) -> str:
        """The columns that are not shown, in a line: those that are empty, and the others with the
        width that shows them.
        """
        empty, others = (
            [str(self.columns[i].header).replace("\n", " ") for i in places if needs[i].empty is e]
            for e in (True, False)
        )
        parts = [f"Empty: {', '.join(empty)}."] if empty else []
        return " ".join(
            [*parts, f"Not shown: {', '.join(others)}; {whole} columns show all."]
            if others
            else parts
        )

    def _block(self, columns: Sequence[Column]) -> Table:
        """A table of some columns, in which cells that may wrap break between words, and long words
        after their parts.
        """
        block = copy(self)
        block.title = None
        block.columns = [
            replace(
                column,
                _index=i,
                _cells=[cell if column.no_wrap else _Breaking(cell) for cell in column.cells],
            )
            for i, column in enumerate(columns)
        ]
        return block


class _Breaking:
    """A cell whose text breaks where :func:`broken` says so, in whatever width it gets."""

    def __init__(self, text: object) -> None:
        self._text = str(text)

    def __str__(self) -> str:
        return self._text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(broken(self._text, options.max_width))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, max(_widest(self._text), 1)).with_maximum(options.max_width)


def _width(column: Column, first: bool) -> int:
    """Return the width that a column needs: its widest line where nothing wraps, else enough to
    read, and in the first column whole names up to a limit.
    """
    name, *rows = (str(part) for part in (column.header, *column.cells))
    widest = _widest(name, *rows)
    if column.no_wrap:
        return widest
    words = _widest(*(word for row in rows for word in row.split())) if first else 0
    return min(widest, max(min(words, LONG_NAME), READABLE))


def _widest(*texts: str) -> int:
    """The width of the widest line."""
    return max((cell_len(line) for text in texts for line in text.split("\n")), default=0)


def _broken_header(column: Column) -> Text:
    """The header, with a line for each word if it is wider than the cells."""
    name = str(column.header)
    wide = _widest(name) > _widest(*map(str, column.cells))
    return Text(name.replace(" ", "\n") if wide else name)


def open_table(
    title: str,
    *columns: str,
    left: int = 1,
    spare: Sequence[str] = (),
    wraps: Collection[str] = (),
    prose: Collection[str] = (),
    rows: Iterable[Iterable[Any]] = (),
) -> OpenTable:
    """An open table of ``rows``, whose first ``left`` columns are text and whose others are
    figures; a narrow terminal does without ``spare``.

    Cells of the columns in ``wraps`` may have several lines; those in ``prose`` are text, too.
    """
    table = OpenTable(
        title=lines_of(title, style="bold"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    table.keys, table.spare = left, spare
    for i, column in enumerate(columns):
        table.add_column(
            column,
            justify="left" if i < left or column in prose else "right",
            no_wrap=column not in wraps and column not in prose,
        )
    for cells in rows:
        table.add_row(*cells)
    return table


def lines_of(*lines: str, style: str = "") -> Text:
    """Lines of data, one below the other."""
    return Text("\n".join(map(printable, lines)), style=style)


def begins_bold(bold: str, rest: str) -> Text:
    """One line of data whose beginning is bold."""
    return WholeFigures.assemble((printable(bold), "bold"), printable(rest))


class WholeFigures(Text):
    """Text that does not break between a figure and its unit."""

    def wrap(self, *args: Any, **settings: Any) -> Lines:
        """The lines of the text in a width."""
        joined = self.copy()
        joined.plain = _FIGURE.sub(_JOINT, self.plain)
        wrapped = joined.wrap(*args, **settings)
        for line in wrapped:
            line.plain = line.plain.replace(_JOINT, " ")
        return wrapped


_FIGURE = re.compile(r"(?<=\d) (?=[A-Za-z%])")
_JOINT = "\ue000"  # one column wide and no space; printable text has none


def paragraph(*lines: str, style: str = "", space: bool = False, wrapped: bool = True) -> Text:
    """Lines of data below each other, with an empty line after them if there is to be ``space``;
    nothing for no lines.
    """
    if not lines:
        return Text("", end="")
    whole = lines_of(*lines, *([""] if space else []), style=style)
    if not wrapped:
        whole.overflow = "ignore"
    return whole


def and_more(count: int, top: int | None) -> Text:
    """Return the line below a table of ``count`` rows of which ``top`` are shown; nothing if all
    are, as they are for ``None``.
    """
    return paragraph(
        *([] if top is None or count <= top else [f"and {count - top:,} more"]),
        style="dim",
        space=True,
    )
