"""The decisions that a plan may make on a small graph: every absence and every store that an
optimal plan could need.

The decisions are those of docs/contract.md and no others: where persistent tensors start (the
device tier, copies below, both), which gaps a tensor spends below, to which tiers each version of
its contents is stored, from which it comes back. Left out is only what no plan gains by: absences
that cover no op and no wait at which memory could run out, and moving contents that nobody reads
any more. Shares no code with the planner's own passes, so that it can judge them.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from hosim.analysis.costmodel.transfers import alone_ns, sent_bytes
from hosim.cache_plan import AT_START
from hosim.errors import InputError
from hosim.graph import Graph, Tensor
from hosim.hardware import Hardware

# -- the certain order of ops
# --------------------------------------------------------------------------------------------------
# The ops that have certainly ended when another one starts, whatever the timing: what several
# streams leave of the listed order.
#
# On one stream it is the listed order. On several it follows from producers and from the order of
# each stream (docs/contract.md, rule 1). Like all of the exact solver it shares no code with the
# planner.


class OpOrder:
    """The certain order of a graph's ops; the number of ops stands for the end of the step."""

    def __init__(self, graph: Graph) -> None:
        self.single = len(graph.streams) <= 1
        self.count = len(graph.ops)
        self._before: list[int] = []
        self.direct: list[tuple[int, ...]] = []
        last: dict[str, int] = {}
        for i, op in enumerate(graph.ops):
            direct = {*graph.producers[i]}
            if op.stream in last:
                direct.add(last[op.stream])
            last[op.stream] = i
            known = 0
            for p in direct:
                known |= self._before[p] | 1 << p
            self._before.append(known)
            self.direct.append(tuple(sorted(direct)))

    def precedes(self, i: int, j: int) -> bool:
        """Return whether op ``i`` has ended when op ``j`` starts, in every replay. :data:`AT_START`
        precedes all, and all precede the end.
        """
        if i == AT_START or j >= self.count:
            return i < self.count
        return j != AT_START and bool(self._before[j] >> i & 1)

    def ended_by(self, i: int, j: int) -> bool:
        """Return whether op ``i`` has ended when op ``j`` has."""
        return i == j or self.precedes(i, j)

    def last(self, ops: Sequence[int]) -> list[int]:
        """Those of ``ops`` that precede none of the others: when they have ended, all have."""
        return [i for i in ops if not any(self.precedes(i, j) for j in ops)]

    def first(self, ops: Sequence[int]) -> list[int]:
        """Those of ``ops`` that none of the others precedes."""
        return [i for i in ops if not any(self.precedes(j, i) for j in ops)]


def earliest_and_tails(order: OpOrder, durations: Sequence[int]) -> tuple[list[int], list[int]]:
    """By op, nanoseconds before which it cannot start, and nanoseconds that must pass after it has
    ended, if nothing but ops counted.
    """
    earliest = [0] * order.count
    tails = [0] * order.count
    for i, direct in enumerate(order.direct):
        earliest[i] = max((earliest[p] + durations[p] for p in direct), default=0)
    for i in reversed(range(order.count)):
        for p in order.direct[i]:
            tails[p] = max(tails[p], tails[i] + durations[i])
    return earliest, tails


# -- decisions
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JoinedTier:
    """A tier joined to the device tier. ``up`` and ``down`` are its channels' names, if there is
    one that way.
    """

    name: str
    capacity_bytes: int
    up: str | None
    down: str | None


@dataclass(frozen=True, slots=True)
class OptionalAbsence:
    """``tensor`` may be out of the device tier from the end of op ``after`` to the start of op
    ``before``.

    ``after`` is :data:`AT_START` at time 0, ``before`` the number of ops at the end of the step.
    ``version`` counts the writes until then. ``returns``: the next op reads it. ``dead``: the next
    op replaces its contents, so that nothing need be kept.
    """

    tensor: int
    after: int
    before: int
    version: int
    returns: bool
    dead: bool


@dataclass(frozen=True)
class Movable:
    """One tensor that may move: its possible absences in order, and what holds at both ends of the
    step.

    ``writers[v]`` is the op that writes version v (:data:`AT_START` for the contents of time 0) and
    ``rewriters[v]`` the next one to write (the number of ops if there is none). ``free_start``: the
    plan may choose where it is at time 0; ``home`` is where it is otherwise (None: nowhere, an op
    produces it).
    """

    tensor: int
    size_bytes: int
    first: int
    last: int
    absences: tuple[OptionalAbsence, ...]
    writers: tuple[int, ...]
    rewriters: tuple[int, ...]
    home: str | None
    free_start: bool
    persistent: bool
    survives: bool

    @property
    def starts(self) -> bool:
        """Return whether it holds contents at time 0."""
        return self.home is not None


@dataclass(frozen=True)
class Space:
    """Every tensor that may move, and those that stay in the device tier (``fixed``).

    A fixed one is (tensor, first op or AT_START, last op or the number of ops).
    """

    graph: Graph
    hardware: Hardware
    capacity_bytes: int
    durations: tuple[int, ...]
    lower: tuple[JoinedTier, ...]
    movables: tuple[Movable, ...]
    fixed: tuple[tuple[int, int, int], ...]
    idle: tuple[int, ...]
    """Persistent tensors at home in the device tier that no op uses: they start below, where a tier
    has room for everything.
    """
    most_bytes: tuple[int, ...]
    """By op: what the device tier would hold if every tensor were there whenever it could be."""

    @cached_property
    def lower_tight(self) -> tuple[str, ...]:
        """Tiers below that could not hold every tensor at once."""
        everything = sum(tensor.size_bytes for tensor in self.graph.tensors)
        return tuple(tier.name for tier in self.lower if tier.capacity_bytes < everything)

    @cached_property
    def movable(self) -> Mapping[int, Movable]:
        """The moves that are allowed, by tensor."""
        return {movable.tensor: movable for movable in self.movables}

    @cached_property
    def order(self) -> OpOrder:
        """Return the ops that have certainly ended when another one starts."""
        return OpOrder(self.graph)

    def uses_before(self, a: OptionalAbsence) -> tuple[int, ...]:
        """The users of an absence's tensor that the graph lists up to its begin: it is released
        when all of them have ended.
        """
        return tuple(u for u in self.graph.users[a.tensor] if u <= a.after)

    def uses_after(self, a: OptionalAbsence) -> tuple[int, ...]:
        """The users listed from its end on: all of them wait for its transfer back."""
        return tuple(u for u in self.graph.users[a.tensor] if u >= a.before)

    def detach_places(self, a: OptionalAbsence) -> list[int]:
        """The first ops after which a detach may be issued: all users so far have ended for
        certain, without any help by transfers.
        """
        if a.after == AT_START:
            return [AT_START]
        users, order = self.uses_before(a), self.order
        places = range(a.after, a.before)
        return order.first([x for x in places if all(order.ended_by(u, x) for u in users)])

    def inside(self, a: OptionalAbsence, i: int) -> bool:
        """Return whether op ``i`` lies between the uses around an absence, whatever the timing."""
        if self.order.single:
            return a.after < i < a.before
        precedes = self.order.precedes
        return all(precedes(u, i) for u in self.uses_before(a)) and all(
            precedes(i, u) for u in self.uses_after(a)
        )

    def surely_held(self, t: int, i: int) -> bool:
        """Return whether tensor ``t`` holds bytes while op ``i`` runs, in the device tier or,
        during a gap that has surely begun, elsewhere.
        """
        users = self.graph.users[t]
        if i in users:
            return True
        before = [u for u in users if self.order.precedes(u, i)]
        after = [u for u in users if self.order.precedes(i, u)]
        if len(before) + len(after) < len(users) or before != list(users[: len(before)]):
            return False
        return bool(before or t in self.graph.initial) and bool(
            after or self.graph.survives[t] or not users
        )

    def ends_ns(self, starts_ns: Sequence[int]) -> list[int]:
        """The end of each op, from when it starts."""
        return [start + ns for start, ns in zip(starts_ns, self.durations, strict=True)]

    def transfer_ns(self, channel: str, size_bytes: int) -> int:
        """Nanoseconds of a transfer alone on its channel."""
        return alone_ns(self.hardware, channel, size_bytes)

    @cached_property
    def horizon_ns(self) -> int:
        """Some optimal plan ends by then: when one thing happens at a time."""
        total = sum(self.durations)
        if not self.order.single:
            total *= 2  # not every order of things, one at a time, can be issued
        for movable in self.movables:
            for tier in self.lower:
                for channel, times in (
                    (tier.up, len(movable.absences)),
                    (tier.down, len(movable.writers)),
                ):
                    if channel is not None:
                        total += times * self.transfer_ns(channel, movable.size_bytes)
        return total


def space_of(
    graph: Graph, hardware: Hardware, durations: Sequence[int], capacity_bytes: int
) -> Space:
    """Every decision that an optimal plan could need; raises :class:`InputError` for what the exact
    model does not know.

    That is channels whose transfers share bandwidth.
    """
    lower, count = _lower(graph, hardware), len(graph.ops)
    initial = set(graph.initial)
    device = hardware.device_tier
    most, between = _most_bytes(graph, initial, bool(lower))
    everything, several = sum(x.size_bytes for x in graph.tensors), len(graph.streams) > 1
    workspaces = [
        max(op.workspace_bytes for op in graph.ops if op.stream == s) for s in graph.streams
    ]
    short = everything + sum(workspaces) > capacity_bytes
    roomy = any(tier.capacity_bytes >= everything for tier in lower)
    movables: list[Movable] = []
    fixed: list[tuple[int, int, int]] = []
    idle: list[int] = []
    for t, users in enumerate(graph.users):
        tensor = graph.tensors[t]
        home = (tensor.home or device) if t in initial else None
        _check_home(tensor, home, hardware, lower)
        if not users or not tensor.size_bytes:
            if home == device and tensor.persistent and roomy:
                idle.append(t)
            elif home == device:
                fixed.append((t, AT_START, count))
            if not users or home in (None, device):
                continue
        movable = _movable(graph, t, home, device)
        begin, end = _span(graph, t, home is not None)
        if several:  # which ops meet is not known: what may leave is useful where not all fits
            useful = set(movable.absences) if short else set()
        else:
            useful = {
                a
                for a in movable.absences
                if max([*most[a.after + 1 : a.before], *between[a.after + 1 : a.before + 1]])
                > capacity_bytes
            }
        ends = {a for a in movable.absences if a.after == AT_START or a.before == count}
        if home not in (None, device) or (movable.free_start and ends & useful):
            useful |= ends
        if not useful or not lower:
            fixed.append((t, begin, end))
            continue
        movables.append(
            replace(movable, absences=tuple([a for a in movable.absences if a in useful]))
        )
    return Space(
        graph,
        hardware,
        capacity_bytes,
        tuple(durations),
        lower,
        tuple(movables),
        tuple(fixed),
        tuple(idle),
        tuple(most),
    )


def _check_home(
    tensor: Tensor, home: str | None, hardware: Hardware, lower: Sequence[JoinedTier]
) -> None:
    device = hardware.device_tier
    if home not in (None, device, *[tier.name for tier in lower]):
        raise InputError(
            f"policy optimal: tensor {tensor.name!r} starts in {home}, which no channel joins "
            f"to {device} on {hardware.name}"
        )


def _most_bytes(graph: Graph, initial: Container[int], moves: bool) -> tuple[list[int], list[int]]:
    """The bytes at each op, and at each wait before one, if every tensor were there whenever it
    could be; without ``moves`` also those that no op uses.
    """
    count = len(graph.ops)
    most = [op.workspace_bytes for op in graph.ops]
    between = [0] * (count + 1)
    for t, users in enumerate(graph.users):
        if not users and moves:
            continue
        begin, end = _span(graph, t, t in initial)
        for i in range(max(begin, 0), min(end, count - 1) + 1):
            most[i] += graph.tensors[t].size_bytes
        for i in range(begin + 1, end + 1):
            between[i] += graph.tensors[t].size_bytes
    return most, between


def _lower(graph: Graph, hardware: Hardware) -> tuple[JoinedTier, ...]:
    device = hardware.device_tier
    joined = hardware.channel_between
    lower = []
    for tier in hardware.tiers:
        up, down = joined.get((tier.name, device)), joined.get((device, tier.name))
        for channel in (up, down):
            if channel is None:
                continue
            fabrics = [f for f in hardware.fabrics if channel.name in f.channels]
            demand = [
                sum(c.bandwidth_bytes_per_s for c in hardware.channels if c.name in f.channels)
                for f in fabrics
            ]
            shared = any(d > f.bandwidth_bytes_per_s for d, f in zip(demand, fabrics, strict=True))
            shared = shared or (
                any([f.collectives for f in fabrics])
                and bool(graph.derived_on(hardware, sent_bytes))
            )
            shared = shared or channel.queue is not None
            if channel.engines > 1 or shared:
                raise InputError(
                    "policy optimal knows channels whose transfers run one at a time at full "
                    f"rate; {channel.name} shares its bandwidth or its queue"
                )
        if up is not None or down is not None:
            lower.append(
                JoinedTier(
                    tier.name,
                    tier.capacity_bytes,
                    up.name if up else None,
                    down.name if down else None,
                )
            )
    return tuple(lower)


def _span(graph: Graph, t: int, starts: bool) -> tuple[int, int]:
    """First and last op position at which a tensor can hold bytes; AT_START and the number of ops
    for both ends of the step.
    """
    users, count = graph.users[t], len(graph.ops)
    begin = AT_START if starts else (users[0] if users else count)
    end = count if graph.survives[t] or not users else users[-1]
    return begin, end


def knows_all_starts(graph: Graph, hardware: Hardware) -> bool:
    """Return whether the space has every place where a plan may start a tensor, so that what is
    proved in it holds for all plans.

    It does not know that contents of the device tier which do not persist may start below, nor that
    what is written before it is read may start nowhere.
    """
    homes = {None, hardware.device_tier}
    return not any(
        [
            t not in graph.ops[graph.users[t][0]].reads
            or (graph.tensors[t].home in homes and not graph.tensors[t].persistent)
            for t in graph.initial
            if graph.users[t]
        ]
    )


def _movable(graph: Graph, t: int, home: str | None, device: str) -> Movable:
    users, count = graph.users[t], len(graph.ops)
    tensor = graph.tensors[t]
    writers = [AT_START] if home is not None else []
    writers += graph.writers[t]
    absences = []
    version = 0
    places = ([AT_START] if home is not None else []) + list(users)
    for after, before in zip(places, [*places[1:], count], strict=True):
        if after != AT_START and t in graph.ops[after].writes:
            version += 1
        if before < count or graph.survives[t]:
            reads = before < count and t in graph.ops[before].reads
            dead = before < count and not reads
            absences.append(
                OptionalAbsence(t, after, before, version - (home is None), reads, dead)
            )
    return Movable(
        tensor=t,
        size_bytes=tensor.size_bytes,
        first=users[0],
        last=users[-1],
        absences=tuple(absences),
        writers=tuple(writers),
        rewriters=(*writers[1:], count),
        home=home,
        free_start=bool(tensor.persistent) and home == device,
        persistent=bool(tensor.persistent),
        survives=graph.survives[t],
    )
