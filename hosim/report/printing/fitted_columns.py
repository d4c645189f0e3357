"""The columns of a table that fit a terminal of some width, and the line breaks of text that is too
long for its cell.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.cells import cell_len, chop_cells

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
