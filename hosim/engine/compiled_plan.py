"""A plan compiled for replay: flat, integer-indexed data that the hot loop reads without looking anything up.

A tensor is *tracked* if its copies can differ from op to op: some cache op moves it, or it does not start in the device tier alone.
All others live and die with their ops, so that an op's allocation and release are numbers known beforehand. Most ops of most
plans touch no tracked tensor, and cost accordingly.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from hosim.analysis.happens_before import HappensBefore
from hosim.cache_plan import DETACH, PREFETCH, Plan
from hosim.costmodel.routes import route
from hosim.engine.ledger import composition_of
from hosim.errors import PlanError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.result import WORKSPACE

Waits = tuple[tuple[int, int], ...]
"""Producers on other streams, as (stream, how many of its ops must have ended)."""

Launch = tuple[int, int, Waits]
"""What the start of an op allocates (bytes, and as a composition) and waits for."""

Finish = tuple[int, int, tuple[int, ...]]
"""What the end of an op releases (bytes, and as a composition), and which tensors it perhaps releases, being used on several streams."""


SEVERAL = -2
"""In the place of a channel: a route over several."""


class Hop(NamedTuple):
    """What a cache op does, or one leg of its route: tiers and channel as positions. A detach has destination and channel -1.

    ``channel`` is :data:`SEVERAL` where no channel joins the tiers and a route of several does (:mod:`hosim.engine.multi_hop`).
    """

    op: str
    source: int
    destination: int
    channel: int


IssuedOp = tuple[int, int, Hop]
"""A cache op to issue: its position in the plan (-1: decided by a runtime policy), its tensor, what it does."""


@dataclass(frozen=True, slots=True)
class CompiledGraph:
    """What replaying a graph needs whatever the plan, with no tensor tracked. Lists are indexed by op or tensor position.

    ``dying`` are the tensors that the end of an op surely releases, ``users_left`` counts the users of those with users on several
    streams, ``allocates`` are the tensors that the start of an op allocates, and ``homes`` those that hold a valid copy at time 0 by
    default, by their home (``None``: the device tier).
    """

    sizes: tuple[int, ...]
    compositions: tuple[int, ...]
    stream_of: tuple[int, ...]
    queues: tuple[tuple[int, ...], ...]
    launch: list[Launch]
    finish: list[Finish]
    dying: dict[int, tuple[int, ...]]
    users_left: dict[int, int]
    allocates: dict[int, tuple[int, ...]]
    homes: dict[str | None, list[int]]


class TrackedOp(NamedTuple):
    """The tracked tensors of one op: read, written, output; released at its end surely (``dying``) or perhaps (``shared``).

    ``awaited`` are the cache ops that must have ended before it starts (rule 1).
    """

    awaited: tuple[int, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    outputs: tuple[int, ...]
    dying: tuple[int, ...]
    shared: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CompiledPlan:
    """A ``plan`` on a machine. ``launch`` and ``finish`` are the graph's, less what is tracked, which ``tracked_ops`` has.

    ``closing`` are the ops whose end may change something tracked.

    ``after[i]`` are the cache ops that the end of op i issues, in the plan's order. ``initial`` has the tracked tensors that are in some
    tiers at time 0, by the positions of these; ``initial_bytes`` and ``initial_composition`` are what the others take of the device tier
    then.
    """

    plan: Plan
    graph: CompiledGraph
    durations: tuple[int, ...]
    launch: list[Launch]
    finish: list[Finish]
    tracked: bytearray
    tracked_ops: dict[int, TrackedOp]
    closing: set[int]
    after: dict[int, list[IssuedOp]]
    initial: dict[frozenset[int], list[int]]
    initial_bytes: int
    initial_composition: int


def resolve_hop(op: str, source: str, destination: str | None, hardware: Hardware, where: str) -> Hop:
    """Resolve the tiers and the channel of a cache op; raises :class:`PlanError` with ``where`` if there are none."""
    tiers = hardware.tier_index
    for label, tier in (("from", source), ("to", destination)):
        if tier is not None and tier not in tiers:
            raise PlanError(f"no tier {tier!r} on {hardware.name} (tiers: {', '.join(tiers)})", where=f"{where}.{label}")
    if op == DETACH:
        return Hop(op, tiers[source], -1, -1)
    if destination is None:
        raise PlanError(f"a {op} needs a tier to copy to", where=f"{where}.to")
    channel = hardware.channel_between.get((source, destination))
    if channel is None:
        if route(hardware, source, destination, 0):
            return Hop(op, tiers[source], tiers[destination], SEVERAL)
        raise PlanError(f"no channels lead from {source} to {destination} on {hardware.name}", where=where)
    return Hop(op, tiers[source], tiers[destination], hardware.channels.index(channel))


def compile_graph(graph: Graph) -> CompiledGraph:
    """The part of a program that every plan of the graph shares; O(ops + uses). Call it through :meth:`Graph.derived`."""
    ops = graph.ops
    order = graph.derived(HappensBefore)
    waits = _waits(graph, order)
    dying: dict[int, list[int]] = {}
    shared: dict[int, list[int]] = {}
    users_left: dict[int, int] = {}
    allocates: dict[int, list[int]] = {}
    initial = set(graph.initial)
    for t, users in enumerate(graph.users):
        if not users:
            continue
        if t not in initial:
            allocates.setdefault(users[0], []).append(t)
        if graph.survives[t]:
            continue
        last = users[-1]
        if order.single or all([order.ended_by(u, last) for u in users]):
            dying.setdefault(last, []).append(t)  # whatever the timing, the last one listed is the last to end
        else:
            users_left[t] = len(users)
            for u in users:
                shared.setdefault(u, []).append(t)

    homes: dict[str | None, list[int]] = {}
    for t in graph.initial:
        homes.setdefault(graph.tensors[t].home, []).append(t)
    sizes = tuple([t.size_bytes for t in graph.tensors])
    known: dict[tuple[str, int], int] = {}  # equal compositions are one object: many tensors are alike
    compositions = tuple([known.setdefault((t.kind, t.size_bytes), composition_of(t.kind, t.size_bytes)) for t in graph.tensors])
    launch: list[Launch] = []
    finish: list[Finish] = []
    launches: dict[Launch, Launch] = {}  # so are equal launches and finishes: what few objects there are stay in the processor's cache
    finishes: dict[Finish, Finish] = {}
    for i, op in enumerate(ops):
        start: Launch = (*_total(allocates.get(i, ()), sizes, compositions, op.workspace_bytes), waits.get(i, ()))
        end: Finish = (*_total(dying.get(i, ()), sizes, compositions, op.workspace_bytes), tuple(shared.get(i, ())))
        launch.append(launches.setdefault(start, start))
        finish.append(finishes.setdefault(end, end))
    return CompiledGraph(
        sizes,
        compositions,
        tuple(order.stream_of),
        tuple(map(tuple, order.queues)),
        launch,
        finish,
        {i: tuple(ts) for i, ts in dying.items()},
        users_left,
        {i: tuple(ts) for i, ts in allocates.items()},
        homes,
    )


def _waits(graph: Graph, order: HappensBefore) -> dict[int, Waits]:
    """What each op waits for on other streams: producers that need not have ended when the op before on the same stream has."""
    waits: dict[int, Waits] = {}
    for i, producers in enumerate(graph.producers if not order.single else ()):
        known = order.known_before(i)
        missing: dict[int, int] = {}
        for p in producers:
            s, count = order.stream_of[p], order.place[p] + 1
            if known[s] < count:
                missing[s] = max(missing.get(s, 0), count)
        if missing:
            waits[i] = tuple(missing.items())
    return waits


def _total(tensors: Iterable[int], sizes: tuple[int, ...], compositions: tuple[int, ...], workspace: int = 0) -> tuple[int, int]:
    """Bytes of ``tensors`` and a workspace, and the same as a composition."""
    size, composition = workspace, composition_of(WORKSPACE, workspace) if workspace else 0
    for t in tensors:
        size += sizes[t]
        composition += compositions[t]
    return size, composition


def compile_plan(plan: Plan, hardware: Hardware, durations: tuple[int, ...], track_all: bool = False) -> CompiledPlan:
    """The program of a plan on a machine; raises :class:`PlanError` on unknown tiers.

    Costs O(cache ops + uses of tracked tensors) once the graph's part is there. ``track_all`` tracks every tensor: runtime policies may
    move any, and a recorded replay wants to see all.
    """
    graph, device = plan.graph, hardware.device_tier
    base = graph.derived(compile_graph)
    hops: dict[tuple[str, str, str | None], Hop] = {}
    after: dict[int, list[IssuedOp]] = {}
    copies: dict[int, list[tuple[int, int]]] = {}
    moving = set(range(len(graph.tensors)) if track_all else plan.initial)
    for k, c in enumerate(plan.cache_ops):
        position, t, destination = c.after, c.tensor, c.destination
        key = (c.op, c.source, destination)
        does = hops.get(key)
        if does is None:
            does = hops[key] = resolve_hop(*key, hardware, f"cache_ops[{k}]")
        if position in after:
            after[position].append((k, t, does))
        else:
            after[position] = [(k, t, does)]
        moving.add(t)
        if key[0] != DETACH:
            if t in copies:
                copies[t].append((position, k))
            else:
                copies[t] = [(position, k)]
    for home, tensors in base.homes.items():
        if home is not None and home != device:
            moving.update(tensors)
    tracked = bytearray(len(graph.tensors))
    for t in moving:
        tracked[t] = 1

    touched: dict[int, list[int]] = {i: [] for i in range(len(graph.ops))} if track_all else {}
    users = graph.users
    for t in moving:
        for i in users[t]:
            if i in touched:
                touched[i].append(t)
            else:
                touched[i] = [t]
    launch, finish = base.launch.copy(), base.finish.copy()
    needed = _awaited(plan, copies, device)
    tracked_ops: dict[int, TrackedOp] = {}
    closing: set[int] = set()
    none: tuple[int, ...] = ()
    ops, survives = graph.ops, graph.survives
    for i, ts in touched.items():
        op = ops[i]
        if len(ts) == 1 and survives[ts[0]] and not op.mutates and ts[0] not in op.outputs:
            # a parameter that is read: most of what most plans move
            tracked_ops[i] = TrackedOp(needed.get(i, none), (ts[0],), none, none, none, none)
        else:
            tracked_ops[i] = _track(graph, base, i, ts, needed.get(i, none), tracked, launch, finish)
            closing.add(i)
    initial = _initial(plan, hardware, base, tracked)
    resident = _total([t for tensors in base.homes.values() for t in tensors if not tracked[t]], base.sizes, base.compositions)
    return CompiledPlan(plan, base, durations, launch, finish, tracked, tracked_ops, closing, after, initial, *resident)


def _awaited(plan: Plan, copies: dict[int, list[tuple[int, int]]], device: str) -> dict[int, tuple[int, ...]]:
    """For each op the cache ops that must have ended before it starts (rule 1). ``copies`` are those of each tensor that copy it, by place.

    Of what the op reads, the last prefetch into the device tier that stands before it, not what is staged below. Of what it writes, all
    that stand between it and the op that wrote the tensor before, which has waited for the others.
    """
    needed: dict[int, tuple[int, ...]] = {}
    ops, users, cache_ops = plan.graph.ops, plan.graph.users, plan.cache_ops
    for t, listed in copies.items():
        listed.sort()
        arriving = [(after, k) for after, k in listed if cache_ops[k].destination == device and cache_ops[k].op == PREFETCH]
        written = 0
        for i in users[t]:
            op = ops[i]
            if t in op.outputs or t in op.mutates:
                passed = bisect_left(listed, (i, -1))
                if written < passed:
                    needed[i] = (*needed.get(i, ()), *[k for _, k in listed[written:passed]])
                written = passed
                continue
            if arriving and arriving[0][0] < i:
                k = arriving[0][1] if len(arriving) == 1 else arriving[bisect_left(arriving, (i, -1)) - 1][1]
                needed[i] = (*needed[i], k) if i in needed else (k,)
    return needed


def _track(
    graph: Graph,
    base: CompiledGraph,
    i: int,
    touched: list[int],
    needed: tuple[int, ...],
    tracked: bytearray,
    launch: list[Launch],
    finish: list[Finish],
) -> TrackedOp:
    """What op ``i`` does to the tracked tensors that it touches, taken out of its ``launch`` and ``finish``."""
    op = graph.ops[i]
    none: tuple[int, ...] = ()
    reads, outputs = tuple(touched), none
    if op.outputs:
        outputs = tuple([t for t in op.outputs if tracked[t]])
        if outputs:
            reads = tuple([t for t in op.reads if tracked[t]])
    writes = tuple([t for t in op.writes if tracked[t]]) if op.mutates else outputs
    dying, gone = base.dying.get(i, none), none
    if dying:
        gone = tuple([t for t in dying if tracked[t]])
    shared = finish[i][2]
    kept = tuple([t for t in shared if tracked[t]]) if shared else none
    if gone or kept:
        left = [t for t in dying if not tracked[t]]
        finish[i] = (*_total(left, base.sizes, base.compositions, op.workspace_bytes), tuple([t for t in shared if not tracked[t]]))
    if outputs:
        fresh = [t for t in base.allocates.get(i, none) if not tracked[t]]
        launch[i] = (*_total(fresh, base.sizes, base.compositions, op.workspace_bytes), launch[i][2])
    return TrackedOp(needed, reads, writes, outputs, gone, kept)


def _initial(plan: Plan, hardware: Hardware, base: CompiledGraph, tracked: bytearray) -> dict[frozenset[int], list[int]]:
    """The tracked tensors that are in some tiers at time 0, by the positions of these tiers."""
    index = hardware.tier_index
    by_names: dict[tuple[str, ...], list[int]] = {}
    own = plan.initial
    for home, listed in base.homes.items():
        by_names.setdefault((home or hardware.device_tier,), []).extend([t for t in listed if tracked[t] and t not in own])
    for t in sorted(own):
        by_names.setdefault(tuple(own[t]), []).append(t)
    initial: dict[frozenset[int], list[int]] = {}
    for where, tensors in by_names.items():
        if not tensors:
            continue
        for tier in where:
            if tier not in index:
                text = f"tensor {plan.graph.tensors[tensors[0]].name!r} starts in tier {tier!r}, which {hardware.name} has not"
                raise PlanError(f"{text} (tiers: {', '.join(index)})", where="initial")
        initial.setdefault(frozenset([index[tier] for tier in where]), []).extend(tensors)
    return initial
