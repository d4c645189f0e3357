"""Values in groups of equal keys, and rows in groups of equal columns."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

Row = Mapping[str, Any]
K = TypeVar("K")
V = TypeVar("V")
N = TypeVar("N", int, float)


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Values by their keys, in the order of the first of each.

    >>> grouped([("a", 1), ("b", 2), ("a", 3)])
    {'a': [1, 3], 'b': [2]}
    """
    found: dict[K, list[V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def summed(pairs: Iterable[tuple[K, N]]) -> dict[K, N]:
    """The sums of values by their keys, in the order of the first of each.

    >>> summed([("a", 1), ("b", 2), ("a", 3)])
    {'a': 4, 'b': 2}
    """
    found: dict[K, N] = {}
    for key, value in pairs:
        found[key] = found.get(key, 0) + value
    return found


def by_point(rows: Sequence[Row], columns: Sequence[str]) -> dict[tuple[Any, ...], list[Row]]:
    """Rows by the values of some columns, in the order of the first of each."""
    return grouped((tuple(row[column] for column in columns), row) for row in rows)
