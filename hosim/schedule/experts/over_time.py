"""For how long the ops of a stretch are over a line, while more and more of them come to be under
it.
"""

from __future__ import annotations

import numpy as np

_Durations = np.ndarray[tuple[int], np.dtype[np.int64]]
_Marks = np.ndarray[tuple[int], np.dtype[np.bool_]]


class OverTime:
    """Nanoseconds of the ops that are over the line, as sums over trees of ranges (Fenwick 1994);
    ``count`` is how many ops are over.
    """

    def __init__(self, durations: _Durations, over: _Marks) -> None:
        self._over = over.copy()
        self._times = durations.tolist()
        self._over_ns = np.where(over, durations, 0)
        self.count = int(over.sum())
        sums, ends = self._sums_before(), np.arange(len(durations) + 1)
        self._sums = (sums[ends] - sums[ends - (ends & -ends)]).tolist()

    def _sums_before(self) -> _Durations:
        return np.concatenate(([0], np.cumsum(self._over_ns)))

    def within_each(self, begins: _Durations, ends: _Durations) -> _Durations:
        """Return what :meth:`within` gives for each of many stretches."""
        sums = self._sums_before()
        return sums[ends] - sums[begins]

    def within(self, begin: int, end: int) -> int:
        """Nanoseconds over the line of the ops from ``begin`` up to ``end``, without that one."""
        total, sums = 0, self._sums
        while end > begin:
            total += sums[end]
            end &= end - 1
        while begin > end:
            total -= sums[begin]
            begin &= begin - 1
        return int(total)

    def drop(self, begin: int, end: int, under: _Marks) -> None:
        """Return, of the ops from ``begin`` up to ``end``, those that ``under`` marks are over the
        line no more.
        """
        (fallen,) = np.nonzero(self._over[begin:end] & under)
        self._over[begin:end] &= ~under
        self._over_ns[begin:end][fallen] = 0
        self.count -= len(fallen)
        sums, size = self._sums, len(self._sums)
        for i in (fallen + begin).tolist():
            ns = self._times[i]
            k = i + 1
            while k < size:
                sums[k] -= ns
                k += k & -k
