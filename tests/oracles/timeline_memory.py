"""The check of a timeline's memory: what is held when, and the peaks that follow (docs/contract.md,
rules 1, 2, 4, 5, 9 and 20).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from hosim.analysis.verifying import Finding
from hosim.cache_plan import Plan
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.result import WORKSPACE, Residency, Result, Timeline

Held = dict[tuple[int, str], list[Residency]]
"""Residencies of each (tensor, tier), in order of time."""


def check_memory(
    plan: Plan, hardware: Hardware, result: Result, timeline: Timeline
) -> Iterator[Finding]:
    """Findings on residencies, occupancy and peaks."""
    held: Held = {}
    for r in sorted(timeline.residencies, key=lambda r: (r.start_ns, r.end_ns)):
        if r.tensor >= 0 and not r.staged:
            held.setdefault((r.tensor, r.tier), []).append(r)
    yield from _sizes(plan.graph, hardware, held, timeline)
    yield from _staged(plan.graph, hardware, timeline)
    yield from _initial(plan, hardware, held, timeline)
    yield from _uses(plan.graph, hardware.device_tier, held, timeline)
    yield from _released(plan.graph, held, timeline)
    yield from _stale(plan.graph, hardware.device_tier, held, timeline)
    yield from _end_of_step(plan, hardware, held, result.makespan_ns or 0)
    yield from _peaks(plan.graph, hardware, result, timeline)


def _sizes(graph: Graph, hardware: Hardware, held: Held, timeline: Timeline) -> Iterator[Finding]:
    """Residencies are whole, do not overlap, and workspaces last as long as their ops."""
    for (t, tier), residencies in held.items():
        name = graph.tensors[t].name
        for r in residencies:
            if (
                r.bytes != graph.tensors[t].size_bytes
                or r.end_ns < r.start_ns
                or tier not in hardware.tier_index
            ):
                yield Finding(
                    "residency",
                    f"tensor {name!r} is held with {r.bytes} bytes in {tier} over "
                    f"{r.start_ns}..{r.end_ns} ns",
                    tensor=t,
                )
        for one, other in pairwise(residencies):
            if other.start_ns < one.end_ns:
                yield Finding(
                    "residency",
                    f"tensor {name!r} is held twice in {tier} at {other.start_ns} ns",
                    tensor=t,
                )
    workspaces: dict[int, Residency | None] = {
        r.op: r for r in timeline.residencies if r.tensor < 0
    }
    for i, op in enumerate(graph.ops):
        expected = (
            timeline.op_start_ns[i],
            timeline.op_end_ns[i],
            op.workspace_bytes,
            op.processor or hardware.device_tier,
        )
        held_for = workspaces.pop(i, None)
        found = (
            None
            if held_for is None
            else (held_for.start_ns, held_for.end_ns, held_for.bytes, held_for.tier)
        )
        if found != (expected if op.workspace_bytes else None):
            yield Finding(
                "residency",
                f"the workspace of op {op.name!r} is held as {found}; the op says {expected}",
                op=i,
            )
    for i in workspaces:
        yield Finding(
            "residency",
            f"a workspace is held for op {i}, which the graph does not have or which has two",
        )


def _staged(graph: Graph, hardware: Hardware, timeline: Timeline) -> Iterator[Finding]:
    """A chunk on its way is held in a tier from the start of the hop into it to the end of the hop
    out of it (rule 7).
    """
    source = {c.name: c.source for c in hardware.channels}
    destination = {c.name: c.destination for c in hardware.channels}
    into = {(x.tensor, destination.get(x.channel), x.start_ns, x.bytes) for x in timeline.transfers}
    out = {(x.tensor, source.get(x.channel), x.end_ns, x.bytes) for x in timeline.transfers}
    for r in timeline.residencies:
        if r.staged and not (
            (r.tensor, r.tier, r.start_ns, r.bytes) in into
            and (r.tensor, r.tier, r.end_ns, r.bytes) in out
        ):
            name = graph.tensors[r.tensor].name
            message = (
                f"{r.bytes} bytes of tensor {name!r} are staged in {r.tier} over "
                f"{r.start_ns}..{r.end_ns} ns, between no two of its hops"
            )
            yield Finding("residency", message, tensor=r.tensor)


def _initial(plan: Plan, hardware: Hardware, held: Held, timeline: Timeline) -> Iterator[Finding]:
    """At time 0 there is what the plan says; whatever comes later is brought by a transfer or made
    by an op.
    """
    graph = plan.graph
    residency = plan.residency(hardware.device_tier)
    for t, where in residency.items():
        for tier in where if graph.tensors[t].size_bytes else ():
            first = held.get((t, tier), [None])[0]
            if first is None or first.start_ns != 0:
                yield Finding(
                    "initial",
                    f"tensor {graph.tensors[t].name!r} is not in {tier} at time 0",
                    tensor=t,
                )
    arrivals = {
        (x.tensor, _destination(hardware, x.channel), x.start_ns) for x in timeline.transfers
    }
    arrivals |= {
        (t, op.processor or hardware.device_tier, timeline.op_start_ns[i])
        for i, op in enumerate(graph.ops)
        for t in op.outputs
    }
    for (t, tier), residencies in held.items():
        for r in residencies:
            started = r.start_ns == 0 and tier in residency.get(t, ())
            if not (started or (t, tier, r.start_ns) in arrivals):
                name = graph.tensors[t].name
                yield Finding(
                    "residency",
                    f"tensor {name!r} comes to be held in {tier} at {r.start_ns} ns, and nothing "
                    "brings or makes it",
                    tensor=t,
                )


def _destination(hardware: Hardware, channel: str) -> str:
    return next((c.destination for c in hardware.channels if c.name == channel), "")


def _uses(graph: Graph, device: str, held: Held, timeline: Timeline) -> Iterator[Finding]:
    """What an op uses is held over the whole op in the tier of its processor: the device tier, if
    it names none.
    """
    for i, op in enumerate(graph.ops):
        start, end = timeline.op_start_ns[i], timeline.op_end_ns[i]
        tier = op.processor or device
        for t in {*op.inputs, *op.outputs, *op.mutates}:
            if graph.tensors[t].size_bytes and not any(
                r.start_ns <= start and end <= r.end_ns for r in held.get((t, tier), ())
            ):
                name = graph.tensors[t].name
                yield Finding(
                    "resident",
                    f"op {op.name!r} uses tensor {name!r} over {start}..{end} ns without holding "
                    f"it in {tier}",
                    op=i,
                    tensor=t,
                )


def _released(graph: Graph, held: Held, timeline: Timeline) -> Iterator[Finding]:
    """A tensor that does not survive is held nowhere after its last user has ended, but for
    transfers issued by then (rule 1).
    """
    last_move: dict[int, int] = {}
    for x in timeline.transfers:
        last_move[x.tensor] = max(last_move.get(x.tensor, 0), x.end_ns)
    for (t, tier), residencies in held.items():
        tensor, users = graph.tensors[t], graph.users[t]
        if tensor.persistent or tensor.kind == "output" or not users:
            continue
        dead = max(timeline.op_end_ns[u] for u in users)
        if residencies[-1].end_ns > max(dead, last_move.get(t, 0)):
            yield Finding(
                "release",
                f"tensor {tensor.name!r} is still held in {tier} after {dead} ns, when its last "
                "user has ended",
                tensor=t,
            )


def _stale(graph: Graph, device: str, held: Held, timeline: Timeline) -> Iterator[Finding]:
    """A write drops the copies on other tiers at its start (rule 5)."""
    copies: dict[int, list[Residency]] = {}
    for (t, _), residencies in held.items():
        copies.setdefault(t, []).extend(residencies)
    for i, op in enumerate(graph.ops):
        start = timeline.op_start_ns[i]
        for t in {*op.outputs, *op.mutates}:
            for r in copies.get(t, ()):
                if r.tier != (op.processor or device) and r.start_ns < start < r.end_ns:
                    name = graph.tensors[t].name
                    yield Finding(
                        "stale",
                        f"op {op.name!r} writes tensor {name!r} at {start} ns, and {r.tier} still "
                        "holds a copy",
                        op=i,
                        tensor=t,
                    )


def _end_of_step(plan: Plan, hardware: Hardware, held: Held, makespan: int) -> Iterator[Finding]:
    """Rule 2: a persistent tensor is held at the end in each tier where it was at time 0, an output
    somewhere.
    """
    for t, where in plan.residency(hardware.device_tier).items():
        for tier in where:
            if plan.graph.tensors[t].persistent and not _held_at(held.get((t, tier), ()), makespan):
                yield Finding(
                    "end-of-step",
                    f"tensor {plan.graph.tensors[t].name!r} is not in {tier} at the end of the "
                    "step",
                    tensor=t,
                )
    for t, tensor in enumerate(plan.graph.tensors):
        if tensor.kind == "output" and plan.graph.users[t]:
            everywhere = [r for tier in hardware.tier_index for r in held.get((t, tier), ())]
            if not _held_at(everywhere, makespan):
                yield Finding(
                    "end-of-step",
                    f"output {tensor.name!r} is in no tier at the end of the step",
                    tensor=t,
                )


def _held_at(residencies: Sequence[Residency], makespan: int) -> bool:
    return any(r.end_ns >= makespan for r in residencies)


# -- occupancy and peaks (rules 4 and 9)
# -----------------------------------------------------------------------


def _peaks(
    graph: Graph, hardware: Hardware, result: Result, timeline: Timeline
) -> Iterator[Finding]:
    """Occupancy within capacity at every instant; the peaks, where they are first reached and what
    they consist of.

    At an instant everything that ends is released before anything is allocated. Where an op or a
    transfer takes no time, or an initial copy goes at time 0, or an op that starts drops what it
    writes from another processor's tier, an instant has several rounds of this: there the occupancy
    is known within limits, and the figures are held to those.
    """
    instantaneous = rounds_of(timeline)
    if any(op.processor for op in graph.ops):
        instantaneous |= {
            timeline.op_start_ns[i] for i, op in enumerate(graph.ops) if op.outputs or op.mutates
        }
    by_tier: dict[str, list[Residency]] = {tier.name: [] for tier in hardware.tiers}
    for r in timeline.residencies:
        by_tier.setdefault(r.tier, []).append(r)
    for tier in hardware.tiers:
        capacity = (
            min(tier.capacity_bytes, result.budget_bytes)
            if tier.name == hardware.device_tier
            else tier.capacity_bytes
        )
        peak, at = result.peak_bytes.get(tier.name, 0), result.peak_at_ns.get(tier.name, 0)
        curve = occupancy(by_tier[tier.name], instantaneous)
        least = max((low for _, low, _ in curve), default=0)
        if least > capacity:
            instant = next(now for now, low, _ in curve if low == least)
            yield Finding(
                "capacity", f"{tier.name} holds {least} bytes at {instant} ns; it has {capacity}"
            )
        most = max((high for _, _, high in curve), default=0)
        if not least <= peak <= most:
            yield Finding(
                "peak",
                f"the peak of {tier.name} is given as {peak} bytes; the residencies reach {least}",
            )
            continue
        earlier = any(now < at and low >= peak for now, low, _ in curve)
        high_then = next((high for now, _, high in reversed(curve) if now <= at), 0)
        if peak and (earlier or high_then < peak):
            yield Finding(
                "peak", f"the peak of {tier.name}, {peak} bytes, is not first reached at {at} ns"
            )
            continue
        breakdown = {
            kind: size for kind, size in result.peak_breakdown.get(tier.name, {}).items() if size
        }
        expected = _composition(graph, by_tier[tier.name], at)
        if sum(breakdown.values()) != peak or (at not in instantaneous and breakdown != expected):
            yield Finding(
                "peak",
                f"the peak of {tier.name} is composed as {breakdown}; the residencies say "
                f"{expected}",
            )


def rounds_of(timeline: Timeline) -> set[int]:
    """Instants at which something takes no time, so that they may have several rounds of release
    and allocation.
    """
    ops = {s for s, e in zip(timeline.op_start_ns, timeline.op_end_ns, strict=True) if s == e}
    return (
        ops
        | {x.start_ns for x in timeline.transfers if x.start_ns == x.end_ns}
        | {r.start_ns for r in timeline.residencies if r.start_ns == r.end_ns}
    )


def occupancy(
    residencies: Sequence[Residency], instantaneous: set[int]
) -> list[tuple[int, int, int]]:
    """(instant, least, most) of the occupancy's maximum at each instant at which it changes."""
    released: dict[int, int] = {}
    allocated: dict[int, int] = {}
    passing: dict[int, int] = {}  # held and released within one instant
    for r in residencies:
        if r.start_ns == r.end_ns:
            passing[r.start_ns] = passing.get(r.start_ns, 0) + r.bytes
        else:
            allocated[r.start_ns] = allocated.get(r.start_ns, 0) + r.bytes
            released[r.end_ns] = released.get(r.end_ns, 0) + r.bytes
    curve = []
    held = 0
    for now in sorted({*released, *allocated, *passing}):
        before = held
        held += allocated.get(now, 0) - released.get(now, 0)
        most = (
            before + allocated.get(now, 0) + passing.get(now, 0) if now in instantaneous else held
        )
        curve.append((now, held, max(most, held)))
    return curve


def _composition(graph: Graph, residencies: Sequence[Residency], at: int) -> dict[str, int]:
    by_kind: dict[str, int] = {}
    for r in residencies:
        if r.start_ns <= at < r.end_ns and r.bytes:
            kind = graph.tensors[r.tensor].kind if r.tensor >= 0 else WORKSPACE
            by_kind[kind] = by_kind.get(kind, 0) + r.bytes
    return by_kind
