"""Rule 20, ops on other processors: the engine against the naive replay, on graphs whose streams belong to processors of some tiers."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import cases, graphs, hardware, processor_plans, sized, wild_plans
from test_naive_replay import compare

from hosim.analysis.verifier import verify
from hosim.engine import replay
from hosim.hardware import Compute, Hardware


@st.composite
def machines(draw) -> Hardware:
    """A machine whose tiers below have processors, and memories that are not much faster than channels."""
    machine = draw(hardware(fabrics=True, uneven=True))
    tiers = [replace(machine.tiers[0], bandwidth_bytes_per_s=draw(st.sampled_from((10**12, 11 * 10**9))))]
    for tier in machine.tiers[1:]:
        peaks = {"bf16": draw(st.sampled_from((10**9, 10**11)))}
        compute = Compute(peaks, draw(st.sampled_from((1.0, 0.6))), draw(st.sampled_from((0, 4))), beside_copies=0.9)
        tiers.append(replace(tier, compute=compute, bandwidth_bytes_per_s=draw(st.sampled_from((4, 11, 100))) * 10**9))
    return replace(machine, tiers=tuple(tiers))


@st.composite
def on_processors(draw, machine, measured):
    """A graph some of whose streams belong to tiers below."""
    names = [tier.name for tier in machine.tiers]
    graph = draw(graphs(9, 3, homes=names, measured=measured))
    owner = {stream: draw(st.sampled_from(("", *names[1:]))) for stream in graph.streams}
    return replace(graph, ops=tuple(replace(op, processor=owner[op.stream]) for op in graph.ops))


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
