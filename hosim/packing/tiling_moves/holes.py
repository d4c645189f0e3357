"""Guesses what the free memory of a packing looks like: holes with a time and a size, as if they
were tensors.

Where a packing wastes next to nothing, a hole is mostly the place of one tensor that is missing, so
as much becomes free at once as is taken at once later. Such pairs are looked for first, the nearest
in time; then what becomes free is split between two moments, or is put together from two; last all
that is left is paired somehow.
"""

from __future__ import annotations

from enum import IntEnum
from itertools import combinations
from random import Random
from typing import TypeVar

from hosim.packing.tiling_moves.section_events import SectionEvents

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
