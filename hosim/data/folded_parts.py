"""Rows of tensors for people: parts of one whole that have the same figures become one row,
``experts[0..255] (248 parts)``.

Figures for machines name each part. (:mod:`hosim.gate.records.folding` folds names without loss,
for files that are read again.)
"""

from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

from hosim.data.graph_parts import Tensor


class FoldedRow(NamedTuple):
    """A row: the name of a tensor or of parts of one, what the table says of each, and the places
    of the rows that it stands for.
    """

    name: str
    says: tuple[Hashable, ...]
    places: tuple[int, ...]


def folded(rows: Iterable[tuple[Tensor, tuple[Hashable, ...]]]) -> list[FoldedRow]:
    """The rows, each at the place of the first that it stands for; those about tensors that are
    whole are as they were.
    """
    tensors: list[Tensor] = []
    alike: dict[tuple[str | int, tuple[Hashable, ...]], list[int]] = {}
    for place, (tensor, says) in enumerate(rows):
        tensors.append(tensor)
        alike.setdefault((tensor.of or place, says), []).append(place)
    return [
        FoldedRow(_named([tensors[k] for k in places]), says, tuple(places))
        for (_, says), places in alike.items()
    ]


def tensors_of(rows: Iterable[FoldedRow]) -> int:
    """Return the number of rows that these stand for.

    >>> tensors_of(
    ...     folded(
    ...         [
    ...             (Tensor("w[0]", 1, of="w"), ()),
    ...             (Tensor("w[1]", 1, of="w"), ()),
    ...             (Tensor("b", 1), ()),
    ...         ]
    ...     )
    ... )
    3
    """
    return sum([len(row.places) for row in rows])


def of_each(rows: Sequence[FoldedRow]) -> str:
    """Return the sentence of a title for rows that stand for several parts; empty if none does."""
    return (
        " The figures of several parts are those of each."
        if any([len(row.places) > 1 for row in rows])
        else ""
    )


_NAMED = 3
"""Names of a row, beside which three dots stand for others."""


def _named(tensors: Sequence[Tensor]) -> str:
    """One name for some parts of a tensor: the first and the last of numbers, and the first other
    names.

    >>> _named([Tensor(f"w[{k}]", 1, of="w") for k in (2, 0, 11)]), _named([Tensor("b", 1)])
    ('w[0..11] (3 parts)', 'b')
    >>> _named([Tensor("k[past]", 9, of="k"), Tensor("k[new]", 1, of="k")])
    'k[past, new] (2 parts)'
    >>> _named([Tensor(f"w[{part}]", 1, of="w") for part in ("rest", 1, 7, "a", "b", "c")])
    'w[rest, 1..7, a, ...] (6 parts)'
    """
    names = list(dict.fromkeys([tensor.name for tensor in tensors]))
    if len(names) == 1:
        return names[0]
    whole = tensors[0].whole
    parts = [name.removeprefix(f"{whole}[").removesuffix("]") for name in names]
    numbers = sorted([int(part) for part in parts if _is_number(part)])
    span = f"{numbers[0]}..{numbers[-1]}" if len(numbers) > 1 else ""
    shown = list(dict.fromkeys([span if span and _is_number(part) else part for part in parts]))
    return (
        f"{whole}[{', '.join([*shown[:_NAMED], *['...'] * (len(shown) > _NAMED)])}] "
        f"({len(names):,} parts)"
    )


def _is_number(part: str) -> bool:
    return part.isascii() and part.isdecimal()
