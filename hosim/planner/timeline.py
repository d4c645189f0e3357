"""What a channel is already busy with: reserved intervals of time, earliest and latest fits between them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

_FAR = 256
"""Holes a search walks past before it gives up: beyond that the channel is as good as full."""


class ChannelTimeline:
    """Disjoint busy intervals ``[start, end)`` of one channel, in nanoseconds; neighbours that touch are merged.

    Holes shorter than ``smallest`` count as busy: nothing would fit, and walking past them takes time.
    """

    def __init__(self, smallest: int = 1) -> None:
        self._smallest = smallest
        self._starts: list[int] = []
        self._ends: list[int] = []

    def reserve(self, start: int, length: int) -> None:
        """Mark ``[start, start + length)`` busy; it must be free."""
        if length <= 0:
            return
        end = start + length
        k = bisect_left(self._starts, start)
        joins_left = k > 0 and start - self._ends[k - 1] < self._smallest
        joins_right = k < len(self._starts) and self._starts[k] - end < self._smallest
        if joins_left and joins_right:
            self._ends[k - 1] = self._ends[k]
            del self._starts[k], self._ends[k]
        elif joins_left:
            self._ends[k - 1] = end
        elif joins_right:
            self._starts[k] = start
        else:
            self._starts.insert(k, start)
            self._ends.insert(k, end)

    def earliest(self, release: int, length: int) -> int:
        """Earliest start at or after ``release`` of a free interval of ``length``."""
        k = bisect_right(self._ends, release)
        start = release
        while k < len(self._starts) and self._starts[k] - start < length:
            start = max(start, self._ends[k])
            k += 1
        return start

    def latest(self, deadline: int, length: int, release: int) -> int | None:
        """Latest start, from ``release`` on, of a free interval of ``length`` that ends by ``deadline``; None if there is none."""
        end = deadline
        k = bisect_left(self._starts, end) - 1
        for _ in range(_FAR):
            if end - length < release:
                return None
            if k < 0 or self._ends[k] <= end - length:
                return end - length
            end = min(end, self._starts[k])
            k -= 1
        return None
