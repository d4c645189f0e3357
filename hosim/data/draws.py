"""The figures of one plan in draws of uncertain times, and the intervals that follow from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, floor, sqrt

CERTAINTY = 0.9
"""The probability that a value lies within its interval."""

DRAWS, FEW_DRAWS = 200, 20
"""The number of draws of a plan, and of one whose replays take long."""


@dataclass(frozen=True, slots=True)
class UncertainPart:
    """A part of what is uncertain: what it is, its share of the makespan's variance, and what would
    make it more certain.
    """

    what: str
    share: float
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Draws:
    """The figures of one plan in each draw: nanoseconds, and bytes of the device tier; a draw in
    which it does not fit is ``None``.

    All plans of one machine and workload meet the same draws, in the same order. ``sources`` say
    where the uncertainty of the makespan is from, the largest first. ``kind`` says how draws were
    made where that is not by replays of the plan as it is. ``said`` is there where the figures are
    the ends of intervals, as in a file: how many draws there were, and in how many of them the plan
    did not fit.

    >>> Draws((90, 100, 110, 120)).makespan_interval
    (90, 120)
    """

    makespan_ns: tuple[int | None, ...]
    stall_ns: tuple[int | None, ...] = ()
    peak_bytes: tuple[int | None, ...] = ()
    sources: tuple[UncertainPart, ...] = ()
    kind: str = ""
    said: tuple[int, int] | None = None

    @property
    def count(self) -> int:
        """The number of draws."""
        return len(self.makespan_ns) if self.said is None else self.said[0]

    @property
    def unfit(self) -> int:
        """In how many of them the plan does not fit: with other times, copies may take the room
        that an op then lacks.
        """
        return self.makespan_ns.count(None) if self.said is None else self.said[1]

    @property
    def unfit_share(self) -> float:
        """The share of these."""
        return self.unfit / self.count if self.count else 0.0

    @classmethod
    def of_ends(cls, low_ns: int, high_ns: int) -> Draws:
        """Of which nothing is known but the ends of the makespan's interval."""
        return cls((low_ns, high_ns), said=(0, 0))

    @property
    def makespan_interval(self) -> tuple[int, int] | None:
        """The ends of the makespan's interval, of the draws in which the plan fits; ``None`` where
        it fits in none.
        """
        return interval(self.makespan_ns)

    @property
    def stall_interval(self) -> tuple[int, int] | None:
        """The ends of the interval of the main stream's stalls."""
        return interval(self.stall_ns)

    @property
    def peak_interval(self) -> tuple[int, int] | None:
        """The ends of the interval of the device tier's peak."""
        return interval(self.peak_bytes)


@dataclass(frozen=True, slots=True)
class Regret:
    """The regret of one policy's plan in each of some draws: by what share it takes longer than the
    plan made for that world, 0 where it is as fast; ``None`` where one of the two does not fit.
    """

    policy: str
    losses: tuple[float | None, ...]

    @property
    def known(self) -> list[float]:
        """The losses in draws in which both plans fit."""
        return [loss for loss in self.losses if loss is not None]

    @property
    def mean(self) -> float | None:
        """Their mean; ``None`` without any."""
        return sum(self.known) / len(self.known) if self.known else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The ends between which 9 of 10 of them lie."""
        return ends(self.known)


class LaterDraws:
    """Draws that are made when they are first asked for, once: the first ``most`` of them.

    >>> LaterDraws.of(Draws((90, 110)))().makespan_interval
    (90, 110)
    """

    def __init__(self, make: Callable[[int], Draws | None], most: int = DRAWS) -> None:
        self._make: Callable[[int], Draws | None] | None = make
        self._most = most
        self._made: Draws | None = None

    def __call__(self) -> Draws | None:
        """The draws, or nothing where no draw fits."""
        if self._make is not None:
            self._made, self._make = self._make(self._most), None
        return self._made

    @property
    def few(self) -> LaterDraws:
        """The first :data:`FEW_DRAWS` alone, which do for an interval; all of them once they are
        made.
        """
        return self if self._make is None else LaterDraws(self._make, FEW_DRAWS)

    @classmethod
    def of(cls, draws: Draws | None) -> LaterDraws:
        """Those that are made already, as in a pickle; the two ends stand for draws that are not
        kept, as in a file.
        """
        return cls(lambda most: draws)

    def __reduce__(self) -> tuple[object, ...]:
        return LaterDraws.of, (self(),)


def interval(values: Sequence[int | None]) -> tuple[int, int] | None:
    """The whole numbers at or beyond the ends of :func:`ends`.

    >>> interval([1, 2, 3, 4, 5, 6, 7, 8, 9, 10]), interval([5]), interval([])
    ((1, 10), (5, 5), None)
    """
    found = ends(values)
    return None if found is None else (floor(found[0]), ceil(found[1]))


def ends(values: Sequence[float | None]) -> tuple[float, float] | None:
    """The ends between which :data:`CERTAINTY` of equally likely values lie; ``None`` without
    values.

    A value stands for the middle of its part of all that may be (Hazen 1914), and between two of
    them the quantile is linear. Missing ones are left out.

    >>> ends([0.5, 1.5, None])
    (0.5, 1.5)
    """
    known = sorted(value for value in values if value is not None)
    if not known:
        return None
    tail = (1 - CERTAINTY) / 2
    return _quantile(known, tail * len(known)), _quantile(known, (1 - tail) * len(known))


def _quantile(ordered: Sequence[float], rank: float) -> float:
    """The value at a rank, of which the first value has 0.5."""
    at = min(max(rank - 0.5, 0.0), len(ordered) - 1.0)
    below = floor(round(at, 9))
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (at - below) * (ordered[above] - ordered[below])


def without(share: float, low: float, high: float) -> float:
    """Half of the width of an interval once a source of this share of the variance is certain, as a
    share of its centre.

    >>> without(0.75, 90.0, 110.0)
    0.05
    """
    return sqrt(max(0.0, 1 - share)) * (high - low) / (high + low) if high + low else 0.0
