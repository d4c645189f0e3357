"""The compiled loop against the engine: the same figures, to the nanosecond and byte."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import cases, graphs, hardware, sized, wild_plans
from test_naive_without_dma import without_dma

from hosim.cache_plan import Plan
from hosim.engine import replay
from hosim.errors import InputError, PlanError
from hosim.hardware import Hardware
from hosim.jitter import Jitter
from hosim.result import FAST, LOOP


def compare(plan: Plan, machine: Hardware, budget: int | None = None, compete: bool | None = None, jitter: Jitter | None = None) -> str:
    asked = {"compete": compete, "jitter": jitter}
    try:
        expected = replay(plan, machine, budget, **asked)
    except PlanError as error:
        with pytest.raises((PlanError, InputError)) as objection:
            replay(plan, machine, budget, engine=LOOP, **asked)
        assert isinstance(objection.value, InputError) or str(objection.value) == str(error)
        return "illegal"
    try:
        found = replay(plan, machine, budget, engine=LOOP, **asked)
    except InputError:
        return "uncovered"
    assert found.engine == (LOOP if expected.feasible else FAST)
    assert replace(found, replay_s=expected.replay_s, engine=FAST) == expected
    return "feasible" if expected.feasible else "out of memory"


@settings(max_examples=100, deadline=None)
@given(cases(max_ops=9, max_streams=3, fabrics=True, roomy=None, uneven=True))
def test_legal_plans(case: Any) -> None:
    _, machine, plan = case
    compare(plan, machine, compete=False)


@settings(max_examples=100, deadline=None)
@given(
    cases(max_ops=6, max_streams=2, fabrics=True, roomy=None, uneven=True, measured=False),
    st.sampled_from((4, 11, 40)),
    st.sampled_from(((1.0, 1.0), (0.6, 1.0), (0.75, 0.9))),
)
def test_ops_that_copies_slow_down(case: Any, bandwidth: int, reached: tuple[float, float]) -> None:
    _, machine, plan = case
    tiers = (replace(machine.tiers[0], bandwidth_bytes_per_s=bandwidth * 10**9), *machine.tiers[1:])
    compute = replace(machine.compute, efficiency=reached[0], beside_copies=reached[1])
    compare(plan, replace(machine, tiers=tiers, compute=compute), compete=True)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_plan(data: st.DataObject) -> None:
    machine = data.draw(hardware(fabrics=True, uneven=True))
    graph = data.draw(graphs(8, 3, homes=[tier.name for tier in machine.tiers]))
    plan = data.draw(wild_plans(graph, machine))
    if data.draw(st.booleans()):
        machine = sized(machine, graph)
    compare(plan, machine, compete=False, jitter=data.draw(st.sampled_from((None, Jitter(3, 0.3, 0.2)))))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_tiers_without_dma(data: st.DataObject) -> None:
    measured = data.draw(st.booleans())
    _, machine, plan = data.draw(cases(max_ops=7, max_streams=2, fabrics=True, roomy=None, measured=measured, uneven=True))
    compare(plan, without_dma(data, machine), compete=not measured)
