"""The exchanges in which tensors that start take exactly the place of tensors that end, where next
to no memory is free.

What ends at a moment falls into groups, and each group's place is filled by tensors that start
then, but for a hole; or holes from before are filled, too. Listed are the groups that the first
tensor can be in, the likely ones first.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import combinations
from math import comb, log2
from random import Random
from typing import TypeVar

from hosim.analysis.packing.order_tree import OrderTree, together
from hosim.analysis.packing.section_events import SectionEvents
from hosim.base.groups import grouped

# -- holes
# --------------------------------------------------------------------------------------------------
# Guesses what the free memory of a packing looks like: holes with a time and a size, as if they
# were tensors.
#
# Where a packing wastes next to nothing, a hole is mostly the place of one tensor that is
# missing, so as much becomes free at once as is taken at once later. Such pairs are looked for
# first, the nearest in time; then what becomes free is split between two moments, or is put
# together from two; last all that is left is paired somehow.

_Moments = TypeVar("_Moments", tuple[int, int], tuple[int, int, int])


class Guess(IntEnum):
    """The part of the free memory that is guessed."""

    NOTHING = 0
    PAIRS = 1
    TRIPLES = 2
    ALL = 3


def guessed_holes(
    events: SectionEvents, size: list[int], target: int, guess: Guess, rng: Random | None
) -> list[tuple[int, int, int]]:
    """The first section, the last and the size of each hole in memory of ``target``; with ``rng``
    some of the likely ones, at random.
    """
    guessing = _Guessing(events, size, target, rng)
    if guess >= Guess.PAIRS:
        guessing.pairs()
    if guess >= Guess.TRIPLES:
        guessing.triples()
    if guess >= Guess.ALL:
        guessing.rest()
    return guessing.holes


class _Guessing:
    """The memory that becomes free at the start of each section, less what is taken there, and the
    memory that is free in it: both without the holes so far.
    """

    def __init__(
        self, events: SectionEvents, size: list[int], target: int, rng: Random | None
    ) -> None:
        self._events, self._size, self._rng = events, size, rng
        self._freed = [
            sum(size[tensor] for tensor in ending) - sum(size[tensor] for tensor in starting)
            for ending, starting in zip(events.ending, events.starting, strict=True)
        ]
        self._freed[0] += target
        self._freed[-1] -= target
        self._end = len(self._freed) - 1
        self._free = events.free(size, target)
        self.holes: list[tuple[int, int, int]] = []

    def pairs(self) -> None:
        """Pair moments where as much becomes free as is taken at the other."""
        freed = self._freed
        opened = [at for at in range(self._end) if freed[at] > 0]
        found = [
            (a, b) for a in opened for b in range(a + 1, self._end + 1) if freed[a] == -freed[b]
        ]
        for a, b in self._nearest_first(found):
            if freed[a] > 0 and freed[a] == -freed[b]:
                self._add_all([(a, b, freed[a])])

    def triples(self) -> None:
        """Find what becomes free at one moment and is taken at two, or the other way round."""
        freed = self._freed
        opened = [at for at, size in enumerate(freed) if size > 0]
        closed = [at for at, size in enumerate(freed) if size < 0]
        found = [
            (a, b, c)
            for a in opened
            for b, c in combinations(closed, 2)
            if a < b and freed[a] + freed[b] + freed[c] == 0
        ]
        found += [
            (a, b, c)
            for c in closed
            for a, b in combinations(opened, 2)
            if b < c and freed[a] + freed[b] + freed[c] == 0
        ]
        for a, b, c in self._nearest_first(found):
            if 0 in (freed[a], freed[b], freed[c]) or freed[a] + freed[b] + freed[c]:
                continue
            if self._rng is not None and self._rng.random() < 0.5:
                self._add_all([(a, b, freed[a]), (b, c, -freed[c])])
            elif freed[b] < 0:
                self._add_all([(a, b, -freed[b]), (a, c, -freed[c])])
            else:
                self._add_all([(a, c, freed[a]), (b, c, freed[b])])

    def rest(self) -> None:
        """Pair all that is left: what is taken comes from a hole of this size, else from part of a
        larger one, else from several.
        """
        opened: list[tuple[int, int]] = []
        for at, freed in enumerate(self._freed):
            if freed > 0:
                ending = [self._size[tensor] for tensor in self._events.ending[at]]
                one_each = not self._events.starting[at] and sum(ending) == freed
                opened += [(at, size) for size in ending] if one_each else [(at, freed)]
            wanted = max(0, -freed)
            while wanted:
                start, size = opened.pop(self._source([size for _, size in opened], wanted))
                if size > wanted:
                    opened.append((start, size - wanted))
                self.holes.append((start, at, min(size, wanted)))
                wanted -= min(size, wanted)

    def _source(self, sizes: list[int], wanted: int) -> int:
        """The index of the hole to take ``wanted`` from: the last of this size, else the smallest
        that is larger, else the largest.
        """
        indices = range(len(sizes))
        if wanted in sizes:
            return max(index for index in indices if sizes[index] == wanted)
        larger = [index for index in indices if sizes[index] > wanted]
        if self._rng is not None:
            return self._rng.choice(larger or indices)
        return min(larger, key=sizes.__getitem__) if larger else max(indices, key=sizes.__getitem__)

    def _nearest_first(self, found: list[_Moments]) -> list[_Moments]:
        rng = self._rng
        return sorted(
            found, key=lambda at: (at[-1] - at[0]) * (1.0 if rng is None else rng.uniform(0.5, 2))
        )

    def _add_all(self, holes: list[tuple[int, int, int]]) -> None:
        """Add the holes if there is room for all of them."""
        free = self._free.copy()
        for a, b, size in holes:
            for at in range(a, b):
                free[at] -= size
        if min(free) < 0:
            return
        self._free = free
        for a, b, size in holes:
            self._freed[a] -= size
            self._freed[b] += size
        self.holes += holes


_SUBSETS = 2_000
_LISTED = 3_000
_COMPARED = 30_000
"""Limits of what is looked at for one choice: subsets, exchanges, and groups with holes."""
_EMPTY: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Exchange:
    """``starting`` tensors and a hole of size ``left`` take the place of ``ending`` tensors and
    ``filled`` holes, which stand together.
    """

    ending: frozenset[int]
    filled: frozenset[int]
    starting: frozenset[int]
    left: int

    @property
    def place(self) -> frozenset[int]:
        """All that stands together."""
        return self.ending | self.filled


NOTHING = Exchange(_EMPTY, _EMPTY, _EMPTY, 0)


@dataclass(frozen=True, slots=True)
class Taste:
    """The ranking of exchanges: small ones first or, at ``by_chance`` 1, those whose sums are
    hardly equal by chance; and some ``noise`` on it.

    ``failures`` counts how often an exchange of some tensors for others led to nothing, which makes
    it less likely.
    """

    by_chance: float
    noise: float
    rng: Random
    failures: Mapping[tuple[frozenset[int], frozenset[int]], int]


@dataclass(frozen=True, slots=True)
class Moment:
    """The tensors that have to find a place at one moment.

    ``ending`` and ``starting`` tensors that are not in an exchange yet, ``holes`` from before,
    ``room`` for new holes at most, and ``freed``, how much more is free after the moment than
    before.
    """

    ending: frozenset[int]
    starting: frozenset[int]
    holes: Sequence[int]
    room: int
    freed: int


def exchanges(
    moment: Moment, tree: OrderTree, size: Sequence[int], taste: Taste
) -> Iterator[Exchange]:
    """The exchanges of the first tensor that ends, or starts if none ends, the likely ones by
    ``taste`` first.

    ``tree`` has the orders of all that lives before the moment.
    """
    if moment.ending:
        yield from _of_ending(moment, tree, size, taste)
    else:
        yield from _into_holes(moment, size, taste)


def _of_ending(
    moment: Moment, tree: OrderTree, size: Sequence[int], taste: Taste
) -> Iterator[Exchange]:
    ending, starting = moment.ending, moment.starting
    parts = together(tree, ending)
    if len(parts) == 1 and not moment.holes and not moment.room:
        # They stand together anyhow, so that all smaller groups are among the orders that this one
        # leaves open.
        yield Exchange(ending, _EMPTY, starting, 0)
        return
    by_sum = grouped(
        (_sum(subset, size), frozenset(subset)) for subset in _subsets(sorted(starting))
    )
    tensor = min(ending)
    groups = [frozenset((tensor, *others)) for others in _subsets(sorted(ending - {tensor}))]
    groups += [
        group for part in parts if tensor in part and (group := frozenset(part)) not in groups
    ]
    listed: list[tuple[float, Exchange]] = []
    for group in groups:
        used = [part for part in parts if not group.isdisjoint(part)]
        whole = sum(map(len, used)) == len(group)
        chances = (
            comb(len(parts) - 1, len(used) - 1) if whole else comb(len(ending) - 1, len(group) - 1)
        )
        for chosen in by_sum.get(_sum(group, size), ()):
            if chosen:
                chance = log2(chances * comb(len(starting), len(chosen)))
                rank = taste.by_chance * chance + (1 - taste.by_chance) * (len(group) + len(chosen))
                listed.append((rank, Exchange(group, _EMPTY, chosen, 0)))
    yield from _ranked(listed[:_LISTED], taste)
    if moment.holes or moment.room:
        yield from _ranked(_with_holes(moment, groups, by_sum, size), taste)


def _with_holes(
    moment: Moment,
    groups: list[frozenset[int]],
    by_sum: dict[int, list[frozenset[int]]],
    size: Sequence[int],
) -> list[tuple[float, Exchange]]:
    listed: list[tuple[float, Exchange]] = []
    sums = sorted(by_sum)
    compared = 0
    for filled in _some_holes(moment.holes, 2):
        free = _sum(filled, size)
        for group in groups:
            place = free + _sum(group, size)
            # A hole that is not needed, or that nothing fills, is left alone.
            least = max(place - moment.room, place - free + 1 if filled else 0)
            most = place if filled else place - 1
            for total in sums[bisect_left(sums, least) : bisect_right(sums, most)]:
                left = place - total
                alone = left == moment.freed if not filled else not left and free == -moment.freed
                likely = 0 if alone else 1 if not filled or not left else 2
                for chosen in by_sum[total]:
                    rank = 100 * likely + len(group) + len(chosen) + len(filled)
                    listed.append((rank, Exchange(group, filled, chosen, left)))
        compared += len(groups)
        if compared > _COMPARED or len(listed) > _LISTED:
            break
    return listed


def _into_holes(moment: Moment, size: Sequence[int], taste: Taste) -> Iterator[Exchange]:
    tensor = min(moment.starting)
    groups = [
        frozenset((tensor, *others)) for others in _subsets(sorted(moment.starting - {tensor}))
    ]
    listed: list[tuple[float, Exchange]] = []
    for filled in _some_holes(moment.holes, 3):
        free = _sum(filled, size)
        for group in groups:
            left = free - _sum(group, size)
            if 0 <= left <= moment.room:
                listed.append(
                    (
                        100 * (left > 0) + len(group) + len(filled),
                        Exchange(_EMPTY, filled, group, left),
                    )
                )
        if len(listed) > _LISTED:
            break
    yield from _ranked([entry for entry in listed if entry[1].filled], taste)


def _some_holes(holes: Sequence[int], most: int) -> Iterator[frozenset[int]]:
    return (
        frozenset(chosen)
        for count in range(most + 1)
        for chosen in combinations(sorted(holes), count)
    )


def _subsets(items: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All subsets of a few items; of many those with few items, or all but few, as there are not
    too many.
    """
    subsets = 0
    for count in range(len(items) // 2 + 1):
        subsets += 2 * comb(len(items), count)
        if subsets > _SUBSETS and count > 1:
            return
        yield from combinations(items, count)
        if 2 * count < len(items):
            yield from combinations(items, len(items) - count)


def _ranked(listed: list[tuple[float, Exchange]], taste: Taste) -> Iterator[Exchange]:
    noisy = [
        (
            rank
            + taste.rng.uniform(0, taste.noise)
            + log2(1 + taste.failures.get((exchange.ending, exchange.starting), 0)),
            exchange,
        )
        for rank, exchange in listed
    ]
    return (exchange for _, exchange in sorted(noisy, key=lambda entry: entry[0]))


def _sum(items: frozenset[int] | tuple[int, ...], size: Sequence[int]) -> int:
    return sum(size[item] for item in items)
