"""Static allocation by greedy placement: quick; more than 20,000 tensors are placed in order of
time, in one sweep.

Tensors are placed one after the other, each at the lowest offset where it fits. All depends on the
order: the largest first, the longest, the largest area, those where most else lives at the same
time; then the best order is improved by moving those that end up highest to the front (they were
the contention), with a few random moves so that it does not go round in circles.
"""

from __future__ import annotations

import random
from bisect import bisect_left, insort

import numpy as np
import numpy.typing as npt

_Ints = npt.NDArray[np.int64]
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
    live = np.zeros(int(last.max()) + 1, np.int64)
    np.add.at(live, first, size)
    np.subtract.at(live, last, size)
    load = np.cumsum(live)
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
