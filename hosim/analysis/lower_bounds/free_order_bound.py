"""A lower bound on the makespan of any plan that may also reorder a workload's ops and run some
again.

The bounds of :mod:`hosim.analysis.lower_bounds.bounds` hold for a graph in its listed order. Where
ops may trade places or be recomputed instead of
their outputs moved, only this is left: every op of the workload runs once, after those that it has
to wait for, one at a time on its stream; what is read and is not in the device tier at time 0 comes
in; and what the step writes of it goes back (docs/contract.md, rule 2).
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from hosim.analysis.costmodel import machine_of_copies
from hosim.analysis.costmodel.transfers import channel_bandwidth
from hosim.analysis.lower_bounds.any_processor import on_any_processor
from hosim.analysis.lower_bounds.linear_program import LinearProgram, SolverStopped, Term, whole_ns
from hosim.edits import why_once
from hosim.graph import Graph
from hosim.hardware import Channel, Hardware

# -- step traffic
# --------------------------------------------------------------------------------------------------
# The least traffic of one step over a machine's channels, for any order of its ops: a small
# linear program.
#
# The contents that a step reads lie in some tier at time 0, in its room, and come into the device
# tier from there if they are not there; what the step writes of them goes back to where it was
# (docs/contract.md, rule 2). The program chooses how many bytes lie where and which channels they
# take, between tiers below too, so that the last channel is done as soon as can be. The
# derivation is in docs/lower-bound.md.

_NS_PER_S = 10**9


@dataclass(frozen=True, slots=True)
class _Alike:
    """Tensors with contents at time 0 or at the end that may lie in the same tiers.

    ``needed``: the step reads their contents of time 0, ``read``: an op of the device does, first.
    ``kept``: they outlive the step, and if ``written`` ops of the device alone change them.
    """

    tiers: tuple[str, ...]
    needed: bool
    read: bool
    kept: bool
    written: bool


def step_traffic_ns(
    graph: Graph,
    hardware: Hardware,
    starts: Mapping[int, Sequence[str]],
    capacity_bytes: int,
    *,
    repeats: bool = True,
) -> int:
    """Nanoseconds below which no feasible replay of ``graph`` ends, whatever the order of its ops;
    0 if nothing has to cross.

    ``hardware`` has the memories as fabrics where copies share their bandwidth. Tensors that
    ``starts`` lists are in these tiers at time 0, all others wherever the plan likes; the device
    tier holds ``capacity_bytes``. ``repeats`` false is for plans that do not restore what rule 2
    wants restored.
    """
    sizes = _sizes(graph, hardware, starts, repeats)
    total, device = sum(sizes.values()), hardware.device_tier
    if not total or (total <= capacity_bytes and all([device in alike.tiers for alike in sizes])):
        return 0
    program = _StepProgram(hardware, sizes, total)
    program.rooms(capacity_bytes)
    program.paths()
    found = whole_ns(program.least_ns())
    # the bytes of no channel flow before its latency is over; what binds may be any channel, also
    # one between tiers below
    return found + min([c.latency_ns for c in hardware.channels], default=0) if found > 0 else 0


def _sizes(
    graph: Graph, hardware: Hardware, starts: Mapping[int, Sequence[str]], repeats: bool
) -> Counter[_Alike]:
    """Return the total bytes of tensors that are alike."""
    device = hardware.device_tier
    anywhere = tuple([tier.name for tier in hardware.tiers])
    sizes: Counter[_Alike] = Counter()
    for t in graph.initial:
        users = graph.users[t]
        if not users:
            continue
        first = graph.ops[users[0]]
        needed = t in first.reads
        kept = repeats and graph.survives[t]
        written = (
            kept and bool(graph.writers[t]) and not any([graph.ops[i].processor for i in users])
        )
        tiers = tuple(starts.get(t, ())) or anywhere
        if device in tiers and tiers is not anywhere:
            tiers = (device,)
        if needed or kept:
            sizes[_Alike(tiers, needed, needed and not first.processor, kept, written)] += (
                graph.tensors[t].size_bytes
            )
    return sizes


class _StepProgram:
    """Shares of the bytes of each kind by tier, and what crosses each channel into and out of the
    device tier, in parts of all bytes.
    """

    def __init__(self, hardware: Hardware, sizes: Mapping[_Alike, int], total: int) -> None:
        self.hardware, self.total = hardware, total
        self.program = LinearProgram()
        slowest = min([self._bytes_per_ns(channel) for channel in hardware.channels], default=1.0)
        self.step_ns = self.program.variable(
            0.0, 4.0 * len(hardware.channels) * hardware.devices * total / slowest + 1.0
        )
        self.parts = {alike: size / total for alike, size in sizes.items()}
        self.shares = {
            (alike, tier): self.program.variable() for alike in sizes for tier in alike.tiers
        }
        for alike in sizes:
            self.program.at_least([(self.shares[alike, tier], 1.0) for tier in alike.tiers], 1.0)

    def _bytes_per_ns(self, channel: Channel) -> float:
        return channel_bandwidth(self.hardware, channel.name) / _NS_PER_S

    def _less(self, tier: str, which: str) -> list[Term]:
        """Less what lies in a tier of the kinds that are ``needed``, ``read``, ``kept`` or
        ``written``.
        """
        return [
            (share, -self.parts[alike])
            for (alike, where), share in self.shares.items()
            if where == tier and getattr(alike, which)
        ]

    def rooms(self, capacity_bytes: int) -> None:
        """A tier has room for the tensors that lie in it at time 0, and at the end."""
        hardware = self.hardware
        for tier in hardware.tiers:
            device = tier.name == hardware.device_tier
            room = (
                capacity_bytes
                if device
                else tier.capacity_bytes / hardware.sharers(hardware.tier_scope(tier.name))
            )
            for which in ("needed", "kept"):
                self.program.at_least(self._less(tier.name, which), -room / self.total)

    def paths(self) -> None:
        """A tensor below that is read leaves its tier, one that is written arrives there, and
        channels and fabrics carry both.
        """
        hardware, program = self.hardware, self.program
        into = [channel for channel in hardware.channels if channel.source != hardware.device_tier]
        out = [
            channel for channel in hardware.channels if channel.destination != hardware.device_tier
        ]
        coming = {channel.name: program.variable() for channel in into}
        going = {channel.name: program.variable() for channel in out}
        for tier in [tier.name for tier in hardware.tiers if tier.name != hardware.device_tier]:
            left = [
                (coming[c.name], 1.0 if c.source == tier else -1.0)
                for c in into
                if tier in (c.source, c.destination)
            ]
            program.at_least([*left, *self._less(tier, "read")], 0.0)
            arrived = [
                (going[c.name], 1.0 if c.destination == tier else -1.0)
                for c in out
                if tier in (c.source, c.destination)
            ]
            program.at_least([*arrived, *self._less(tier, "written")], 0.0)
        carried = {
            c.name: [each[c.name] for each in (coming, going) if c.name in each]
            for c in hardware.channels
        }
        for channel in hardware.channels:
            sharers = hardware.sharers(hardware.channel_scope(channel))
            self._carry(carried[channel.name], self._bytes_per_ns(channel) / sharers)
        for fabric in hardware.fabrics:
            self._carry(
                [flow for name in fabric.channels for flow in carried[name]],
                fabric.bandwidth_bytes_per_s / _NS_PER_S / hardware.sharers(fabric.scope),
            )

    def _carry(self, flows: Sequence[int], bytes_per_ns: float) -> None:
        self.program.at_least(
            [(self.step_ns, 1.0), *[(flow, -self.total / bytes_per_ns) for flow in flows]], 0.0
        )

    def least_ns(self) -> float:
        """The bound without latencies; 0 if there is no solution, as it is not for the bound to say
        that nothing fits.
        """
        try:
            found = self.program.floor(self.step_ns)
        except SolverStopped:
            return 0.0
        return 0.0 if found is None else found[0]


def free_order_bound_ns(
    graph: Graph,
    durations: Sequence[int],
    hardware: Hardware,
    budget_bytes: int | None = None,
    starts: Mapping[int, Sequence[str]] = MappingProxyType({}),
    *,
    repeats: bool = True,
    compete: bool | None = None,
) -> int:
    """Nanoseconds below which no feasible replay of an edit of ``graph`` ends.

    Tensors of ``starts`` start in these tiers, all others wherever the plan likes. ``repeats``
    false is for plans that do not restore what rule 2 wants restored. ``compete`` says whether
    copies share the bandwidth of memories, as in :func:`hosim.engine.replay`.
    """
    loose = bool(graph.movable)
    if loose:
        graph, durations = on_any_processor(graph, durations, hardware)
    busy = dict.fromkeys(graph.streams, 0)
    ends: list[int] = []
    for i, op in enumerate(graph.ops.each()):
        busy[op.stream] += durations[i]
        ends.append(max((ends[p] for p in _always_before(graph, i)), default=0) + durations[i])
    capacity = (
        hardware.device.capacity_bytes
        if budget_bytes is None
        else min(budget_bytes, hardware.device.capacity_bytes)
    )
    traffic = step_traffic_ns(
        graph,
        machine_of_copies(graph, hardware, compete),
        starts,
        capacity,
        repeats=repeats and not loose,
    )
    return max([0, traffic, *busy.values(), *ends])


def _always_before(graph: Graph, i: int) -> set[int]:
    """The ops that end before op ``i`` starts whichever ops run again: those whose contents it
    reads, or whose tensors it writes.

    Where an op runs again, what it makes is a tensor of its own, which later readers use
    (docs/contract.md, rule 18): then an op that writes the first tensor anew need not wait for
    them.
    """
    op = graph.ops[i]
    before = set(op.deps)
    for t in op.inputs:
        before.update(_last_before(graph.writers[t], i))
    for t in op.writes:
        before.update(_last_before(graph.writers[t], i))
        for user in graph.users[t][: bisect_left(graph.users[t], i)]:
            maker = _last_before(graph.writers[t], user)
            if graph.survives[t] or not maker or why_once(graph, graph.ops[maker[0]]):
                before.add(user)
    return before


def _last_before(positions: Sequence[int], i: int) -> tuple[int, ...]:
    """The last of some ops before op ``i``, if there is one."""
    k = bisect_left(positions, i)
    return (positions[k - 1],) if k else ()
