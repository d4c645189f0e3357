"""Bandwidth of one channel by op: how much of each op's time is still free for transfers, and
taking it.

A full slot is never looked at again (disjoint sets with path halving), so that a reservation costs
what it fills.
"""

from __future__ import annotations

from collections.abc import Sequence


class Slots:
    """Free nanoseconds of a channel during each op, by op position."""

    def __init__(self, durations: Sequence[int]) -> None:
        self._free = [int(d) for d in durations]
        self._count = len(self._free)
        self._next = list(range(self._count + 1))  # the first slot from here on that is not full
        self._previous = list(
            range(self._count + 1)
        )  # the same backwards, shifted by one: 0 stands before the first slot
        for i, free in enumerate(self._free):
            if not free:
                self._close(i)

    def end_after(self, start: int, ns: int) -> int:
        """The position behind the slot in which a transfer of ``ns`` ends that takes all free time
        from slot ``start`` on.
        """
        i = start
        while ns > 0:
            i = self._following(i)
            if i >= self._count:
                return self._count
            ns -= self._free[i]
            i += 1
        return i

    def start_before(self, end: int, ns: int) -> int:
        """The slot in which a transfer of ``ns`` must start that takes all free time before slot
        ``end``; -1 if there is not as much.
        """
        i = end
        while ns > 0:
            i = self._preceding(i)
            if i <= 0:
                return -1
            ns -= self._free[i - 1]
            i -= 1
        return i

    def reserve_after(self, start: int, ns: int) -> int:
        """Take what :meth:`end_after` found; the same result."""
        i = start
        while ns > 0:
            i = self._following(i)
            if i >= self._count:
                return self._count
            ns = self._fill(i, ns)
            i += 1
        return i

    def reserve_before(self, end: int, ns: int) -> int:
        """Take what :meth:`start_before` found; the same result."""
        i = end
        while ns > 0:
            i = self._preceding(i)
            if i <= 0:
                return -1
            ns = self._fill(i - 1, ns)
            i -= 1
        return i

    def _fill(self, i: int, ns: int) -> int:
        taken = min(ns, self._free[i])
        self._free[i] -= taken
        if not self._free[i]:
            self._close(i)
        return ns - taken

    def _close(self, i: int) -> None:
        self._next[i] = i + 1
        self._previous[i + 1] = i

    def _following(self, i: int) -> int:
        following = self._next
        while following[i] != i:
            following[i] = following[following[i]]
            i = following[i]
        return i

    def _preceding(self, i: int) -> int:
        preceding = self._previous
        while preceding[i] != i:
            preceding[i] = preceding[preceding[i]]
            i = preceding[i]
        return i
