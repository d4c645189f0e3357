"""Rule 20, ops on other processors: the engine against the naive replay, on graphs whose streams
belong to processors of some tiers.

On one device and on several, which have equal parts of the processors that they share.
"""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from processor_strategies import machines, on_processors
from strategies import cases, processor_plans, several, sized, wild_plans
from test_naive_devices import compare as compare_devices
from test_naive_replay import compare
from timeline_check import check_result

from hosim.analysis.verifying import verify
from hosim.engine import replay
from hosim.errors import PlanError
from hosim.hardware import Compute


def check(data):
    machine, measured = data.draw(machines()), data.draw(st.booleans())
    graph = data.draw(on_processors(machine, measured))
    if data.draw(st.integers(0, 3)):
        total = sum(tensor.size_bytes for tensor in graph.tensors)
        machine = sized(machine, graph, data.draw(st.sampled_from((None, max(1, total // 2)))))
    legal = data.draw(st.integers(0, 3)) > 0
    plan = data.draw(processor_plans(graph, machine) if legal else wild_plans(graph, machine))
    if data.draw(st.booleans()):
        several_devices(data, plan, machine, not measured)
        return
    compare(plan, machine, data.draw(st.sampled_from((None, 120))), compete=not measured)
    result = refused_or_result(plan, machine, fold=True, record=True)
    if not isinstance(result, str):
        assert check_result(plan, machine, result) == ()
    if not verify(plan, machine):
        replay(plan, machine)  # raises no PlanError


def several_devices(data, plan, machine, compete):
    many = data.draw(several(machine, 3))
    compare_devices(plan, many, compete=compete)
    assert refused_or_result(plan, many, fold=True) == refused_or_result(plan, many, fold=False)


def refused_or_result(plan, machine, fold, record=False):
    try:
        return replay(plan, machine, fold=fold, record=record)
    except PlanError as error:
        return str(error)


@given(st.data())
def test_ops_on_other_processors(data):
    check(data)


@pytest.mark.long
@settings(max_examples=2000, deadline=None)
@given(st.data())
def test_ops_on_other_processors_at_length(data):
    check(data)


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_each_device_has_what_its_fair_share_says(data):
    machine = data.draw(machines())
    graph = data.draw(on_processors(machine, measured=False))
    plan = data.draw(processor_plans(graph, machine))
    roomy = [
        replace(tier, capacity_bytes=2**40, scope=data.draw(st.sampled_from(("device", "host"))))
        for tier in machine.tiers
    ]
    channels = [
        replace(c, curve=(), pageable_bytes_per_s=None, beside=()) for c in machine.channels
    ]
    one = replace(
        machine,
        tiers=(replace(roomy[0], scope="device"), *roomy[1:]),
        channels=tuple(channels),
        fabrics=(),
    )
    both = replace(one, devices=2)
    assert replay(plan, both).makespan_ns == replay(plan, both.fair_share).makespan_ns


@settings(max_examples=20, deadline=None)
@given(cases(max_ops=6, max_streams=2))
def test_a_tier_with_a_processor_changes_nothing_else(case):
    _, machine, plan = case
    able = replace(
        machine,
        tiers=(
            machine.tiers[0],
            *[replace(tier, compute=Compute({"bf16": 10**9})) for tier in machine.tiers[1:]],
        ),
    )
    assert replay(plan, able) == replay(plan, machine)
