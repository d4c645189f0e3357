"""Slopes of a makespan, held against finite differences where the chain that ends last stays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from strategies import cases

from hosim.analysis.slack import slopes, step_path
from hosim.cache_plan import Plan
from hosim.engine import replay
from hosim.graph import Graph
from hosim.hardware import Hardware

SCALE = 10**6
STEP = 1e-4
"""Relative changes of each figure."""


def scaled(case: Any) -> tuple[Plan, Hardware]:
    """The case with a million times its times, bytes and rooms: changes are not lost in whole
    numbers.
    """
    graph, machine, plan = case
    ops = [
        replace(op, duration_ns=SCALE * op.duration_ns, workspace_bytes=SCALE * op.workspace_bytes)
        for op in graph.ops
    ]
    tensors = [replace(t, size_bytes=SCALE * t.size_bytes) for t in graph.tensors]
    tiers = [replace(tier, capacity_bytes=SCALE * tier.capacity_bytes) for tier in machine.tiers]
    channels = [replace(c, latency_ns=SCALE * c.latency_ns, engines=1) for c in machine.channels]
    made = Graph(graph.name, tuple(tensors), tuple(ops), graph.meta)
    return replace(plan, graph=made), replace(machine, tiers=tuple(tiers), channels=tuple(channels))


def chain(plan: Plan, machine: Hardware) -> tuple[int, list[tuple[str, int, int]]]:
    """The makespan, and the parts of the chain that ends last."""
    result = replay(plan, machine, compete=False, record=True)
    assume(result.feasible and result.timeline is not None)
    parts = step_path(plan, machine, result.timeline)
    moves = result.timeline.transfers
    named = [
        (part.what, part.op, -1 if part.transfer < 0 else moves[part.transfer].cache_op)
        for part in parts
    ]
    return result.makespan_ns, named


def difference(at: Callable[[float], tuple[Plan, Hardware]]) -> float | None:
    """The central difference over a relative change; none where the chain does not stay."""
    (less, before), (more, after), (_, here) = (chain(*at(1 + e)) for e in (-STEP, STEP, 0.0))
    if not before == after == here:
        return None
    return (more - less) / (2 * STEP)


def times_of_kind(plan: Plan, kind: str, factor: float) -> Plan:
    ops = tuple(
        [
            replace(op, duration_ns=round(factor * op.duration_ns)) if op.kind == kind else op
            for op in plan.graph.ops
        ]
    )
    return replace(plan, graph=replace(plan.graph, ops=ops))


def with_channel(machine: Hardware, name: str, **factors: float) -> Hardware:
    changed = [
        replace(c, **{field: round(getattr(c, field) * f) for field, f in factors.items()})
        if c.name == name
        else c
        for c in machine.channels
    ]
    return replace(machine, channels=tuple(changed))


@settings(max_examples=40, suppress_health_check=[HealthCheck.filter_too_much])
@given(cases(max_ops=7, max_streams=2, roomy=None))
def test_slopes_are_finite_differences(case: Any) -> None:
    plan, machine = scaled(case)
    result = replay(plan, machine, compete=False, record=True)
    assume(result.feasible and result.timeline is not None)
    found = slopes(plan, machine, result.timeline)
    for channel in machine.channels:
        name, rate = channel.name, channel.bandwidth_bytes_per_s
        by = difference(lambda f, n=name: (plan, with_channel(machine, n, bandwidth_bytes_per_s=f)))
        if by is not None:
            assert found.bandwidth.get(name, 0.0) * rate == pytest.approx(by, rel=0.1, abs=20)
        by = difference(lambda f, n=name: (plan, with_channel(machine, n, latency_ns=f)))
        if by is not None:
            expected = found.latency.get(name, 0) * channel.latency_ns
            assert expected == pytest.approx(by, rel=0.1, abs=20_000)
    for kind in {op.kind for op in plan.graph.ops}:
        by = difference(lambda f, k=kind: (times_of_kind(plan, k, f), machine))
        if by is not None:
            assert found.kind.get(kind, 0) == pytest.approx(by, rel=0.1, abs=20_000)
