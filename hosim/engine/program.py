"""A plan compiled for replay: flat, integer-indexed arrays that the hot loop reads without looking anything up.

A tensor is *tracked* if its copies can differ from op to op: some cache op moves it, or it does not start in the device tier alone.
All others live and die with their ops, so that an op's allocation and release are numbers known beforehand. Most ops of most
plans touch no tracked tensor, and cost accordingly.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hosim.errors import PlanError
from hosim.graph import KINDS, Graph
from hosim.hardware import Hardware
from hosim.plan import AT_START, DETACH, PREFETCH, Plan
from hosim.result import WORKSPACE

LEDGER_KINDS = (*KINDS, WORKSPACE)
"""Kinds by which occupancy is composed; the last one is the workspace of running ops."""

Amounts = tuple[tuple[int, int], ...]
"""Bytes by kind, as (kind position, bytes)."""


class Way(NamedTuple):
    """What a cache op does: tiers and channel as positions; ``destination`` and ``channel`` are -1 for a detach."""

    op: str
    source: int
    destination: int
    channel: int


@dataclass(frozen=True, slots=True)
class GraphProgram:
    """What replaying a graph needs whatever the plan, with no tensor tracked. Lists are indexed by op or tensor position.

    ``launch[i]`` is ``(bytes, amounts, waits)`` that starting op i allocates and waits for; ``waits`` are ``(stream, ops of it that must have ended)`` for
    producers on other streams. ``finish[i]`` is ``(bytes, amounts, shared)`` that its end releases; ``shared`` are the tensors it uses that
    have users on several streams: the last of these to end releases them.
    ``dying`` are the tensors that the end of an op surely releases, ``allocates`` those that its start allocates, and ``homes`` those that hold a valid copy
    at time 0 by default (``None``: in the device tier).
    """

    sizes: tuple[int, ...]
    kinds: tuple[int, ...]
    stream_of: tuple[int, ...]
    queues: tuple[tuple[int, ...], ...]
    launch: list[tuple[int, Amounts, Amounts]]
    finish: list[tuple[int, Amounts, tuple[int, ...]]]
    dying: dict[int, tuple[int, ...]]
    users_left: dict[int, int]
    allocates: dict[int, tuple[int, ...]]
    homes: dict[int, str | None]


class TrackedOp(NamedTuple):
    """The tracked tensors of one op: read, written, output; released at its end surely (``dying``) or perhaps (``shared``).

    ``prefetches`` are the cache ops that must have ended before it starts (rule 1).
    """

    prefetches: tuple[int, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    outputs: tuple[int, ...]
    dying: tuple[int, ...]
    shared: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """A plan on a machine. ``launch`` and ``finish`` are the graph's, less what is tracked, which ``tracked_ops`` has.

    Cache op k moves tensor ``moved[k]`` the way ``ways[k]``; ``after[i]`` are the cache ops that the end of op i issues, in the plan's order. ``initial`` has the tier positions at time 0 of tracked tensors, and
    ``initial_amounts`` what the others take of the device tier then.
    """

    graph: GraphProgram
    durations: tuple[int, ...]
    launch: list[tuple[int, Amounts, Amounts]]
    finish: list[tuple[int, Amounts, tuple[int, ...]]]
    tracked: bytearray
    tracked_ops: dict[int, TrackedOp]
    moved: list[int]
    ways: list[Way]
    after: dict[int, list[int]]
    initial: dict[int, tuple[int, ...]]
    initial_amounts: Amounts


def way(op: str, source: str, destination: str | None, hardware: Hardware, where: str) -> Way:
    """Resolve the tiers and the channel of a cache op; raises :class:`PlanError` with ``where`` if there are none."""
    tiers = hardware.tier_index
    for label, tier in (("from", source), ("to", destination)):
        if tier is not None and tier not in tiers:
            raise PlanError(f"no tier {tier!r} on {hardware.name} (tiers: {', '.join(tiers)})", where=f"{where}.{label}")
    if op == DETACH:
        return Way(op, tiers[source], -1, -1)
    if destination is None:
        raise PlanError(f"a {op} needs a tier to copy to", where=f"{where}.to")
    channel = hardware.channel_between.get((source, destination))
    if channel is None:
        raise PlanError(f"no channel joins {source} to {destination} on {hardware.name}", where=where)
    return Way(op, tiers[source], tiers[destination], hardware.channels.index(channel))


def compile_graph(graph: Graph) -> GraphProgram:
    """The part of a program that every plan of the graph shares; O(ops + uses). Call it through :meth:`Graph.derived`."""
    ops = graph.ops
    streams = {name: s for s, name in enumerate(graph.streams)}
    stream_of = tuple([streams[op.stream] for op in ops])
    queues: list[list[int]] = [[] for _ in streams]
    place = []
    for i, s in enumerate(stream_of):
        place.append(len(queues[s]))
        queues[s].append(i)

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
        if len(streams) == 1 or len({stream_of[u] for u in users}) == 1:
            dying.setdefault(users[-1], []).append(t)
        else:
            users_left[t] = len(users)
            for u in users:
                shared.setdefault(u, []).append(t)

    kind_index = {kind: k for k, kind in enumerate(LEDGER_KINDS)}
    sizes = tuple([t.size_bytes for t in graph.tensors])
    kinds = tuple([kind_index[t.kind] for t in graph.tensors])
    launch, finish = [], []
    for i, op in enumerate(ops):
        waits: dict[int, int] = {}
        if len(streams) > 1:
            for p in graph.producers[i]:
                s = stream_of[p]
                if s != stream_of[i]:
                    waits[s] = max(waits.get(s, 0), place[p] + 1)
        taken = _amounts(allocates.get(i, ()), sizes, kinds, op.workspace_bytes)
        given = _amounts(dying.get(i, ()), sizes, kinds, op.workspace_bytes)
        launch.append((sum([b for _, b in taken]), taken, tuple(waits.items())))
        finish.append((sum([b for _, b in given]), given, tuple(shared.get(i, ()))))
    return GraphProgram(
        sizes,
        kinds,
        stream_of,
        tuple(map(tuple, queues)),
        launch,
        finish,
        {i: tuple(ts) for i, ts in dying.items()},
        users_left,
        {i: tuple(ts) for i, ts in allocates.items()},
        {t: graph.tensors[t].home for t in graph.initial},
    )


def _amounts(tensors: Iterable[int], sizes: tuple[int, ...], kinds: tuple[int, ...], workspace: int = 0) -> Amounts:
    amounts: dict[int, int] = {}
    for t in tensors:
        if sizes[t]:
            amounts[kinds[t]] = amounts.get(kinds[t], 0) + sizes[t]
    if workspace:
        amounts[len(LEDGER_KINDS) - 1] = workspace
    return tuple(amounts.items())


def compile_plan(plan: Plan, hardware: Hardware, durations: tuple[int, ...], track_all: bool = False) -> Program:
    """The program of a plan on a machine; raises :class:`PlanError` on unknown tiers.

    Costs O(cache ops + uses of tracked tensors) once the graph's part is there. ``track_all`` tracks every tensor: runtime policies may
    move any, and a recorded replay wants to see all.
    """
    graph = plan.graph
    base = graph.derived(compile_graph)
    users = graph.users
    tracked = bytearray(b"\1" if track_all else b"\0") * len(graph.tensors)

    ways: list[Way] = []
    known: dict[tuple[str, str, str | None], Way] = {}
    after: dict[int, list[int]] = {}
    prefetches: dict[int, list[tuple[int, int]]] = {}
    for k, c in enumerate(plan.cache_ops):
        op, position, t = c.op, c.after, c.tensor
        key = (op, c.source, c.destination)
        if key not in known:
            known[key] = way(*key, hardware, f"cache_ops[{k}]")
        ways.append(known[key])
        if position in after:
            after[position].append(k)
        else:
            after[position] = [k]
        tracked[t] = 1
        if op == PREFETCH:
            if t in prefetches:
                prefetches[t].append((position, k))
            else:
                prefetches[t] = [(position, k)]
    for listed in prefetches.values():
        if len(listed) > 1:
            listed.sort()

    device = hardware.device_tier
    for t, home in base.homes.items():
        if home is not None and home != device:
            tracked[t] = 1
    for t in plan.initial:
        tracked[t] = 1
    moving = [t for t, flag in enumerate(tracked) if flag]

    launch, finish = base.launch.copy(), base.finish.copy()
    tracked_ops: dict[int, TrackedOp] = {}
    sizes, kinds = base.sizes, base.kinds
    none: tuple[int, ...] = ()
    for i in range(len(graph.ops)) if track_all else sorted({u for t in moving for u in users[t]}):
        op = graph.ops[i]
        reads = tuple([t for t in op.reads if tracked[t]])
        needs = none
        for t in reads:
            if t in prefetches:
                before = [k for position, k in prefetches[t] if position < i]
                if before:
                    needs = (*needs, before[-1])
        outputs = tuple([t for t in op.outputs if tracked[t]])
        writes = outputs if not op.mutates else tuple([t for t in op.writes if tracked[t]])
        dying = base.dying.get(i, none)
        gone = tuple([t for t in dying if tracked[t]])
        size, amounts, shared = finish[i]
        kept = tuple([t for t in shared if tracked[t]]) if shared else none
        tracked_ops[i] = TrackedOp(needs, reads, writes, outputs, gone, kept)
        if gone or kept:
            given = _amounts([t for t in dying if not tracked[t]], sizes, kinds, op.workspace_bytes)
            finish[i] = (sum([b for _, b in given]), given, tuple([t for t in shared if not tracked[t]]))
        if outputs:
            taken = _amounts([t for t in base.allocates.get(i, none) if not tracked[t]], sizes, kinds, op.workspace_bytes)
            launch[i] = (sum([b for _, b in taken]), taken, launch[i][2])
    return Program(
        base,
        durations,
        launch,
        finish,
        tracked,
        tracked_ops,
        [c.tensor for c in plan.cache_ops],
        ways,
        after,
        _initial(plan, hardware, base, moving),
        _amounts([t for t in graph.initial if not tracked[t]], sizes, kinds),
    )


def _initial(plan: Plan, hardware: Hardware, base: GraphProgram, moving: list[int]) -> dict[int, tuple[int, ...]]:
    """Tier positions at time 0 of the tracked tensors that have any."""
    index = hardware.tier_index
    initial: dict[int, tuple[int, ...]] = {}
    for t in moving:
        if t in plan.initial:
            where: Sequence[str] = plan.initial[t]
        elif t in base.homes:
            where = (base.homes[t] or hardware.device_tier,)
        else:
            continue
        for tier in where:
            if tier not in index:
                name = plan.graph.tensors[t].name
                known = ", ".join(index)
                raise PlanError(f"tensor {name!r} starts in tier {tier!r}, which {hardware.name} has not (tiers: {known})", where="initial")
        initial[t] = tuple([index[tier] for tier in where])
    return initial


def at_start(program: Program) -> list[int]:
    """Cache ops that are issued at time 0, in the plan's order."""
    return program.after.get(AT_START, [])
