"""Percentiles of a few values by the nearest rank."""

from collections.abc import Sequence


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
