"""A certificate: a plan, what happened in its replay and why no plan is faster, in one file that hosim/check_certificate.py proves.

docs/contract.md says what it proves. Everything in it is a whole number of at least 0, a name, or a fraction as two numbers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from hosim.analysis import bound_path, homes_below
from hosim.cache_plan import AT_START, Plan
from hosim.costmodel import machine_of_copies, op_durations
from hosim.errors import InputError
from hosim.graph import Graph
from hosim.hardware import Channel, Hardware
from hosim.processors import tier_of
from hosim.result import LEDGER, Residency, Result, Timeline, Transfer

VERSION = 1
"""Of the format."""

DECIDED = -1
"""The place in the plan of a cache op that a runtime policy decided on."""


def certificate(plan: Plan, hardware: Hardware, result: Result, *, repeats: bool = True) -> str:
    """The certificate of a recorded replay, as JSON: the same bytes for the same replay.

    ``repeats`` says whether the plan restores what docs/contract.md, rule 2, wants restored. Raises :class:`InputError` for what a certificate
    cannot say: a plan that does not fit, times that vary, an allocator, nothing recorded.
    """
    _check(plan, result)
    repeats = repeats and plan.runtime is None
    devices = [_device(plan, each.timeline, hardware) for each in result.by_device or (result,) if each.timeline is not None]
    given = _given(plan, hardware, result.budget_bytes)
    moves = [[one.op, one.tensor, one.source, one.destination, None if one.after == AT_START else one.after] for one in plan.cache_ops]
    starts = plan.residency(hardware.device_tier)
    said = {
        "policy": plan.policy,
        "runtime": plan.runtime is not None,
        "repeats": repeats,
        "initial": [[t, tier] for t, tiers in starts.items() for tier in tiers],
        "cache_ops": moves,
    }
    path, bound_ns = bound_path(given, repeats)
    claims = {"makespan_ns": result.makespan_ns, "peak_bytes": dict(result.peak_bytes), "lower_bound_ns": bound_ns, "path": path}
    digest = hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()
    whole = {"hosim_certificate": VERSION, "given": given, "given_sha256": digest, "plan": said, "devices": devices, "claims": claims}
    return json.dumps(whole, sort_keys=True) + "\n"


def _check(plan: Plan, result: Result) -> None:
    """Raise :class:`InputError` for what a certificate cannot say."""
    wrong = None
    if not result.feasible:
        wrong = "the plan does not fit: there is nothing to certify"
    elif result.jitter is not None:
        wrong = "times that vary at random are no part of a certificate; leave --op-sigma and --transfer-sigma out"
    elif result.allocator is not None:
        wrong = f"a certificate counts bytes, not an allocator's blocks; replay with --allocator {LEDGER}"
    elif result.timeline is None:
        wrong = "the replay was not recorded; replay it with record=True"
    if wrong is not None:
        raise InputError(wrong, source=f"certificate of {plan.policy}")


def _given(plan: Plan, hardware: Hardware, budget_bytes: int) -> dict[str, Any]:
    """What the proof takes for granted: the ops and their tensors, and the machine."""
    graph = plan.graph
    machine = machine_of_copies(graph, hardware)
    devices = range(hardware.devices)

    def of(scope: str) -> list[int]:
        return [hardware.instance(scope, d) for d in devices]

    rooms = {tier.name: tier.capacity_bytes for tier in machine.tiers}
    rooms[hardware.device_tier] = min(rooms[hardware.device_tier], budget_bytes)
    links = [(c.name, c.bandwidth_bytes_per_s, (c.name,), machine.channel_scope(c)) for c in machine.channels]
    links += [(f.name, f.bandwidth_bytes_per_s, f.channels, f.scope) for f in machine.fabrics]
    homes = homes_below(graph, hardware)
    kept = all([plan.initial.get(t, home) == home for t, home in homes.items()])
    return {
        "workload": graph.name,
        "hardware": hardware.name,
        "tensors": [[tensor.name, tensor.size_bytes, tensor.survives] for tensor in graph.tensors],
        "ops": _ops(graph, hardware),
        "homes": [[t, home[0]] for t, home in homes.items()] if kept else [],
        "tiers": {name: {"bytes": room, "of": of(machine.tier_scope(name))} for name, room in rooms.items()},
        "channels": {
            c.name: {"from": c.source, "to": c.destination, "latency_ns": c.latency_ns, "engines": c.engines} for c in machine.channels
        },
        "links": [{"name": name, "bytes_per_s": b, "carries": list(carried), "of": of(scope)} for name, b, carried, scope in links],
    }


def _ops(graph: Graph, hardware: Hardware) -> list[dict[str, Any]]:
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
        for op, duration in zip(graph.ops, op_durations(graph, hardware), strict=True)
    ]


def _device(plan: Plan, timeline: Timeline, hardware: Hardware) -> dict[str, Any]:
    """What happened on one device, and the copies that a runtime policy decided on there."""
    channels = {c.name: c for c in hardware.channels}
    planned = [(x.cache_op, x) for x in timeline.transfers if x.cache_op != DECIDED]
    moves = []
    for made in _decided(plan, timeline, channels):
        ends = [channels[x.channel] for x in made]
        (source,) = {c.source for c in ends} - {c.destination for c in ends}
        (target,) = {c.destination for c in ends} - {c.source for c in ends}
        planned += [(len(plan.cache_ops) + len(moves), x) for x in made]
        moves.append(["copy", made[0].tensor, source, target, None])
    return {
        "ops": [list(at) for at in zip(timeline.op_start_ns, timeline.op_end_ns, strict=True)],
        "transfers": [[k, x.channel, x.bytes, x.start_ns, x.end_ns] for k, x in planned],
        "copies": [[r.tensor, r.tier, r.start_ns, r.end_ns] for r in timeline.residencies if r.tensor >= 0 and not r.staged],
        "decided": moves,
    }


def _decided(plan: Plan, timeline: Timeline, channels: Mapping[str, Channel]) -> Iterator[list[Transfer]]:
    """The transfers of each copy that a runtime policy decided on: those of a tensor until all of it is where it stays."""
    kept: dict[tuple[int, str], list[Residency]] = {}
    for r in timeline.residencies:
        if not r.staged:
            kept.setdefault((r.tensor, r.tier), []).append(r)
    under_way: dict[int, list[Transfer]] = {}
    arrived: dict[int, int] = {}
    for x in sorted(timeline.transfers, key=lambda x: (x.start_ns, x.end_ns)):
        if x.cache_op == DECIDED:
            under_way.setdefault(x.tensor, []).append(x)
            target = channels[x.channel].destination
            if any([r.start_ns <= x.start_ns and x.end_ns <= r.end_ns for r in kept.get((x.tensor, target), ())]):
                arrived[x.tensor] = arrived.get(x.tensor, 0) + x.bytes
                if arrived[x.tensor] >= plan.graph.tensors[x.tensor].size_bytes:
                    del arrived[x.tensor]
                    yield under_way.pop(x.tensor)
