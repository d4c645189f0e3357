"""The search of a fit: bisect over ordered values, and probe more values on both sides that could
contradict the answer.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Generic, Literal, TypeVar

from hosim.data.draws import CERTAINTY, FEW_DRAWS
from hosim.study.asked import Axis, Value

Wanted = Literal["largest", "smallest"]

CHECKS = 2
"""The number of values to probe on each side of the answer beyond those that bisection needs."""

_BEYOND = round((1 - CERTAINTY) / 2 * FEW_DRAWS)
"""The number of draws in which the answer may lie beyond either end of its interval."""


@dataclass(frozen=True, slots=True)
class Probed:
    """A value that was tried: whether it is within the limits, and why not."""

    value: Value
    within: bool
    why: str


_Probe = TypeVar("_Probe", bound=Probed)


@dataclass(frozen=True)
class Sought(Generic[_Probe]):
    """The answer of a search and the evidence: every value that was tried, in the order of the
    values.

    ``answer`` is the ``wanted`` value within the limits, and ``beyond`` the nearest one tried that
    is outside them; ``None`` if there is none. ``contradictions`` are lines about values that are
    outside the limits although harder ones are within.
    """

    wanted: Wanted
    axis: Axis
    probes: Sequence[_Probe]
    answer: _Probe | None
    beyond: _Probe | None
    contradictions: Sequence[str]

    @property
    def value(self) -> Value:
        """The answer; ``None`` if no value is within the limits."""
        return None if self.answer is None else self.answer.value


@dataclass(frozen=True)
class Bisected(Generic[_Probe]):
    """The probes of a search, by position.

    ``answer`` is the hardest probed position within the limits, and ``beyond`` the next probed
    position, which is outside them. ``contradictions`` are lines about easier values that are
    outside the limits.
    """

    probes: Mapping[int, _Probe]
    answer: int | None
    beyond: int | None
    contradictions: tuple[str, ...]


def bisected(order: Sequence[int], probe: Callable[[int], _Probe]) -> Bisected[_Probe]:
    """Search positions in ``order``, which runs from the easiest value to the hardest one; each is
    probed at most once.
    """
    probes: dict[int, _Probe] = {}

    def within(i: int) -> bool:
        if i not in probes:
            probes[i] = probe(i)
        return probes[i].within

    low, high = 0, len(order) - 1
    if within(order[0]) and not within(order[-1]):
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if within(order[middle]) else (low, middle)
    else:
        within(order[-1])
    _check_besides(order, probes, within)
    found = [n for n in range(len(order)) if order[n] in probes and probes[order[n]].within]
    answer = found[-1] if found else None
    outside = [n for n in range(len(order)) if order[n] in probes and not probes[order[n]].within]
    beyond = next((n for n in outside if answer is not None and n > answer), None)
    easier = [n for n in outside if answer is not None and n < answer]
    contradicted = answer is not None and easier
    return Bisected(
        dict(sorted(probes.items())),
        None if answer is None else order[answer],
        None if beyond is None else order[beyond],
        (_contradiction(probes[order[easier[-1]]], probes[order[answer or 0]]),)
        if contradicted
        else (),
    )


def last_in_draws(size: int, within: Callable[[int, int], bool], start: int) -> tuple[int, int]:
    """Return the ends of the 90 % interval of the last of ``size`` places within the limits (-1 for
    none): the last place within them in all but :data:`_BEYOND` draws, and the last one within them
    in more than :data:`_BEYOND` draws.

    ``within(draw, place)`` tests one draw. Both ends are searched from ``start`` in doubling steps,
    and then by bisection.

    >>> last_in_draws(100, lambda draw, place: place <= 40 + draw, 45)
    (41, 58)
    """

    def in_draws(least: int, place: int) -> bool:
        hits = misses = 0
        for draw in range(FEW_DRAWS):
            if hits >= least or misses > FEW_DRAWS - least:
                break
            there = within(draw, place)
            hits, misses = hits + there, misses + (not there)
        return hits >= least

    low = _last(size, partial(in_draws, FEW_DRAWS - _BEYOND), start)
    return low, _last(size, partial(in_draws, _BEYOND + 1), max(low, start))


def _last(size: int, holds: Callable[[int], bool], start: int) -> int:
    low, high, step = start, start, 1
    if holds(start):
        while (high := min(low + step, size)) < size and holds(high):
            low, step = high, 2 * step
    else:
        while (low := max(high - step, -1)) >= 0 and not holds(low):
            high, step = low, 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _contradiction(worse: Probed, best: Probed) -> str:
    return (
        f"{shown(worse.value)} is not within the limits ({worse.why}) although "
        f"{shown(best.value)} is: there is no single "
        "threshold, and others may be within the limits too"
    )


def _check_besides(
    order: Sequence[int], probes: Mapping[int, Probed], within: Callable[[int], bool]
) -> None:
    """Probe :data:`CHECKS` more values on each side of the limit, in the middle of the longest
    unprobed stretches.
    """
    limit = max(
        (n for n in range(len(order)) if order[n] in probes and probes[order[n]].within), default=0
    )
    for side in (range(limit), range(limit + 1, len(order))):
        for _ in range(CHECKS):
            known = [side.start - 1, *(n for n in side if order[n] in probes), side.stop]
            apart, middle = max((b - a, (a + b) // 2) for a, b in pairwise(known))
            if apart < 2:
                break
            within(order[middle])


def ends_of(
    order: Sequence[int], values: Sequence[Value], lasts: tuple[int, int]
) -> tuple[Value, Value]:
    """Return the values at the two ends from :func:`last_in_draws`, the smaller first; ``None`` for
    an end of -1.
    """
    low, high = [None if place < 0 else values[order[place]] for place in lasts]
    return (low, high) if order[0] <= order[-1] else (high, low)


def ends_shown(ends: tuple[Value, Value] | None, values: Sequence[Value]) -> str:
    """Return the text of an interval over ``values``, after a comma; an empty text if it has no
    value.

    >>> ends_shown((2, 8), [1, 2, 4, 8]), ends_shown((None, 4), [1, 2, 4, 8])
    (', 90 % interval 2 to 8 or beyond the range', ', 90 % interval none to 4')
    >>> ends_shown((4, 4), [1, 2, 4, 8])
    ', in 9 of 10 draws 4'
    """
    if ends is None or ends == (None, None):
        return ""
    said = ["none" if end is None else shown(end) for end in ends]
    beyond = " or beyond the range" if {values[0], values[-1]} & set(ends) else ""
    return (
        f", in 9 of 10 draws {said[0]}{beyond}"
        if ends[0] == ends[1]
        else f", 90 % interval {' to '.join(said)}{beyond}"
    )


def shown(value: Value) -> str:
    """Return a value as text, with commas between thousands.

    >>> shown(12345), shown("25 GB/s")
    ('12,345', '25 GB/s')
    """
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
