"""Static allocation: one offset for each tensor of a whole plan, so that tensors that live at the
same time do not overlap.

This is dynamic storage allocation, which is NP-hard: rectangles of fixed place and width in time
and of given height are packed as low as possible. `pack` first places greedily in many orders, then
searches for a packing that is as low as the most that ever lives at once, exactly
(`.skyline`) and by a sweep over time that finds it where little memory is ever free
(`.tiling`), and for the heights between if there is none.
"""

from __future__ import annotations

import random
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hosim.analysis.packing.skyline import SkylineSearch
from hosim.analysis.packing.tiling import TilingSearch
from hosim.errors import InputError

# -- greedy
# --------------------------------------------------------------------------------------------------
# Static allocation by greedy placement: quick; more than 20,000 tensors are placed in order of
# time, in one sweep.
#
# Tensors are placed one after the other, each at the lowest offset where it fits. All depends on
# the order: the largest first, the longest, the largest area, those where most else lives at the
# same time; then the best order is improved by moving those that end up highest to the front
# (they were the contention), with a few random moves so that it does not go round in circles.

_PLACEMENTS = 5_000
"""About so many tensors are placed over all tries, but at least each simple order is tried."""
_MANY = 20_000
"""With more tensors than this, placing each against all others takes too long."""


def first_fit(first: _Ints, last: _Ints, size: _Ints, order: _Ints) -> _Ints:
    """Offsets of tensors that live over sections ``[first, last)``, placed in ``order``, each at
    the lowest offset free over its life.
    """
    offsets = np.zeros(len(size), np.int64)
    # First section, last, bottom and top of those placed so far, by bottom.
    placed = np.empty((4, len(size) + 1), np.int64)
    for count, tensor in enumerate(order.tolist()):
        begins, ends, bottoms, tops = placed[:, :count]
        meets = (begins < last[tensor]) & (ends > first[tensor])
        above = bottoms[meets]
        below = np.zeros(len(above) + 1, np.int64)
        np.maximum.accumulate(tops[meets], out=below[1:])
        fits = above - below[:-1] >= size[tensor]
        offset = below[fits.argmax()] if fits.any() else below[-1]
        offsets[tensor] = offset
        at = bottoms.searchsorted(offset)
        placed[:, at + 1 : count + 1] = placed[:, at:count].copy()
        placed[:, at] = first[tensor], last[tensor], offset, offset + size[tensor]
    return offsets


def sweep(first: _Ints, last: _Ints, size: _Ints) -> _Ints:
    """Offsets given in order of time, in O(n log n): to each tensor the smallest free gap that
    fits, the lowest of several.

    The largest that start together come first. What does not fit into a gap extends the top.
    """
    offsets = [0] * len(size)
    sizes, ends = size.tolist(), sorted(range(len(size)), key=last.__getitem__)
    gaps: list[tuple[int, int]] = []  # bytes, offset
    by_start: dict[int, int] = {}
    by_end: dict[int, int] = {}
    top = ended = 0

    def give_back(start: int, length: int) -> None:
        nonlocal top
        if start in by_end:  # the gap below joins
            below = by_end.pop(start)
            del by_start[start - below], gaps[bisect_left(gaps, (below, start - below))]
            start, length = start - below, length + below
        end = start + length
        if end == top:
            top = start
            return
        if end in by_start:
            above = by_start.pop(end)
            del by_end[end + above], gaps[bisect_left(gaps, (above, end))]
            length += above
        add(start, length)

    def add(start: int, length: int) -> None:
        by_start[start] = by_end[start + length] = length
        insort(gaps, (length, start))

    for tensor in np.lexsort((-size, first)).tolist():
        while last[ends[ended]] <= first[tensor]:
            give_back(offsets[ends[ended]], sizes[ends[ended]])
            ended += 1
        wanted = sizes[tensor]
        place = bisect_left(gaps, (wanted, 0))
        if place < len(gaps):
            length, offset = gaps.pop(place)
            del by_start[offset], by_end[offset + length]
            if length > wanted:
                add(offset + wanted, length - wanted)
        else:
            offset, top = top, top + wanted
        offsets[tensor] = offset
    return np.array(offsets, np.int64)


def improve(
    first: _Ints, last: _Ints, size: _Ints, duration: _Ints, enough: int, seed: int
) -> _Ints:
    """The offsets of the lowest of many greedy packings; it stops at one that is no higher than
    ``enough``.
    """
    if len(size) > _MANY:
        return sweep(first, last, size)
    best = np.empty(0, np.int64)
    best_order = best
    lowest = -1
    for order in _orders(first, last, size, duration):
        offsets = first_fit(first, last, size, order)
        height = int((offsets + size).max())
        if lowest < 0 or height < lowest:
            best, best_order, lowest = offsets, order, height
        if lowest <= enough:
            return best
    rng = random.Random(seed)
    order, offsets = best_order, best
    for _ in range(_PLACEMENTS // len(size)):
        order = _nudged(order, offsets, size, rng)
        offsets = first_fit(first, last, size, order)
        height = int((offsets + size).max())
        if height <= lowest:
            best, best_order, lowest = offsets, order, height
        elif rng.random() < 0.2:
            order, offsets = best_order, best
        if lowest <= enough:
            break
    return best


def _orders(first: _Ints, last: _Ints, size: _Ints, duration: _Ints) -> list[_Ints]:
    load = _live_sum(first, last, size, int(last.max()) + 1)
    contention = np.array([load[a:b].max() for a, b in zip(first, last, strict=True)])
    keys = (
        (-duration, -size),
        (-size, -duration),
        (-size * duration, -size),
        (-contention, -size * duration),
        (-contention, -duration, -size),
        (first, -size),
    )
    return [np.lexsort(key[::-1]) for key in keys]


def _nudged(order: _Ints, offsets: _Ints, size: _Ints, rng: random.Random) -> _Ints:
    """The order with one of the highest tensors moved forward, and a random pair of neighbours or
    so exchanged.
    """
    tops = offsets + size
    highest = np.flatnonzero(tops >= tops.max() - tops.max() // 50)
    tensor = highest[rng.randrange(len(highest))]
    position = int(np.flatnonzero(order == tensor)[0])
    moved = np.insert(np.delete(order, position), rng.randrange(position + 1), tensor)
    for _ in range(rng.randrange(3)):
        at = rng.randrange(len(moved))
        to = min(len(moved) - 1, at + 1 + rng.randrange(8))
        moved[at], moved[to] = moved[to], moved[at]
    return moved


_Ints = npt.NDArray[np.int64]
DEFAULT_EFFORT = 8_000_000_000
_LARGEST_SEARCH = 500_000
"""With more cells than this (tensors times sections of time), the exact search is not tried."""


@dataclass(frozen=True, slots=True)
class Packing:
    """An offset for each tensor, in the order given, and the height: the least memory that holds
    them all at these offsets.

    ``optimal`` says that it is proven that no packing is lower.
    """

    offsets: tuple[int, ...]
    height: int
    optimal: bool


def pack(
    lowers: Sequence[int],
    uppers: Sequence[int],
    sizes: Sequence[int],
    *,
    alignment: int = 1,
    capacity: int | None = None,
    effort: int = DEFAULT_EFFORT,
    seed: int = 1,
) -> Packing:
    """Offsets for tensors of ``sizes`` bytes that live over the half-open ``[lower, upper)``; every
    offset is a multiple of ``alignment``.

    With a ``capacity`` it stops at the first packing that is no higher; without, or if there is
    none, it packs as low as it can. ``effort`` limits the searches, in steps of about 5 ns; 0
    leaves it out. The result depends on the arguments alone, never on the clock. Raises
    `InputError` for arguments that contradict each other.
    """
    lower, upper, size = _checked(lowers, uppers, sizes, alignment)
    present = np.flatnonzero((lower < upper) & (size > 0))
    if not len(present):
        return Packing((0,) * len(lower), 0, optimal=True)
    problem = _Problem.of(lower[present], upper[present], size[present], alignment)
    enough = problem.floor if capacity is None else max(problem.floor, capacity // problem.unit)
    offsets, proven = _lowest(problem, enough, effort, seed)
    result = np.zeros(len(lower), np.int64)
    result[present] = offsets * problem.unit
    height = int((result + size)[present].max())
    return Packing(
        tuple(result.tolist()),
        height,
        optimal=height <= problem.least or (proven and problem.exact),
    )


@dataclass(frozen=True, slots=True)
class _Problem:
    """The tensors in units of ``unit`` bytes and sections of time between whose ends nothing starts
    or ends.

    ``floor`` units are the most that live at once; ``least`` bytes are a bound on the height,
    padding at the top left out; ``exact`` says that units lose nothing, for no size has padding.
    """

    first: _Ints
    last: _Ints
    load: _Ints
    duration: _Ints
    unit: int
    floor: int
    least: int
    exact: bool

    @classmethod
    def of(cls, lower: _Ints, upper: _Ints, size: _Ints, alignment: int) -> _Problem:
        padded = -(-size // alignment) * alignment
        unit = int(np.gcd.reduce(padded))
        times = np.unique(np.concatenate([lower, upper]))
        first, last = np.searchsorted(times, lower), np.searchsorted(times, upper)
        live = _live_sum(first, last, padded, len(times))
        # The topmost tensor of a section needs no padding: at most the largest padding is saved.
        return cls(
            first,
            last,
            padded // unit,
            upper - lower,
            unit,
            int(live.max()) // unit,
            int(live.max()) - int((padded - size).max()),
            bool((padded == size).all()),
        )


def _live_sum(first: _Ints, last: _Ints, size: _Ints, instants: int) -> _Ints:
    change = np.zeros(instants, np.int64)
    np.add.at(change, first, size)
    np.subtract.at(change, last, size)
    return np.cumsum(change)


def _lowest(problem: _Problem, enough: int, effort: int, seed: int) -> tuple[_Ints, bool]:
    """Offsets in units of a packing no higher than ``enough`` if one is found, else of a low one;
    and whether it is proven the lowest.
    """
    best = improve(problem.first, problem.last, problem.load, problem.duration, enough, seed)
    if len(best) * int(problem.last.max()) > _LARGEST_SEARCH:
        effort = 0
    search = _Search(problem, best, effort, seed)
    if search.height <= enough or not effort:
        return best, search.height == problem.floor
    # At the target first, for where next to nothing may be wasted, there are few choices: by either
    # search in turn, as what the one misses the other mostly finds at once. If that fails, in steps
    # above it until something is found, and last between what failed and what was found.
    if any(
        search.fill(enough, effort // part) or search.tile(enough, effort // 4) for part in (16, 4)
    ):
        return search.best, search.height == search.impossible + 1
    target, share, failed, found = enough + enough // 50 + 1, search.left // 16 + 1, enough, False
    while search.left > 0 and failed < target < search.height:
        if search.fill(target, share):
            found = True
        else:
            failed = target
        target = (failed + search.height) // 2 if found else failed + enough // 50 + 1
        share = search.left // 4 + 1 if found else search.left // 16 + 1
    return search.best, search.height == search.impossible + 1


class _Search:
    """The best packing found so far, the steps that are left, and the highest target that is known
    to be impossible.
    """

    def __init__(self, problem: _Problem, best: _Ints, effort: int, seed: int) -> None:
        self._problem, self._seed = problem, seed
        self._skylines: dict[int, SkylineSearch] = {}
        self._tiling = TilingSearch(problem.first, problem.last, problem.load, problem.floor, seed)
        self.best = best
        self.left = effort
        self.impossible = problem.floor - 1

    @property
    def height(self) -> int:
        """The height of the best packing."""
        return int((self.best + self._problem.load).max())

    def fill(self, target: int, share: int) -> bool:
        """Search exactly for a packing no higher than ``target``, with up to ``share`` steps more;
        whether it is found.
        """
        problem = self._problem
        if target <= self.impossible:
            return False
        if target not in self._skylines:
            self._skylines = {
                target: SkylineSearch(
                    problem.first, problem.last, problem.load, problem.duration, target, self._seed
                )
            }
        skyline = self._skylines[target]
        found = self._keep(*skyline.run(min(share, self.left)))
        if skyline.exhausted:
            self.impossible = target
        return found

    def tile(self, target: int, share: int) -> bool:
        """Sweep for a packing as low as the most that lives at once, with up to ``share`` steps
        more; whether it is found.
        """
        return target > self.impossible and self._keep(*self._tiling.run(min(share, self.left)))

    def _keep(self, offsets: _Ints | None, spent: int) -> bool:
        self.left -= spent
        if offsets is not None:
            self.best = offsets
        return offsets is not None


def _checked(
    lowers: Sequence[int], uppers: Sequence[int], sizes: Sequence[int], alignment: int
) -> tuple[_Ints, _Ints, _Ints]:
    if not len(lowers) == len(uppers) == len(sizes):
        raise InputError(
            f"expected as many lower and upper ends as sizes, got {len(lowers)}, {len(uppers)} "
            f"and {len(sizes)}"
        )
    if alignment < 1:
        raise InputError(f"expected at least 1, got {alignment}", where="alignment")
    lower, upper, size = (
        np.asarray(values, np.int64).reshape(-1) for values in (lowers, uppers, sizes)
    )
    if (size < 0).any() or (upper < lower).any():
        index = int(np.flatnonzero((size < 0) | (upper < lower))[0])
        raise InputError(
            f"expected a size of at least 0 and no end before the start, got {size[index]} in "
            f"[{lower[index]}, {upper[index]})"
        )
    return lower, upper, size
