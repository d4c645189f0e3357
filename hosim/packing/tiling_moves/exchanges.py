"""The exchanges in which tensors that start take exactly the place of tensors that end, where next
to no memory is free.

What ends at a moment falls into groups, and each group's place is filled by tensors that start
then, but for a hole; or holes from before are filled, too. Listed are the groups that the first
tensor can be in, the likely ones first.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb, log2
from random import Random

from hosim.packing.tiling_moves.order_tree import OrderTree, together

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
    by_sum: dict[int, list[frozenset[int]]] = {}
    for subset in _subsets(sorted(starting)):
        by_sum.setdefault(_sum(subset, size), []).append(frozenset(subset))
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
