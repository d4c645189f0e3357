"""The contract in plain SimPy against the engine: the same figures, to the nanosecond and byte."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest
from both_engines import agree, told
from counting import calls_run
from hypothesis import given, settings
from hypothesis import strategies as st
from long_chain import MACHINE, chain_and_branches, modelled, pooled, supernode
from processor_strategies import machines, on_processors
from strategies import cases, graphs, hardware, processor_plans, several, sized, wild_plans
from test_naive_collectives import with_collectives
from test_naive_stages import sets
from test_naive_without_dma import without_dma

from hosim.cache_plan import Plan
from hosim.costmodel.transfers import max_min_rates
from hosim.engine import replay, replay_stages
from hosim.errors import InfeasibleError, PlanError
from hosim.hardware import Hardware
from hosim.jitter import Jitter
from hosim.policies import policy_named
from hosim.result import ACCOUNTS, ALLOCATORS, FAST, REFERENCE


def compare(plan: Plan, machine: Hardware, budget: int | None = None, **rest: Any) -> None:
    """Both replays of a plan, each with its timeline and without one."""
    rest |= {"fold": False}
    agree(*[told(lambda e=e: replay(plan, machine, budget, record=True, engine=e, **rest)) for e in (REFERENCE, FAST)])
    agree(*[told(lambda e=e: replay(plan, machine, budget, engine=e, **rest)) for e in (REFERENCE, FAST)])


@settings(max_examples=60, deadline=None)
@given(cases(max_ops=9, max_streams=3, fabrics=True, roomy=None, uneven=True))
def test_legal_plans(case: Any) -> None:
    _, machine, plan = case
    compare(plan, machine, compete=False)


@settings(max_examples=60, deadline=None)
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


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_plan(data: st.DataObject) -> None:
    machine = data.draw(hardware(fabrics=True, uneven=True))
    graph = data.draw(graphs(8, 3, homes=[tier.name for tier in machine.tiers]))
    plan = data.draw(wild_plans(graph, machine))
    if data.draw(st.booleans()):
        machine = sized(machine, graph)
    compare(plan, machine, compete=False)


@settings(max_examples=40, deadline=None)
@given(cases(max_ops=6, max_streams=2, fabrics=True, roomy=None, uneven=True), st.data())
def test_several_devices(case: Any, data: st.DataObject) -> None:
    _, machine, plan = case
    compare(plan, data.draw(several(machine, 3)), jitter=data.draw(st.sampled_from((None, Jitter(3, 0.3, 0.2)))))


@settings(max_examples=40, deadline=None)
@given(cases(max_ops=6, max_streams=2, fabrics=True, roomy=None, uneven=True), st.data())
def test_collectives(case: Any, data: st.DataObject) -> None:
    _, machine, plan = case
    plan, machine = data.draw(with_collectives(plan, data.draw(several(machine, 3)) if data.draw(st.booleans()) else machine))
    compare(plan, machine, jitter=data.draw(st.sampled_from((None, Jitter(3, 0.5)))))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_ops_on_other_processors(data: st.DataObject) -> None:
    machine, measured = data.draw(machines()), data.draw(st.booleans())
    graph = data.draw(on_processors(machine, measured))
    plan = data.draw(processor_plans(graph, machine) if data.draw(st.integers(0, 3)) else wild_plans(graph, machine))
    machine = data.draw(several(machine, 3)) if data.draw(st.booleans()) else machine
    compare(plan, machine, compete=not measured)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_tiers_without_dma(data: st.DataObject) -> None:
    measured = data.draw(st.booleans())
    _, machine, plan = data.draw(cases(max_ops=7, max_streams=2, fabrics=True, roomy=None, measured=measured, uneven=True))
    compare(plan, without_dma(data, machine), compete=not measured)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_runtime_policies(data: st.DataObject) -> None:
    machine = replace(data.draw(hardware(fabrics=True, uneven=True)), inspect_ns=data.draw(st.sampled_from((0, 3))))
    graph = data.draw(graphs(8, 3))
    machine = sized(machine, graph, 10**4)
    needed = max([op.workspace_bytes + sum([graph.tensors[t].size_bytes for t in op.uses]) for op in graph.ops])
    budget = needed + data.draw(st.integers(0, 40))
    policy = data.draw(st.sampled_from(("on_demand", "lookahead", "unified_memory", "belady")))
    try:
        plan = policy_named(policy).plan(graph, machine, budget)
    except InfeasibleError:
        return
    compare(plan, machine, budget)


@settings(max_examples=40, deadline=None)
@given(st.data(), st.booleans())
def test_stages(data: st.DataObject, compete: bool) -> None:
    plans, machine = data.draw(sets(compete))
    jitter = data.draw(st.sampled_from((None, Jitter(3, 0.3, 0.2))))
    agree(*[told(lambda e=e: replay_stages(plans, machine, record=True, jitter=jitter, engine=e)) for e in (REFERENCE, FAST)])


@settings(max_examples=40, deadline=None)
@given(cases(max_ops=7, max_streams=3, fabrics=True, roomy=None, uneven=True), st.sampled_from(ALLOCATORS), st.sampled_from(ACCOUNTS))
def test_allocators_and_accounts(case: Any, allocator: str, account: str) -> None:
    _, machine, plan = case
    compare(plan, machine, allocator=allocator, account=account)


def test_a_plan_that_starts_a_tensor_in_an_unknown_tier() -> None:
    plan = replace(chain_and_branches(8, 1), initial={1: ("nowhere",)})
    compare(plan, MACHINE)
    with pytest.raises(PlanError, match=r"initial: tensor 'w0' starts in tier 'nowhere', which bench has not \(tiers: hbm, ddr\)"):
        replay(plan, MACHINE, engine=REFERENCE)


@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.parametrize("slowed", [False, True])
def test_work_grows_linearly_with_ops(streams: int, slowed: bool) -> None:
    def calls(ops: int) -> int:
        plan = chain_and_branches(ops, streams)
        plan = modelled(plan) if slowed else plan
        replay(plan, MACHINE, engine=REFERENCE)  # what is kept with the graph is found once
        return calls_run(replay, plan, MACHINE, engine=REFERENCE)

    few, some, many = calls(200), calls(400), calls(800)
    assert many - some == pytest.approx(2 * (some - few), rel=0.02)
    assert (many - some) / 400 < (110 if slowed else 90)


def test_rates_of_alike_devices_are_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one device or another, only how many copy counts: eight have eight combinations and the one in which none copies."""
    asked: list[int] = []
    fluid = sys.modules["hosim.engine.reference.fluid"]
    monkeypatch.setattr(fluid, "max_min_rates", lambda classes, carried: asked.append(len(classes)) or max_min_rates(classes, carried))
    result = replay(pooled(100), supernode(8), engine=REFERENCE, jitter=Jitter(1, 0.3, 0.3))
    assert result.channels["read"].transfers == 25
    assert len(asked) == len(set(asked)) <= 9
