"""The moves that ops on other processors force (docs/contract.md, rule 20): an op's inputs are
resident where its processor reads.

A tensor that some op uses on the processor of a tier below is copied there once it has been
written, and to the device tier once that processor has written it; where it starts in another tier
it comes some ops before its use. It leaves the device tier when no op of the device reads it before
it is written anew, and at the end lies where it lay at the start (rule 2). What only ops of the
device use is left to the policies (:mod:`hosim.planner.schedule.forced_moves`).
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from hosim.analysis import HappensBefore
from hosim.cache_plan import AT_START, DETACH, PREFETCH, STORE, CacheOp, Plan
from hosim.edits import REPEATABLE
from hosim.engine import replay, with_room
from hosim.errors import InfeasibleError, InputError
from hosim.graph import Graph, Op, Tensor
from hosim.hardware import Hardware
from hosim.planner.schedule.tiers_below import Route, copies_along, known_routes
from hosim.processors import tier_of
from hosim.result import Timeline
from hosim.timeline import occupancy, steps

AHEAD = 4
"""Ops of its stream by which a copy comes before its use, if it has been written long before."""


_ForcedOp = tuple[int, CacheOp]
"""A cache op behind the op that it is for."""


def forced_tensors(graph: Graph) -> tuple[int, ...]:
    """The tensors that ops on other processors than the device's use, ascending."""
    return tuple(sorted({t for i in graph.elsewhere for t in graph.ops[i].uses}))


def starts_elsewhere(graph: Graph, hardware: Hardware) -> dict[int, tuple[str, ...]]:
    """Return the tiers in which tensors that only other processors use start, if the workload
    leaves it free: those of their processor.
    """
    found = {}
    for t in graph.initial:
        tiers = {tier_of(graph.ops[i], hardware) for i in graph.users[t]}
        if (
            len(tiers) == 1
            and hardware.device_tier not in tiers
            and graph.tensors[t].home in (None, hardware.device_tier)
        ):
            found[t] = tuple(tiers)
    return found


def forced_moves(
    graph: Graph,
    hardware: Hardware,
    initial: Mapping[int, tuple[str, ...]] | None = None,
    ahead: int = AHEAD,
    stays: int | None = None,
) -> tuple[CacheOp, ...]:
    """The cache ops of the tensors that ops on other processors use, which are in ``initial``
    (default: at home) at time 0.

    What lives below comes ``ahead`` ops before its use, and stays on the device for a use that
    follows within ``stays`` ops of its stream (default: as many).
    Raises :class:`hosim.errors.InfeasibleError` where no channels lead from where a tensor is to
    where an op reads it.

    >>> from hosim.graph import GraphBuilder
    >>> from hosim.shipped import find_hardware
    >>> from hosim.io import load_hardware
    >>> b = GraphBuilder("toy")
    >>> _ = b.tensor("g", 40), b.op("f", "matmul", outputs=["g"], duration_ns=50)
    >>> _ = b.op("u", "optimizer", inputs=["g"], duration_ns=9, stream="ddr", processor="ddr")
    >>> [
    ...     (c.op, c.source, c.after)
    ...     for c in forced_moves(b.build(), load_hardware(find_hardware("toy")))
    ... ]
    [('store', 'hbm', 0), ('detach', 'hbm', 0)]
    """
    residency = Plan(graph, initial=dict(initial or {})).residency(hardware.device_tier)
    routes = known_routes(hardware)
    placed: list[_ForcedOp] = []
    for t in forced_tensors(graph):
        placed += _Itinerary(
            graph,
            hardware,
            routes,
            t,
            residency.get(t, ()),
            ahead,
            ahead if stays is None else stays,
        ).placed()
    placed.sort(key=lambda entry: (entry[1].after, entry[0]))
    return tuple([cache_op for _, cache_op in placed])


class _Itinerary:
    """The way of one tensor through its tiers, along the ops that use it."""

    def __init__(
        self,
        graph: Graph,
        hardware: Hardware,
        routes: Route,
        tensor: int,
        start: Sequence[str],
        ahead: int,
        stays: int,
    ) -> None:
        self.graph, self.order, self.end = graph, graph.derived(HappensBefore), len(graph.ops)
        self.device, self.routes, self.ahead, self.stays = (
            hardware.device_tier,
            routes,
            ahead,
            stays,
        )
        self.tensor, self.start, self.users = tensor, start, graph.users[tensor]
        self.tier = {i: tier_of(graph.ops[i], hardware) for i in self.users}
        self.valid = set(start)
        self.last = (
            AT_START  # by its end the last write is done, and every cache op so far is issued
        )
        self.since: list[int] = []  # users since the last write, that one among them

    def placed(self) -> Iterator[_ForcedOp]:
        """Its cache ops, each of them issued after the one before."""
        for k, i in enumerate(self.users):
            op, tier = self.graph.ops[i], self.tier[i]
            if tier not in self.valid and self.tensor in op.reads:
                yield from self._come(i, tier)
            if self.tensor in op.writes:
                self.last, self.since, self.valid = i, [], {tier}
            self.since.append(i)
            yield from self._leave(k)
        if self.graph.survives[self.tensor]:
            yield from self._return()

    def _come(self, i: int, tier: str) -> Iterator[_ForcedOp]:
        """A copy into ``tier`` for op ``i``: at once where the device has written it, else some ops
        ahead.
        """
        after = self.last
        if tier == self.device or self.device not in self.valid:
            queue, place = self.order.queues[self.order.stream_of[i]], self.order.place[i]
            wanted = queue[place - self.ahead - 1] if place > self.ahead else AT_START
            after = wanted if self.order.ended_by(self.last, wanted) else self.last
        yield from self._copy(i, tier, after, STORE if self.device in self.valid else PREFETCH)
        if tier != self.device and self.device in self.valid and not self._awaited(i):
            yield from self._drop(self.device, i)

    def _awaited(self, i: int) -> bool:
        """Whether, from op ``i`` on, an op of the device reads what is there now."""
        for j in self.users[bisect_left(self.users, i) :]:
            if self.tier[j] == self.device and self.tensor in self.graph.ops[j].reads:
                return True
            if self.tensor in self.graph.ops[j].writes:
                return False
        return self.device in self.start and self.graph.survives[self.tensor]

    def _leave(self, k: int) -> Iterator[_ForcedOp]:
        """Yield the op with which a tensor from a lower tier leaves the device tier after the
        ``k``-th user, unless one that soon follows on its stream reads it.
        """
        i = self.users[k]
        if (
            self.device in self.start
            or self.device not in self.valid
            or len(self.valid) == 1
            or self.tier[i] != self.device
        ):
            return
        for j in self.users[k + 1 :]:
            if self.tier[j] == self.device:
                place, stream = self.order.place, self.order.stream_of
                if stream[j] != stream[i] or place[j] - place[i] <= self.stays:
                    return
                break
        if k + 1 < len(self.users) or self.graph.survives[self.tensor]:
            yield from self._drop(self.device, i + 1)

    def _return(self) -> Iterator[_ForcedOp]:
        """Copies where the step began, and none elsewhere."""
        for tier in self.start:
            if tier not in self.valid:
                yield from self._copy(self.end, tier, self.last, STORE)
        for tier in sorted(self.valid - set(self.start)) if self.start else ():
            yield from self._drop(tier, self.end)

    def _copy(self, use: int, tier: str, after: int, op: str) -> Iterator[_ForcedOp]:
        hops = self.routes(sorted(self.valid), tier)
        for cache_op in copies_along(hops, op, self.tensor, self.device, after):
            yield use, cache_op
        self.last = after
        self.valid.add(tier)

    def _drop(self, tier: str, use: int) -> Iterator[_ForcedOp]:
        """A detach once the users of this copy have surely ended, if that is before the first user
        from ``use`` on.
        """
        k = bisect_left(self.users, use)
        before = self.users[k] if k < len(self.users) else self.end
        release = self.order.first_after(
            [*[i for i in self.since if self.tier[i] == tier], self.last], self.last
        )
        if (
            release is not None
            and release < before
            and (before == self.end or self.order.ended_by(release, before))
        ):
            yield use, CacheOp(DETACH, self.tensor, tier, None, release)
            self.last = release
            self.valid.discard(tier)


# -- around other processors
# --------------------------------------------------------------------------------------------------
# Plans around ops on other processors: a policy plans for the device's ops, and the moves that the
# others force are added.
#
# What other processors use moves as :mod:`hosim.planner.schedule.forced_moves` says, whatever the policy. A
# replay with these moves alone and room for everything shows when they happen. The policy gets a
# stand-in for the graph: ops of other processors use no tensors and take until what they write has
# arrived, and the bytes that forced moves leave in the device tier are workspace of the device's ops.
# So a policy that knows nothing of other processors keeps to the budget and moves the rest. Its own
# transfers may delay the forced ones, which the stand-in does not show: a plan that does not fit in
# the end is made again for a smaller budget.


Make = Callable[[Graph, Hardware, int], Plan]
"""A policy: graph, machine and budget to plan."""

_TRIES = 4
"""For how many budgets a plan is made, each smaller by a twentieth."""


def planned_around(
    graph: Graph,
    hardware: Hardware,
    budget_bytes: int,
    make: Make,
    initial: Mapping[int, tuple[str, ...]] | None = None,
    ahead: int = AHEAD,
    stays: int | None = None,
) -> Plan:
    """The plan of a policy for the device's ops, and the moves that ops on other processors force.

    ``initial`` is where tensors that those use are at time 0 (default: at home), ``ahead`` and
    ``stays`` as in :func:`~hosim.planner.schedule.forced_moves.forced_moves`. Raises
    :class:`hosim.errors.InfeasibleError` where a tensor cannot get where it has to be, or no plan
    fits.
    """
    initial = dict(initial or {})
    moves = forced_moves(graph, hardware, initial, ahead, stays)
    timeline = _alone(graph, hardware, initial, moves)
    standin = _standin(graph, hardware, timeline)
    room = _room_left(hardware, timeline)
    most = max([op.workspace_bytes for op in standin.ops], default=0)
    if most > budget_bytes:
        raise InfeasibleError(
            f"out of memory: what other processors exchange with the device takes {most:,} B of "
            f"{hardware.device_tier}; "
            f"the budget is {budget_bytes:,} B"
        )
    smaller = budget_bytes
    for _ in range(_TRIES):
        plan = make(standin, room, smaller)
        if plan.edits is not None:
            raise InputError(
                "plans with ops on other processors keep the order of ops", source=graph.name
            )
        joined = _joined(graph, plan, initial, moves)
        if replay(joined, hardware, budget_bytes).feasible:
            break
        smaller -= smaller // 20
    return joined


def _joined(
    graph: Graph, plan: Plan, initial: Mapping[int, tuple[str, ...]], moves: Sequence[CacheOp]
) -> Plan:
    """The plan for the whole graph; of what is issued at the same time, the forced moves come
    first.
    """
    cache_ops = sorted([*moves, *plan.cache_ops], key=lambda cache_op: cache_op.after)
    return Plan(graph, plan.policy, tuple(cache_ops), {**plan.initial, **initial})


def _alone(
    graph: Graph,
    hardware: Hardware,
    initial: Mapping[int, tuple[str, ...]],
    moves: Sequence[CacheOp],
) -> Timeline:
    """Return the outcome if nothing but the forced moves happens, and everything else is in the
    device tier.
    """
    forced = set(forced_tensors(graph))
    resident = {t: (hardware.device_tier,) for t in graph.initial if t not in forced}
    plan = Plan(graph, "forced", tuple(moves), {**resident, **initial})
    result = replay(plan, with_room(graph, hardware), record=True)
    if result.timeline is None or result.error is not None:
        raise InfeasibleError(
            f"the moves that ops on other processors force do not end: {result.error}"
        )
    return result.timeline


def _standin(graph: Graph, hardware: Hardware, timeline: Timeline) -> Graph:
    """The graph of the device's ops, with the same positions of ops and tensors."""
    forced = frozenset(forced_tensors(graph))
    held = steps(
        (r.start_ns, r.end_ns, r.bytes)
        for r in timeline.residencies
        if r.tier == hardware.device_tier and r.tensor in forced
    )
    arrived = _arrivals(graph, hardware, timeline)
    main = next((op.stream for op in graph.ops if not op.processor), "")
    ended: dict[str, int] = {}  # by the stream of another processor
    ops = []
    for i, op in enumerate(graph.ops):
        before = tuple(graph.producers[i])
        if op.processor:
            ready = max([ended.get(op.stream, 0), *[arrived[p] for p in before]])
            ended[op.stream] = max(arrived[i], ready)
            ops.append(
                Op(
                    op.name,
                    op.kind,
                    deps=before,
                    stream=op.stream,
                    duration_ns=ended[op.stream] - ready,
                    dtype=op.dtype,
                )
            )
            continue
        beside = (
            held.largest(timeline.op_start_ns[i], timeline.op_end_ns[i]) if op.stream == main else 0
        )
        workspace = op.workspace_bytes + beside
        ops.append(replace(op.without(forced), deps=before, workspace_bytes=workspace))
    tensors = [Tensor(x.name, 0) if t in forced else x for t, x in enumerate(graph.tensors)]
    meta = {key: value for key, value in graph.meta.items() if key != REPEATABLE}
    return Graph(graph.name, tuple(tensors), tuple(ops), meta)


def _arrivals(graph: Graph, hardware: Hardware, timeline: Timeline) -> Sequence[int]:
    """Return the instant when each op has ended and, of an op on another processor, what it has
    written has come to the device tier, if it does.
    """
    into = {
        channel.name for channel in hardware.channels if channel.destination == hardware.device_tier
    }
    copies: dict[int, list[tuple[int, int]]] = {}
    for x in timeline.transfers:
        if x.channel in into:
            copies.setdefault(x.tensor, []).append((x.issue_ns, x.end_ns))
    arrived = list(timeline.op_end_ns)
    for i in graph.elsewhere:
        for t in graph.ops[i].writes:
            following = [end for issue, end in copies.get(t, ()) if issue >= timeline.op_end_ns[i]]
            arrived[i] = max(arrived[i], min(following, default=0))
    return arrived


def _room_left(hardware: Hardware, timeline: Timeline) -> Hardware:
    """The machine with what forced moves leave of the tiers below the device."""
    tiers = []
    for tier in hardware.tiers:
        most = (
            0
            if tier.name == hardware.device_tier
            else max(occupancy(timeline, tier.name).values, default=0)
        )
        tiers.append(replace(tier, capacity_bytes=max(0, tier.capacity_bytes - most)))
    return replace(hardware, tiers=tuple(tiers))
