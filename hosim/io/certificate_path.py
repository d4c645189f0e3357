"""The path that proves a certificate's lower bound: ops one after the other, and legs between them in which so much has to move.

The longest path over the ops that follow one another, as in :mod:`hosim.analysis.critical_path`, on which a leg may stand between two ops
of a stream, or between one and time 0 or the end. A leg's time is what :func:`hosim.check_certificate.leg` proves with all weight on one
link. It is looked for in floats, and said in whole numbers: what the path proves is what the checker makes of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from hosim.check_certificate import Program, bound, ways

_EVERY_OP, _POINTS = 48, 12
"""Legs begin and end at every op of graphs of up to so many ops, of larger ones at so many."""

Place = int | None
"""An op, or the start or the end of the step."""


@dataclass(frozen=True, slots=True)
class _Prices:
    """All weight on one link, and the price of a byte of room in each tier, as far as that makes all tiers below ``level`` as dear."""

    link: int
    room: Mapping[str, Fraction]


def bound_path(given: Mapping[str, Any], repeats: bool) -> tuple[list[Any], int]:
    """The steps of a path, and the nanoseconds that it proves; ``given`` is that of a certificate."""
    search = _LongestPath(given, repeats)
    path = search.path()
    return path, max(0, bound({**given, "repeats": repeats, "path": path}, search.program))


class _LongestPath:
    """What has to move in each leg, by prices."""

    def __init__(self, given: Mapping[str, Any], repeats: bool) -> None:
        self.c = {**given, "repeats": repeats}
        self.ops, self.tensors = given["ops"], given["tensors"]
        self.program = Program(self.c)
        self.homes = dict(given["homes"])
        self._costs: dict[Any, float] = {}
        self._ways: dict[Any, dict[str, Fraction]] = {}
        self.prices = {tier: list(self._prices(tier)) for tier in dict.fromkeys([op["tier"] for op in self.ops])}

    def _way(self, link: int, end: str, back: bool) -> dict[str, Fraction]:
        key = link, end, back
        if key not in self._ways:
            self._ways[key] = ways(self.c, {link: Fraction(1)}, end, back)
        return self._ways[key]

    def _prices(self, end: str) -> Iterator[_Prices]:
        """With each link, no price for room, and those that make the tiers next to it as dear as those behind."""
        for link in range(len(self.c["links"])):
            each = self._way(link, end, False)
            for level in sorted(set(each.values())):
                yield _Prices(link, {tier: level - cost for tier, cost in each.items() if cost < level})

    def points(self) -> list[int]:
        """The ops at which most is in use, or to come back to, of as many equal parts."""
        count = len(self.ops)
        change = [0] * (count + 1)
        for t, users in self.program.users.items():
            first = 0 if users[0] not in self.program.writers[t] or t in self.program.versions[users[0]] else users[0]
            change[first] += self.tensors[t][1]
            change[count if self.tensors[t][2] else users[-1] + 1] -= self.tensors[t][1]
        if count <= _EVERY_OP:
            return list(range(count))
        held, every = 0, []
        for i, op in enumerate(self.ops):
            held += change[i]
            every.append(held + op["workspace"])
        parts = [range(count * k // _POINTS, count * (k + 1) // _POINTS) for k in range(_POINTS)]
        return [max(part, key=every.__getitem__) for part in parts]

    def _cost(self, prices: _Prices, t: int, end: str, back: bool, home: str | None, returns: str | None = None) -> float:
        """As the checker counts it, in nanoseconds: the way to ``end``, or back, the room, and the way from ``returns``."""
        key = id(prices), end, back, home, returns
        if key not in self._costs:
            each = [self._way(prices.link, end, back)]
            if returns is not None:
                each.append(self._way(prices.link, returns, True))
            tiers = [tier for tier in ([home] if home else self.c["tiers"]) if all([tier in way for way in each])]
            whole = [prices.room.get(tier, 0) + sum([way[tier] for way in each]) for tier in tiers]
            self._costs[key] = float(min(whole, default=0))
        size: int = self.tensors[t][1]
        return self._costs[key] * size

    def _less(self, prices: _Prices, at: Place) -> float:
        """What the room of all tiers is worth, but for what an op uses of it."""
        total = -sum([price * self.c["tiers"][tier]["bytes"] for tier, price in prices.room.items()], Fraction(0))
        if at is not None:
            used = self.ops[at]["workspace"] + sum([self.tensors[t][1] for t in self.program.uses[at]])
            total += prices.room.get(self.ops[at]["tier"], Fraction(0)) * used
        return float(total)

    def coming(self, a: Place, queue: Sequence[int], ends: set[Place], tried: Sequence[_Prices], whole: bool) -> dict[Place, list[float]]:
        """What has come for the ops of a stream from op ``a`` to each of ``ends`` takes at least, by prices."""
        ours, writers = set(queue), self.program.writers
        seen = set() if a is None else set(self.program.uses[a])
        sums = [self._less(prices, a) for prices in tried]
        found: dict[Place, list[float]] = {}
        for i in queue:
            if a is not None and i <= a:
                continue
            for t, version in self.program.versions[i].items():
                if t in seen or not (version == -1 or (a is not None and version <= a and version in ours)):
                    continue
                home = self.homes.get(t) if a is None else None
                last = whole and self.c["repeats"] and self.tensors[t][2] and writers[t]
                returns = self.ops[writers[t][-1]]["tier"] if last else None
                for k, prices in enumerate(tried):
                    sums[k] += self._cost(prices, t, self.ops[i]["tier"], False, home, returns)
            seen |= self.program.uses[i]
            if i in ends:
                found[i] = list(sums)
        found[None] = sums
        return found

    def going(self, b: int, queue: Sequence[int], starts: set[Place], tried: Sequence[_Prices]) -> dict[Place, list[float]]:
        """What the ops of a stream from each of ``starts`` to op ``b`` make and is needed later takes at least to be elsewhere at ``b``."""
        ours, program = set(queue), self.program
        sums = [self._less(prices, b) for prices in tried]
        found: dict[Place, list[float]] = {}
        for i in reversed(queue):
            if i in starts:
                found[i] = list(sums)
            if i >= b:
                continue
            for t in set(self.ops[i]["writes"]) - program.uses[b]:
                after = any([r > b and r in ours and program.versions[r].get(t) == i for r in program.users[t]])
                if after or (self.tensors[t][2] and program.writers[t][-1] == i):
                    for k, prices in enumerate(tried):
                        sums[k] += self._cost(prices, t, self.ops[i]["tier"], True, None)
        found[None] = sums
        return found

    def legs(self) -> dict[Place, dict[Place, tuple[float, _Prices, _Prices | None]]]:
        """By end and begin: what a leg takes, and the prices that prove it."""
        queues: dict[str, list[int]] = {}
        for i, op in enumerate(self.ops):
            queues.setdefault(op["stream"], []).append(i)
        points = self.points()
        found: dict[Place, dict[Place, tuple[float, _Prices, _Prices | None]]] = {}
        for queue in queues.values():
            places = {*points} & {*queue}
            tried = self.prices[self.ops[queue[0]]["tier"]]
            out = {b: self.going(b, queue, {*places}, tried) for b in places}
            for a in (None, *places):
                for b, come in self.coming(a, queue, {*places}, tried, False).items():
                    best = _best(tried, come, None if b is None else out[b][a])
                    if best is not None and (b, a) != (None, None):
                        found.setdefault(b, {})[a] = best
        every = [prices for each in self.prices.values() for prices in each]
        best = _best(every, self.coming(None, range(len(self.ops)), set(), every, True)[None], None)
        if best is not None:
            found.setdefault(None, {})[None] = best
        return found

    def path(self) -> list[Any]:
        """The steps of the longest path."""
        legs = self.legs()
        begun: dict[Place, tuple[float, Place, bool]] = {}

        def latest(i: Place, before: Sequence[int] | set[int]) -> tuple[float, Place, bool]:
            ends = [(begun[p][0] + self.ops[p]["ns"], -p, False) for p in before]
            for a, (took, _, _) in legs.get(i, {}).items():
                ends.append((took if a is None else begun[a][0] + self.ops[a]["ns"] + took, 1 if a is None else -a, True))
            at, place, moved = max(ends, default=(0.0, 1, False))
            return at, None if place == 1 else -place, moved

        for i in range(len(self.ops)):
            begun[i] = latest(i, self.program.before[i])
        begun[None] = latest(None, range(len(self.ops)))
        steps: list[Any] = []
        here: Place = None
        while True:
            _, earlier, moved = begun[here]
            if moved:
                steps.append(_leg(earlier, here, *legs[here][earlier][1:]))
            if earlier is None:
                return steps[::-1]
            steps.append(earlier)
            here = earlier


def _best(tried: Sequence[_Prices], come: Sequence[float], gone: Sequence[float] | None) -> tuple[float, _Prices, _Prices | None] | None:
    """The largest sum of what comes and what goes over one link, each by its best prices; ``None`` if nothing has to move."""
    most: dict[int, list[tuple[float, _Prices | None]]] = {}
    for k, (prices, ns) in enumerate(zip(tried, come, strict=True)):
        best = most.setdefault(prices.link, [(-1.0, None), (0.0, None)])
        best[0] = max(best[0], (ns, prices), key=lambda each: each[0])
        if gone is not None:
            best[1] = max(best[1], (gone[k], prices), key=lambda each: each[0])
    sums = [(came[0] + went[0], came[1], went[1]) for came, went in most.values()]
    ns, first, second = max(sums, key=lambda each: each[0], default=(0.0, None, None))
    return None if ns <= 0 or first is None else (ns, first, second)


def _leg(a: Place, b: Place, prices: _Prices, later: _Prices | None) -> dict[str, Any]:
    """A leg as a certificate says it."""
    weights = {str(prices.link): [1, 1]}
    return {"from": a, "to": b, "weights": weights, "room": _pairs(prices), "later": {} if later is None else _pairs(later)}


def _pairs(prices: _Prices) -> dict[str, list[int]]:
    return {tier: [price.numerator, price.denominator] for tier, price in prices.room.items()}
