"""Plans around ops on other processors: a policy plans for the device's ops, and the moves that the
others force are added.

What other processors use moves as :mod:`hosim.planner.schedule.forced_moves` says, whatever the policy. A
replay with these moves alone and room for everything shows when they happen. The policy gets a
stand-in for the graph: ops of other processors use no tensors and take until what they write has
arrived, and the bytes that forced moves leave in the device tier are workspace of the device's ops.
So a policy that knows nothing of other processors keeps to the budget and moves the rest. Its own
transfers may delay the forced ones, which the stand-in does not show: a plan that does not fit in
the end is made again for a smaller budget.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from hosim.cache_plan import CacheOp, Plan
from hosim.edits import REPEATABLE
from hosim.engine import replay, with_room
from hosim.errors import InfeasibleError, InputError
from hosim.graph import Graph, Op, Tensor
from hosim.hardware import Hardware
from hosim.planner.schedule.forced_moves import AHEAD, forced_moves, forced_tensors
from hosim.result import Timeline
from hosim.timeline import occupancy, steps

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
