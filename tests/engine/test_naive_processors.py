"""Rule 20, ops on other processors: the engine against the naive replay, on graphs whose streams belong to processors of some tiers."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from processor_strategies import machines, on_processors
from strategies import cases, processor_plans, sized, wild_plans
from test_naive_replay import compare

from hosim.analysis.verifier import verify
from hosim.engine import replay
from hosim.hardware import Compute


def check(data):
    machine, measured = data.draw(machines()), data.draw(st.booleans())
    graph = data.draw(on_processors(machine, measured))
    if data.draw(st.integers(0, 3)):
        total = sum(tensor.size_bytes for tensor in graph.tensors)
        machine = sized(machine, graph, data.draw(st.sampled_from((None, max(1, total // 2)))))
    legal = data.draw(st.integers(0, 3)) > 0
    plan = data.draw(processor_plans(graph, machine) if legal else wild_plans(graph, machine))
    compare(plan, machine, data.draw(st.sampled_from((None, 120))), compete=not measured)
    if not verify(plan, machine):
        replay(plan, machine)  # raises no PlanError


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_ops_on_other_processors(data):
    check(data)


@pytest.mark.long
@settings(max_examples=2000, deadline=None)
@given(st.data())
def test_ops_on_other_processors_at_length(data):
    check(data)


@settings(max_examples=20, deadline=None)
@given(cases(max_ops=6, max_streams=2))
def test_a_tier_with_a_processor_changes_nothing_else(case):
    _, machine, plan = case
    able = replace(machine, tiers=(machine.tiers[0], *[replace(tier, compute=Compute({"bf16": 10**9})) for tier in machine.tiers[1:]]))
    assert replay(plan, able) == replay(plan, machine)
