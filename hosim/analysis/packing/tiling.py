"""Static allocation where next to nothing is wasted: the search for a packing that is as low as the
most that ever lives at once.

Where no memory is free before and after a moment, the tensors that start take exactly the place of
those that end. So a sweep over time has to know no offsets, but only in which orders, from the
bottom up, the tensors may stand that live: what ends together has to stand together, and what
starts there takes its place. A tree holds all these orders at once (`.order_tree`).
Where equal sums leave a choice of who takes whose place (`.exchanges`), the sweep is a
search: depth first, and back to the last choice that is among the reasons of what failed. At the
end it goes back in time through the trees, which gives an order for each section, and the offsets.

Free memory is treated as holes that start and end like tensors. Attempts differ in how many of them
are guessed beforehand (`.exchanges`), the others come about as what remains of an
exchange; in what they try first; and in the direction of time. Holes have one size from start to
end, and few are filled together, so that a sweep without a result proves nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from hosim.analysis.packing.exchanges import (
    NOTHING,
    Exchange,
    Guess,
    Moment,
    Taste,
    exchanges,
    guessed_holes,
)
from hosim.analysis.packing.order_tree import (
    ApartError,
    OrderTree,
    any_order,
    gather,
    items_in_order,
    order_like,
)
from hosim.analysis.packing.restarts import restart_length
from hosim.analysis.packing.section_events import SectionEvents

_Ints = npt.NDArray[np.int64]
_Failures: TypeAlias = Counter[tuple[frozenset[int], frozenset[int]]]
_GUESSES = (Guess.ALL, Guess.PAIRS, Guess.TRIPLES, Guess.NOTHING)
_OVERHEAD = 10_000
_PER_ITEM = 500
"""Steps of an exchange however little lives, and for each item that lives; a step takes about 5
ns.
"""
_ATTEMPT = 600
"""Exchanges tried in the shortest attempt."""
_MOST_NOISE = 3.0
_MOST_LIVE = 400
"""With more tensors than this at the same time, it is not tried."""


@dataclass(slots=True)
class _ExchangeChoice:
    """An exchange to choose at the start of a section, where ``ending`` and ``starting`` tensors
    are left to exchange.

    ``tree`` has the orders of the ``live`` items before. ``holes`` has the holes then, with the bit
    of the choice that made each, and ``usable`` those from before the moment. ``made`` is the size
    of holes made at this moment. ``reasons`` has the bits of the choices that decide which ways
    there are, and ``blame`` those that are the reason that ways failed. ``way`` is the one taken,
    and ``instead`` has the items that live after it.
    """

    section: int
    ending: frozenset[int]
    starting: frozenset[int]
    tree: OrderTree
    live: int
    holes: Mapping[int, int]
    usable: list[int]
    made: int
    reasons: int
    blame: int
    ways: Iterator[Exchange]
    way: Exchange = NOTHING
    instead: tuple[int, ...] = ()


class TilingSearch:
    """The search for a packing of tensors of ``size``, living over sections ``[first, last)``, that
    is no higher than ``target``.
    """

    def __init__(self, first: _Ints, last: _Ints, size: _Ints, target: int, seed: int) -> None:
        sections = int(last.max())
        self._directions: tuple[tuple[list[int], list[int]], ...] = (
            (first.tolist(), last.tolist()),
            ((sections - last).tolist(), (sections - first).tolist()),
        )
        self._size: list[int] = size.tolist()
        self._target = target
        self._seed = seed
        self._attempts = count()
        self._failures: tuple[_Failures, ...] = (Counter(), Counter())
        self._too_many = _most_live(SectionEvents.of(*self._directions[0])) > _MOST_LIVE

    def run(self, effort: int) -> tuple[_Ints | None, int]:
        """The offsets of a packing, or None if none was found, and the steps spent, which exceed
        ``effort`` by one exchange at most.

        Called again, it goes on with further attempts.
        """
        spent = 0
        while spent < effort and not self._too_many:
            sweep = self._attempt(next(self._attempts), effort - spent)
            offsets = sweep.run()
            spent += sweep.spent
            if offsets is not None:
                return np.array(
                    [offsets[tensor] for tensor in range(len(self._size))], np.int64
                ), spent
        return None, spent

    def _attempt(self, attempt: int, effort: int) -> _Sweep:
        length, guess = divmod(attempt, len(_GUESSES))
        rng = Random(f"{self._seed} {attempt}")
        begins, ends = self._directions[length % 2]
        events = SectionEvents.of(begins, ends)
        holes = guessed_holes(
            events, self._size, self._target, _GUESSES[guess], rng if attempt else None
        )
        events = SectionEvents.of(
            begins + [hole[0] for hole in holes], ends + [hole[1] for hole in holes]
        )
        steps = restart_length(length) * _ATTEMPT * (_OVERHEAD + _PER_ITEM * _most_live(events))
        failures = self._failures[length % 2]
        return _Sweep(
            events,
            self._size + [hole[2] for hole in holes],
            self._target,
            min(steps, effort),
            Taste(rng.random(), rng.uniform(0, _MOST_NOISE), rng, failures),
            failures,
        )


def _most_live(events: SectionEvents) -> int:
    change = [
        len(starting) - len(ending)
        for starting, ending in zip(events.starting, events.ending, strict=True)
    ]
    return int(np.cumsum(change).max())


class _Sweep:
    """One attempt. Items are the tensors, and the holes, which get the numbers after them."""

    def __init__(
        self,
        events: SectionEvents,
        size: list[int],
        target: int,
        effort: int,
        taste: Taste,
        failures: _Failures,
    ) -> None:
        self._events = events
        self._size = size.copy()
        self._free = events.free(size, target)
        self._effort = effort
        self._taste = taste
        self._failures = failures
        self._path: list[_ExchangeChoice] = []
        self.spent = 0

    def run(self) -> dict[int, int] | None:
        """The offset of each item, or None if no packing was found."""
        items = list(self._events.starting[0])
        holes: dict[int, int] = {}
        if self._free[0]:
            items.append(self._new_hole(self._free[0]))
            holes[items[-1]] = 0
        tree = any_order(items)
        choice = self._first_choice(1, tree, holes)
        if choice is None:
            return self._offsets(tree)
        self._path = [choice]
        while self._path:
            choice = self._path[-1]
            exchange = next(choice.ways, None)
            if exchange is None:
                self._go_back()
                continue
            self.spent += _OVERHEAD + _PER_ITEM * choice.live
            if self.spent > self._effort:
                break
            after = self._exchanged(choice, exchange)
            if after is None:
                continue
            following = self._next_choice(choice, exchange, after)
            if following is None:
                return self._offsets(after)
            self._path.append(following)
        return None

    def _new_hole(self, size: int) -> int:
        self._size.append(size)
        return len(self._size) - 1

    def _first_choice(
        self, section: int, tree: OrderTree, holes: Mapping[int, int]
    ) -> _ExchangeChoice | None:
        """The first choice at the start of a section, or of a later one if nothing happens there;
        None at the end of time.
        """
        events = self._events
        while (
            section < len(self._free)
            and not events.ending[section]
            and not events.starting[section]
        ):
            section += 1
        if section == len(self._free):
            return None
        return self._choice(
            section,
            frozenset(events.ending[section]),
            frozenset(events.starting[section]),
            tree,
            holes,
            sorted(holes),
            0,
            0,
        )

    def _next_choice(
        self, choice: _ExchangeChoice, exchange: Exchange, tree: OrderTree
    ) -> _ExchangeChoice | None:
        """The choice after an exchange, at the same moment if there is more to exchange; None at
        the end of time.
        """
        bit = 1 << len(self._path) - 1
        holes = {hole: maker for hole, maker in choice.holes.items() if hole not in exchange.filled}
        if exchange.left:
            holes[choice.instead[-1]] = bit
        ending, starting = choice.ending - exchange.ending, choice.starting - exchange.starting
        if not ending and not starting:
            return self._first_choice(choice.section + 1, tree, holes)
        return self._choice(
            choice.section,
            ending,
            starting,
            tree,
            holes,
            [hole for hole in choice.usable if hole in holes],
            choice.made + exchange.left,
            choice.reasons | bit,
        )

    def _choice(
        self,
        section: int,
        ending: frozenset[int],
        starting: frozenset[int],
        tree: OrderTree,
        holes: Mapping[int, int],
        usable: list[int],
        made: int,
        reasons: int,
    ) -> _ExchangeChoice:
        live = len(items_in_order(tree))
        free = self._free[section]
        if len(ending) + len(holes) == live and len(usable) == len(holes):
            # Nothing goes on: all orders are open again.
            ways = iter([Exchange(ending, frozenset(holes), starting, free)])
        else:
            moment = Moment(ending, starting, usable, free - made, free - self._free[section - 1])
            ways = exchanges(moment, tree, self._size, self._taste)
        for maker in holes.values():
            reasons |= maker
        return _ExchangeChoice(
            section, ending, starting, tree, live, holes, usable, made, reasons, reasons, ways
        )

    def _exchanged(self, choice: _ExchangeChoice, exchange: Exchange) -> OrderTree | None:
        """The orders after an exchange; None if what it takes the place of stands together in none
        of those before.
        """
        bit = 1 << len(self._path) - 1
        choice.way = exchange
        choice.instead = tuple(sorted(exchange.starting))
        if exchange.left:
            choice.instead += (self._new_hole(exchange.left),)
        instead = any_order(choice.instead, 0 if len(exchange.place) == choice.live else bit)
        try:
            return gather(choice.tree, exchange.place, bit, instead)
        except ApartError as error:
            choice.blame |= error.cause
            return None

    def _go_back(self) -> None:
        """Drop the last choice, which has no more ways, and all before it down to the last one that
        is a reason for that.
        """
        blame = self._path[-1].blame & ~(1 << len(self._path) - 1)
        del self._path[blame.bit_length() :]
        if blame:
            choice = self._path[-1]
            choice.blame |= blame
            self._failures[choice.way.ending, choice.way.starting] += 1

    def _offsets(self, tree: OrderTree) -> dict[int, int]:
        """The offset of each item, from an order of the items that live last, and back in time
        through the exchanges.
        """
        order = items_in_order(tree)
        offsets: dict[int, int] = {}
        self._stack(order, offsets)
        for choice in reversed(self._path):
            positions = {item: position for position, item in enumerate(order)}
            at = min(positions[item] for item in choice.instead)
            positions.update((item, at) for item in choice.way.place)
            order = order_like(gather(choice.tree, choice.way.place, 0), positions)
            self._stack(order, offsets)
        return offsets

    def _stack(self, order: list[int], offsets: dict[int, int]) -> None:
        top = 0
        for item in order:
            offsets[item] = top
            top += self._size[item]
