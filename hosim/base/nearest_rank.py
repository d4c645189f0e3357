"""Percentiles of a few values by the nearest rank, and values in groups of equal keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

Row = Mapping[str, Any]
K = TypeVar("K")
V = TypeVar("V")


def nearest_rank(values: Sequence[float], share: int) -> float:
    """The least value that so many per cent of the values do not exceed.

    >>> [nearest_rank([4, 1, 3, 2], share) for share in (5, 50, 95)]
    [1, 2, 4]
    """
    return sorted(values)[rank(share, len(values)) - 1]


def rank(share: int, count: int) -> int:
    """Return the rank, counted from 1, of the least of so many ordered values that ``share`` per
    cent of them do not exceed.

    >>> [rank(share, 20) for share in (0, 5, 6, 50, 100)]
    [1, 1, 2, 10, 20]
    """
    return max(1, -(-share * count // 100))


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Values by their keys, in the order of the first of each.

    >>> grouped([("a", 1), ("b", 2), ("a", 3)])
    {'a': [1, 3], 'b': [2]}
    """
    found: dict[K, list[V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def by_point(rows: Sequence[Row], columns: Sequence[str]) -> dict[tuple[Any, ...], list[Row]]:
    """Rows by the values of some columns, in the order of the first of each."""
    return grouped((tuple(row[column] for column in columns), row) for row in rows)
