"""A certificate: a plan, what happened in its replay and why no plan is faster, in one file that
hosim/check_certificate.py proves.

docs/contract.md says what it proves. Everything in it is a whole number of at least 0, a name, or a
fraction as two numbers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hosim.analysis.lower_bounds import LowerBounds
from hosim.cache_plan import AT_START, Plan
from hosim.costmodel import machine_of_copies
from hosim.errors import InputError
from hosim.graph import Graph
from hosim.hardware import Channel, Fabric, Hardware
from hosim.io.certificates.certificate_path import bound_path
from hosim.jitter import Jitter
from hosim.processors import tier_of
from hosim.result import LEDGER, Residency, Result, Timeline, Transfer

VERSION = 1
"""Of the format."""

DECIDED = -1
"""The place in the plan of a cache op that a runtime policy decided on."""


def check_certifiable(plan: Plan, allocator: str = LEDGER, jitter: Jitter | None = None) -> None:
    """Raise :class:`InputError` for what a certificate cannot say: times that vary, and an
    allocator's blocks instead of bytes.
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
    """The certificate of a recorded replay, as data for JSON; the same for the same replay.

    ``repeats`` says whether the plan restores what docs/contract.md, rule 2, wants restored; a
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
    """Return the plan's part of a certificate; ``at_home``: it starts what the workload puts below
    there.
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
    """The transfers of each copy that a runtime policy decided on: those of a tensor until all of
    it is where it stays.
    """
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
