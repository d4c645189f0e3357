"""A certificate: one file with a plan, the events of its replay, and a proof that no plan is
faster, which hosim/check_certificate.py checks.

docs/contract.md defines the proof. Every value is a whole number of at least 0, a name, or a
fraction as two numbers.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from hosim.analysis.costmodel import machine_of_copies
from hosim.analysis.lower_bounds import LowerBounds
from hosim.base.groups import grouped
from hosim.cache_plan import AT_START, Plan
from hosim.check_certificate import Program, bound, ways
from hosim.errors import InputError
from hosim.graph import Graph
from hosim.hardware import Channel, Fabric, Hardware
from hosim.jitter import Jitter
from hosim.processors import tier_of
from hosim.result import LEDGER, Result, Timeline, Transfer

# -- certificate path
# --------------------------------------------------------------------------------------------------
# The path that proves a certificate's lower bound: a sequence of ops, and legs between them in
# which some bytes have to move.
#
# The longest path over the ops that follow one another, as in
# :mod:`hosim.analysis.lower_bounds.bounds`, on which a leg may be between two ops of a stream, or
# between an op and time 0 or the end. A leg's time is what :func:`hosim.check_certificate.leg`
# proves with all weight on one link. The search uses floats, but the path is written in whole
# numbers: the checker computes what it proves.

_EVERY_OP, _POINTS = 48, 12
"""Legs begin and end at every op in graphs of at most ``_EVERY_OP`` ops, and at ``_POINTS`` ops in
larger ones.
"""

_SIZES = 3
"""If room is short by less than a tensor, prices are tried at which the smallest such tensors, one
after the other, pay for all of it: at most this many.
"""

Place = int | None
"""An op, or the start or the end of the step."""


class _MovingAlike(NamedTuple):
    """Tensors of one size that move to or from one tier: from ``home``, if they start there, and
    finally back from ``returns``.
    """

    size: int
    end: str
    home: str | None = None
    returns: str | None = None


def bound_path(given: Mapping[str, Any], plan: Mapping[str, Any]) -> tuple[list[Any], int]:
    """Return the steps of a path, and the nanoseconds that it proves; ``given`` and ``plan`` are
    those of a certificate.
    """
    search = _LongestPath({**given, **plan})
    path = search.path()
    return path, bound({**search.c, "path": path}, search.program)


class _LongestPath:
    """The search for the longest path. The time of a leg is a bound for the bytes that move in it,
    by prices for links and room.
    """

    def __init__(self, c: Mapping[str, Any]) -> None:
        self.c = c
        self.ops, self.tensors = c["ops"], c["tensors"]
        self.program = Program(self.c)
        self.homes = dict(c["homes"]) if c["at_home"] else {}
        self._ways: dict[Any, dict[str, Fraction]] = {}
        self._costs: dict[Any, dict[str, float]] = {}
        self.prices = {
            tier: list(self._prices(tier))
            for tier in dict.fromkeys([op["tier"] for op in self.ops])
        }

    def _way(self, link: int, end: str, back: bool) -> dict[str, Fraction]:
        key = link, end, back
        if key not in self._ways:
            self._ways[key] = ways(self.c, {link: Fraction(1)}, end, back)
        return self._ways[key]

    def _prices(self, end: str) -> Iterator[tuple[int, dict[str, Fraction]]]:
        """Yield, for each link, prices for room: none, and those that make the nearer tiers as
        expensive as those behind them.
        """
        for link in range(len(self.c["links"])):
            each = self._way(link, end, False)
            for level in sorted(set(each.values())):
                yield link, {tier: level - cost for tier, cost in each.items() if cost < level}

    def points(self) -> list[int]:
        """Return the ops with the most bytes in use or to be used again, one in each of ``_POINTS``
        equal parts; all ops of small graphs.
        """
        count = len(self.ops)
        change = [0] * (count + 1)
        for t, users in self.program.users.items():
            first = (
                0
                if users[0] not in self.program.writers[t] or t in self.program.versions[users[0]]
                else users[0]
            )
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

    def took(
        self,
        moving: Counter[_MovingAlike],
        link: int,
        room: Mapping[str, Fraction],
        back: bool,
        at: Place,
    ) -> float:
        """Return the nanoseconds that the checker computes for what moves, with all weight on one
        link and these prices for room.
        """
        short = self.short(moving, at)
        prices = {tier: float(price) for tier, price in room.items()}
        total = sum([price * short[tier] for tier, price in prices.items()])
        for alike, count in moving.items():
            worth = {tier: price * min(alike.size, short[tier]) for tier, price in prices.items()}
            ways = self._ways_of(link, alike, back).items()
            least = min(
                [alike.size * cost + worth.get(tier, 0.0) for tier, cost in ways], default=0.0
            )
            total += count * (least - sum(worth.values()))
        return total

    def _ways_of(self, link: int, alike: _MovingAlike, back: bool) -> dict[str, float]:
        """Return, by the tier in which such tensors may be, the time of a byte of them
        on a link.
        """
        key = link, back, alike[1:]
        if key not in self._costs:
            each = [self._way(link, alike.end, back)]
            if alike.returns is not None:
                each.append(self._way(link, alike.returns, True))
            tiers = [
                tier
                for tier in ([alike.home] if alike.home else self.c["tiers"])
                if all([tier in way for way in each])
            ]
            self._costs[key] = {tier: float(sum([way[tier] for way in each])) for tier in tiers}
        return self._costs[key]

    def short(self, moving: Counter[_MovingAlike], at: Place) -> dict[str, int]:
        """Return, by tier, the bytes of what moves that do not fit in it."""
        held = sum([alike.size * count for alike, count in moving.items()])
        short = {tier: held - room["bytes"] for tier, room in self.c["tiers"].items()}
        if at is not None:
            short[self.ops[at]["tier"]] += self.ops[at]["workspace"] + sum(
                [self.tensors[t][1] for t in self.program.uses[at]]
            )
        return {tier: max(0, size) for tier, size in short.items()}

    def best(
        self, moving: Counter[_MovingAlike], back: bool, at: Place
    ) -> dict[int, tuple[float, Mapping[str, Fraction]]]:
        """Return, by link, the longest time of what moves on it, and the prices that prove it."""
        found: dict[int, tuple[float, Mapping[str, Fraction]]] = {}
        short = self.short(moving, at)
        for end in dict.fromkeys([alike.end for alike in moving]):
            whole = {
                Fraction(alike.size, short[end]) for alike in moving if alike.size > short[end] > 0
            }
            for link, room in self.prices[end]:
                for times in (
                    (Fraction(1), *sorted(whole)[:_SIZES]) if end in room else (Fraction(1),)
                ):
                    asked = {
                        tier: price * (times if tier == end else 1) for tier, price in room.items()
                    }
                    found[link] = max(
                        found.get(link, (0.0, {})),
                        (self.took(moving, link, asked, back, at), asked),
                        key=lambda one: one[0],
                    )
        return found

    def coming(
        self, a: Place, queue: Sequence[int], ends: set[Place], whole: bool
    ) -> Iterator[tuple[Place, Counter[_MovingAlike]]]:
        """Yield the tensors that have to arrive for the ops of a stream from op ``a`` to each of
        ``ends``, and to the end of the step.
        """
        ours, writers = set(queue), self.program.writers
        seen = set() if a is None else set(self.program.uses[a])
        moving: Counter[_MovingAlike] = Counter()
        for i in queue:
            if a is not None and i <= a:
                continue
            for t, version in self.program.versions[i].items():
                if t not in seen and (
                    version == -1 or (a is not None and version <= a and version in ours)
                ):
                    goes_back = whole and self.c["repeats"] and self.tensors[t][2] and writers[t]
                    returns = self.ops[writers[t][-1]]["tier"] if goes_back else None
                    moving[
                        _MovingAlike(
                            self.tensors[t][1],
                            self.ops[i]["tier"],
                            self.homes.get(t) if a is None else None,
                            returns,
                        )
                    ] += 1
            seen |= self.program.uses[i]
            if i in ends:
                yield i, moving
        yield None, moving

    def going(
        self, b: int, queue: Sequence[int], starts: set[Place]
    ) -> Iterator[tuple[Place, Counter[_MovingAlike]]]:
        """Yield the tensors that the ops of a stream make from each of ``starts``, and from time 0,
        to op ``b``, and that are needed later.
        """
        ours, program = set(queue), self.program
        moving: Counter[_MovingAlike] = Counter()
        for i in reversed([i for i in queue if i < b]):
            if i in starts:
                yield i, moving
            for t in set(self.ops[i]["writes"]) - program.uses[b]:
                after = any(
                    [
                        r > b and r in ours and program.versions[r].get(t) == i
                        for r in program.users[t]
                    ]
                )
                if after or (self.tensors[t][2] and program.writers[t][-1] == i):
                    moving[_MovingAlike(self.tensors[t][1], self.ops[i]["tier"])] += 1
        yield None, moving

    def legs(self) -> dict[Place, dict[Place, tuple[float, dict[str, Any]]]]:
        """Return, by end and beginning, the time of a leg, and the leg in the form of a
        certificate.
        """
        queues = grouped((op["stream"], i) for i, op in enumerate(self.ops))
        points = self.points()
        found: dict[Place, dict[Place, tuple[float, dict[str, Any]]]] = {}
        for queue in queues.values():
            places: set[Place] = {*set(points).intersection(queue)}
            out = {
                b: {a: self.best(moving, True, b) for a, moving in self.going(b, queue, places)}
                for b in places
                if b is not None
            }
            begins: list[Place] = [None, *places]
            for a in begins:
                for b, moving in self.coming(a, queue, places, False):
                    if (a, b) != (None, None):
                        found.setdefault(b, {})[a] = _leg(
                            a, b, self.best(moving, False, a), {} if b is None else out[b][a]
                        )
        for _, moving in self.coming(None, range(len(self.ops)), set(), True):
            found.setdefault(None, {})[None] = _leg(None, None, self.best(moving, False, None), {})
        return found

    def path(self) -> list[Any]:
        """Return the steps of the longest path."""
        legs = self.legs()
        begun: dict[Place, tuple[float, Place, bool]] = {}

        def latest(i: Place, before: Sequence[int] | set[int]) -> tuple[float, Place, bool]:
            ends = [(begun[p][0] + self.ops[p]["ns"], -p, False) for p in before]
            for a, (took, _) in legs.get(i, {}).items():
                if took > 0:
                    ends.append(
                        (
                            took if a is None else begun[a][0] + self.ops[a]["ns"] + took,
                            1 if a is None else -a,
                            True,
                        )
                    )
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
                steps.append(legs[here][earlier][1])
            if earlier is None:
                return steps[::-1]
            steps.append(earlier)
            here = earlier


def _leg(
    a: Place, b: Place, come: Mapping[int, Any], gone: Mapping[int, Any]
) -> tuple[float, dict[str, Any]]:
    """Return the time of a leg over the link with the most to carry, and the leg in the form of a
    certificate.
    """
    none: tuple[float, Mapping[str, Fraction]] = (0.0, {})
    sums = {link: come.get(link, none)[0] + gone.get(link, none)[0] for link in (*come, *gone)}
    link = max(sums, key=sums.__getitem__, default=0)
    pairs = [
        {tier: [p.numerator, p.denominator] for tier, p in each.get(link, none)[1].items() if p}
        for each in (come, gone)
    ]
    return sums.get(link, 0.0), {
        "from": a,
        "to": b,
        "weights": {str(link): [1, 1]},
        "room": pairs[0],
        "later": pairs[1],
    }


VERSION = 1
"""The version of the format."""

DECIDED = -1
"""The position in the plan of a cache op that a runtime policy decided on."""


def check_certifiable(plan: Plan, allocator: str = LEDGER, jitter: Jitter | None = None) -> None:
    """Raise :class:`InputError` for a replay that a certificate cannot express: times that vary, or
    an allocator's blocks instead of bytes.
    """
    if jitter is not None and not jitter.is_none:
        raise InputError(
            "a certificate has no times that vary; leave the spreads of ops and transfers out",
            source=_source(plan),
        )
    if allocator != LEDGER:
        raise InputError(
            f"a certificate counts bytes, not the blocks of {allocator!r}; use the allocator "
            f"{LEDGER!r}",
            source=_source(plan),
        )


def to_certificate(
    plan: Plan, hardware: Hardware, result: Result, *, repeats: bool = True
) -> dict[str, Any]:
    """Return the certificate of a recorded replay, as data for JSON. Equal replays give equal
    certificates.

    ``repeats`` is true if the plan restores the tensors that docs/contract.md, rule 2, requires; a
    runtime policy need not. Raises :class:`InputError` for a result without a timeline, for a plan
    that does not fit, and as :func:`check_certifiable` does.

    >>> import json
    >>> from hosim.check_certificate import prove
    >>> from hosim.engine import replay
    >>> from hosim.graph import GraphBuilder
    >>> from hosim.io import load_hardware
    >>> from hosim.shipped import find_hardware
    >>> b = GraphBuilder("toy")
    >>> _ = b.tensor("w", 40, "parameter"), b.op("f", "matmul", inputs=["w"], duration_ns=50)
    >>> plan, toy = Plan(b.build()), load_hardware(find_hardware("toy"))
    >>> text = json.dumps(to_certificate(plan, toy, replay(plan, toy, record=True)))
    >>> print(prove(text).splitlines()[3])
    proved: plans of these ops in this order, which restore what they change, take 50 ns at least; the gap is 0 ns
    """
    check_certifiable(
        plan, LEDGER if result.allocator is None else result.allocator.name, result.jitter
    )
    timelines = [
        each.timeline for each in result.by_device or (result,) if each.timeline is not None
    ]
    if not (result.feasible and timelines):
        raise InputError(
            "expected a plan that fits, and a replay with record=True", source=_source(plan)
        )
    given, said = _given(plan, hardware, result.budget_bytes), _plan(plan, hardware, repeats)
    path, bound_ns = bound_path(given, said)
    return {
        "hosim_certificate": VERSION,
        "given": given,
        "given_sha256": hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest(),
        "plan": said,
        "devices": [_device(plan, timeline, hardware) for timeline in timelines],
        "claims": {
            "makespan_ns": result.makespan_ns,
            "peak_bytes": dict(result.peak_bytes),
            "lower_bound_ns": bound_ns,
            "path": path,
        },
    }


def _plan(plan: Plan, hardware: Hardware, repeats: bool) -> dict[str, Any]:
    """Return the plan's part of a certificate. ``at_home`` is true if the plan starts every tensor
    that the workload puts in a lower tier there.
    """
    homes, _ = plan.graph.derived_on(hardware, LowerBounds).given(homes_kept=True)
    return {
        "policy": plan.policy,
        "runtime": plan.runtime is not None,
        "repeats": repeats and plan.runtime is None,
        "at_home": bool(homes)
        and all([plan.initial.get(t, home) == home for t, home in homes.items()]),
        "initial": [
            [t, tier] for t, tiers in plan.residency(hardware.device_tier).items() for tier in tiers
        ],
        "cache_ops": [
            [x.op, x.tensor, x.source, x.destination, None if x.after == AT_START else x.after]
            for x in plan.cache_ops
        ],
    }


def _source(plan: Plan) -> str:
    return f"certificate of {plan.policy}"


def _given(plan: Plan, hardware: Hardware, budget_bytes: int) -> dict[str, Any]:
    """Return the premises of the proof: the ops and their tensors, and the machine."""
    graph = plan.graph
    machine = machine_of_copies(graph, hardware)
    devices = range(hardware.devices)

    def of(scope: str) -> list[int]:
        return [hardware.instance(scope, d) for d in devices]

    rooms = {tier.name: tier.capacity_bytes for tier in machine.tiers}
    rooms[hardware.device_tier] = min(rooms[hardware.device_tier], budget_bytes)
    links = [
        Fabric(c.name, c.bandwidth_bytes_per_s, (c.name,), machine.channel_scope(c))
        for c in machine.channels
    ]
    homes, durations = graph.derived_on(hardware, LowerBounds).given(homes_kept=True)
    return {
        "workload": graph.name,
        "hardware": hardware.name,
        "tensors": [[tensor.name, tensor.size_bytes, tensor.survives] for tensor in graph.tensors],
        "ops": _ops(graph, hardware, durations),
        "homes": [[t, home[0]] for t, home in homes.items()],
        "tiers": {
            name: {"bytes": room, "of": of(machine.tier_scope(name))}
            for name, room in rooms.items()
        },
        "channels": {
            c.name: {
                "from": c.source,
                "to": c.destination,
                "latency_ns": c.latency_ns,
                "engines": c.engines,
                **({} if c.queue is None else {"queue": machine.queue_of[c.name]}),
            }
            for c in machine.channels
        },
        "links": [
            {
                "name": link.name,
                "bytes_per_s": link.bandwidth_bytes_per_s,
                "carries": list(link.channels),
                "of": of(link.scope),
            }
            for link in (*links, *machine.fabrics)
        ],
    }


def _ops(graph: Graph, hardware: Hardware, durations: Sequence[int]) -> list[dict[str, Any]]:
    return [
        {
            "name": op.name,
            "stream": op.stream,
            "tier": tier_of(op, hardware),
            "ns": duration,
            "reads": list(op.reads),
            "writes": list(op.writes),
            "deps": list(op.deps),
            "workspace": op.workspace_bytes,
        }
        for op, duration in zip(graph.ops, durations, strict=True)
    ]


def _device(plan: Plan, timeline: Timeline, hardware: Hardware) -> dict[str, Any]:
    """Return the events on one device, and the copies that a runtime policy decided on there."""
    channels = {c.name: c for c in hardware.channels}
    planned = [(x.cache_op, x) for x in timeline.transfers if x.cache_op != DECIDED]
    moves: list[list[Any]] = []
    for made in _decided(plan, timeline, channels):
        ends = [channels[x.channel] for x in made]
        (source,) = {c.source for c in ends} - {c.destination for c in ends}
        (target,) = {c.destination for c in ends} - {c.source for c in ends}
        planned += [(len(plan.cache_ops) + len(moves), x) for x in made]
        moves.append(["copy", made[0].tensor, source, target, None])
    return {
        "ops": [list(at) for at in zip(timeline.op_start_ns, timeline.op_end_ns, strict=True)],
        "transfers": [[k, x.channel, x.bytes, x.start_ns, x.end_ns] for k, x in planned],
        "copies": [
            [r.tensor, r.tier, r.start_ns, r.end_ns]
            for r in timeline.residencies
            if r.tensor >= 0 and not r.staged
        ],
        "decided": moves,
    }


def _decided(
    plan: Plan, timeline: Timeline, channels: Mapping[str, Channel]
) -> Iterator[list[Transfer]]:
    """Yield the transfers of each copy that a runtime policy decided on: those of a tensor until
    all of it is in its target tier.
    """
    kept = grouped(((r.tensor, r.tier), r) for r in timeline.residencies if not r.staged)
    under_way: dict[int, list[Transfer]] = {}
    arrived: dict[int, int] = {}
    for x in sorted(timeline.transfers, key=lambda x: (x.start_ns, x.end_ns)):
        if x.cache_op == DECIDED:
            under_way.setdefault(x.tensor, []).append(x)
            target = channels[x.channel].destination
            if any(
                [
                    r.start_ns <= x.start_ns and x.end_ns <= r.end_ns
                    for r in kept.get((x.tensor, target), ())
                ]
            ):
                arrived[x.tensor] = arrived.get(x.tensor, 0) + x.bytes
                if arrived[x.tensor] >= plan.graph.tensors[x.tensor].size_bytes:
                    del arrived[x.tensor]
                    yield under_way.pop(x.tensor)
