"""Tables and paragraphs for a terminal. Text is data: no markup, no control characters, no line breaks but those between lines."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Column, Table
from rich.text import Text

from hosim.plain_text import printable

__all__ = ["OpenTable", "begins_bold", "lines_of", "open_table", "paragraph"]


class OpenTable(Table):
    """A table that prints strings as they are: what cannot be printed is an escape, and nothing in them is markup."""

    def add_row(self, *cells: Any, style: Any = None, end_section: bool = False) -> None:
        """A row; a string is one line of data, a :class:`rich.text.Text` is printed as it is."""
        super().add_row(*(lines_of(c) if isinstance(c, str) else c for c in cells), style=style, end_section=end_section)

    def add_column(self, header: Any = "", footer: Any = "", **settings: Any) -> None:
        """A column; its header may have several lines, and a word that is too long for a cell folds."""
        settings.setdefault("overflow", "fold")
        super().add_column(lines_of(*header.split("\n")) if isinstance(header, str) else header, footer, **settings)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table; where it is too wide for the terminal, its cells fold, and no figure loses a digit."""
        fits = sum(2 + _widest(column, column.no_wrap) for column in self.columns) <= options.max_width
        shown = self if fits else self._folding(options.max_width)
        yield from Table.__rich_console__(shown, console, options)

    def _folding(self, width: int) -> Table:
        """The same table with cells that fold; the names in its first column stay whole, unless they are long."""
        folding = copy(self)
        folding.columns = [replace(column, no_wrap=False, overflow="fold") for column in self.columns]
        first = folding.columns[0]
        if (name := _widest(first, whole=True)) <= width // 3:
            first.no_wrap, first.min_width = True, name
        return folding


def _widest(column: Column, whole: bool) -> int:
    """The widest line of a column, or its widest word."""
    parts = [str(part) for part in (column.header, *column.cells)]
    return max((cell_len(piece) for part in parts for piece in (part.split("\n") if whole else part.split())), default=0)


def open_table(title: str, *columns: str, left: int = 1) -> OpenTable:
    """An open table whose first ``left`` columns are text and whose others are figures."""
    table = OpenTable(title=lines_of(title, style="bold"), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i < left else "right", no_wrap=True)
    return table


def lines_of(*lines: str, style: str = "") -> Text:
    """Lines of data, one below the other."""
    return Text("\n".join(map(printable, lines)), style=style)


def begins_bold(bold: str, rest: str) -> Text:
    """One line of data whose beginning is bold."""
    return Text.assemble((printable(bold), "bold"), printable(rest))


def paragraph(*lines: str, style: str = "", space: bool = False, wrapped: bool = True) -> Text:
    """Lines of data below each other, with an empty line after them if there is to be ``space``; nothing for no lines."""
    if not lines:
        return Text("", end="")
    whole = lines_of(*lines, *([""] if space else []), style=style)
    if not wrapped:
        whole.overflow = "ignore"
    return whole
