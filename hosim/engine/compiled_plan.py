"""A plan compiled for replay: flat, integer-indexed data that the hot loop reads without looking anything up.

A tensor is *tracked* if its copies can differ from op to op: some cache op moves it, or it does not start in the device tier alone.
All others live and die with their ops, so that an op's allocation and release are numbers known beforehand. Most ops of most
plans touch no tracked tensor, and cost accordingly.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

from hosim.cache_plan import DETACH, PREFETCH, CacheOp, Plan
from hosim.engine.compiled_graph import CompiledGraph, Finish, Launch, Step, allocated, compile_graph, dying, total
from hosim.engine.hops import Hop, resolve_hop
from hosim.errors import PlanError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.processors import tiers_elsewhere

ABSENT, PENDING, VALID = 0, 1, 2
"""State of a tracked tensor's copy in a tier: no bytes held; bytes held but being written; valid."""

IssuedOp = tuple[int, int, Hop]
"""A cache op to issue: its position in the plan (-1: decided by a runtime policy), its tensor, what it does."""


class TrackedOp(NamedTuple):
    """The tracked tensors of one op: read, written, output; released at its end surely (``dying``) or perhaps (``shared``).

    ``awaited`` are the cache ops that must have ended before it starts (rule 1). ``tier`` is the position of the tier that it reads and
    writes. Of an op that runs on another processor than the device (rule 20) every tensor is tracked.
    """

    awaited: tuple[int, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    outputs: tuple[int, ...]
    dying: tuple[int, ...]
    shared: tuple[int, ...]
    tier: int


@dataclass(frozen=True, slots=True)
class CompiledPlan:
    """A plan on a machine: its ``cache_ops``, and whether a runtime policy ``decides``.

    ``launch`` and ``finish`` are the graph's, less what is tracked, which ``tracked_ops`` has; ``closing`` are the ops whose end may change
    something tracked. ``steps`` are the graph's where neither op touches anything tracked, and the first one issues nothing.

    ``after[i]`` are the cache ops that the end of op i issues, in the plan's order. ``initial`` has the tracked tensors that are in some
    tiers at time 0, by the positions of these, and ``initial_copies`` the same as states by tier and tensor; ``initial_below`` counts those
    that are not in the device tier. ``initial_bytes`` and ``initial_composition`` are what the others take of the device tier then.
    """

    cache_ops: tuple[CacheOp, ...]
    decides: bool
    graph: CompiledGraph
    durations: tuple[int, ...]
    launch: list[Launch]
    finish: list[Finish]
    steps: list[Step | None]
    tracked: bytearray
    tracked_ops: dict[int, TrackedOp]
    closing: set[int]
    after: dict[int, Sequence[IssuedOp]]
    initial: dict[frozenset[int], list[int]]
    initial_copies: list[bytes]
    initial_below: bytes
    initial_bytes: int
    initial_composition: int


def compile_plan(plan: Plan, hardware: Hardware, durations: tuple[int, ...], track_all: bool = False) -> CompiledPlan:
    """The program of a plan on a machine; raises :class:`PlanError` on unknown tiers.

    Costs O(cache ops + uses of tracked tensors) once the graph's part is there. ``track_all`` tracks every tensor: runtime policies may
    move any, and a recorded replay wants to see all.
    """
    graph, device = plan.graph, hardware.device_tier
    base = graph.derived(compile_graph)
    hops: dict[tuple[str, str, str | None], Hop] = {}
    after: dict[int, Sequence[IssuedOp]] = {}  # tuples while they are short: most are, and lists take more room
    copies: dict[int, int | list[int]] = {}
    moving = set(range(len(graph.tensors)) if track_all else plan.initial)
    for k, c in enumerate(plan.cache_ops):
        position, t, kind = c.after, c.tensor, (c.op, c.source, c.destination)
        does = hops.get(kind)
        if does is None:
            does = hops[kind] = resolve_hop(*kind, hardware, f"cache_ops[{k}]")
        issued = after.get(position)
        if issued is None:
            after[position] = ((k, t, does),)
        elif len(issued) < 8:
            after[position] = (*issued, (k, t, does))
        elif isinstance(issued, list):
            issued.append((k, t, does))
        else:
            after[position] = [*issued, (k, t, does)]
        moving.add(t)
        if does[0] != DETACH:
            if t not in copies:
                copies[t] = k  # most are copied once: then a list would be waste
            elif isinstance(known := copies[t], list):
                known.append(k)
            else:
                copies[t] = [known, k]
    for home, tensors in base.homes.items():
        if home is not None and home != device:
            moving.update(tensors)
    elsewhere = tiers_elsewhere(graph, hardware)
    for i in elsewhere:
        moving.update(graph.ops[i].uses)
    tracked = bytearray(len(graph.tensors))
    for t in moving:
        tracked[t] = 1
    ascending = sorted(moving)
    del moving

    needed = _awaited(plan, copies, device)
    del copies
    # of each op first the tensors, then what is made of them in the same place: two tables of a large plan would be many bytes
    touched: dict[int, int | list[int] | TrackedOp] = {i: [] for i in (range(len(graph.ops)) if track_all else elsewhere)}
    users = graph.compact_users
    for t in ascending:
        for i in users[t]:
            others = touched.setdefault(i, t)
            if isinstance(others, list):
                others.append(t)
            elif others is not t:
                touched[i] = [cast("int", others), t]
    launch, finish = base.launch, base.finish
    device_position = hardware.tier_index[device]
    tracked_ops = cast("dict[int, TrackedOp]", touched)
    closing: set[int] = set()
    none: tuple[int, ...] = ()
    ops = graph.ops
    for i, listed in touched.items():
        if isinstance(listed, list):
            found = listed
        else:
            t = cast("int", listed)
            if graph.tensors[t].survives and not ops[i].mutates and t not in ops[i].outputs and i not in elsewhere:
                # a parameter that is read: most of what most plans move
                tracked_ops[i] = TrackedOp(needed.get(i, none), (t,), none, none, none, none, device_position)
                continue
            found = [t]
        if launch is base.launch:
            launch, finish = base.launch.copy(), base.finish.copy()
        tracked_ops[i] = _track(graph, base, i, found, needed.get(i, none), tracked, launch, finish, device_position)
        closing.add(i)
    for i, tier in elsewhere.items():  # nothing of it is in the device tier, and its workspace is its processor's to count
        tracked_ops[i] = tracked_ops[i]._replace(tier=tier)
        launch[i], finish[i] = (0, 0, launch[i][2]), (0, 0, none)
    del needed
    steps, previous = base.steps.copy(), base.previous
    for i in (*after, *closing):
        if i < len(ops):
            steps[i] = None
    for i in tracked_ops:
        steps[previous[i]] = None
    initial = _initial(plan, hardware, base, tracked)
    resident = total([t for tensors in base.homes.values() for t in tensors if not tracked[t]], base.sizes, base.compositions)
    return CompiledPlan(
        plan.cache_ops,
        plan.runtime is not None,
        base,
        durations,
        launch,
        finish,
        steps,
        tracked,
        tracked_ops,
        closing,
        after,
        initial,
        *_initial_states(initial, len(graph.tensors), hardware),
        *resident,
    )


def _awaited(plan: Plan, copies: dict[int, int | list[int]], device: str) -> dict[int, tuple[int, ...]]:
    """For each op the cache ops that must have ended before it starts (rule 1). ``copies`` are those of each tensor that copy it.

    Of what the op reads, the last prefetch into the device tier that stands before it, not what is staged below; on another processor, the
    last copy into its tier. Of what it writes, all that stand between it and the op that wrote the tensor before, which has waited for the
    others.
    """
    needed: dict[int, tuple[int, ...]] = {}
    ops, users, cache_ops = plan.graph.ops, plan.graph.compact_users, plan.cache_ops
    for t, ks in copies.items():
        if isinstance(ks, int):  # one copy, as of most: it needs no sorting
            c = cache_ops[ks]
            listed = [(c.after, ks)]
            arriving = listed if c.destination == device and c.op == PREFETCH else []
        else:
            listed = sorted([(cache_ops[k].after, k) for k in ks])
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
            if op.processor:
                there = [k for after, k in listed if after < i and cache_ops[k].destination == op.processor]
                needed[i] = (*needed.get(i, ()), *there[-1:])
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
    tier: int,
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
    released = dying(op, i, graph.compact_users, base.fates)
    gone = tuple([t for t in released if tracked[t]])
    shared = finish[i][2]
    kept = tuple([t for t in shared if tracked[t]]) if shared else none
    if gone or kept:
        left = [t for t in released if not tracked[t]]
        finish[i] = (*total(left, base.sizes, base.compositions, op.workspace_bytes), tuple([t for t in shared if not tracked[t]]))
    if outputs:
        fresh = [t for t in allocated(op, i, graph.compact_users, base.fates) if not tracked[t]]
        launch[i] = (*total(fresh, base.sizes, base.compositions, op.workspace_bytes), launch[i][2])
    return TrackedOp(needed, reads, writes, outputs, gone, kept, tier)


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


def _initial_states(initial: dict[frozenset[int], list[int]], tensors: int, hardware: Hardware) -> tuple[list[bytes], bytes]:
    """The states of all copies at time 0, by tier and tensor, and how many of each tensor are not in the device tier."""
    copies, below = [bytearray(tensors) for _ in hardware.tiers], bytearray(tensors)
    device = hardware.tier_index[hardware.device_tier]
    for where, placed in initial.items():
        for tier in where:
            for t in placed:
                copies[tier][t] = VALID
                below[t] += tier != device
    return [bytes(states) for states in copies], bytes(below)
