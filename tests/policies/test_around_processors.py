"""Policies on graphs with ops on other processors: their plans are legal and keep to the budget, or
they say that nothing fits, or what the graph does not say.
"""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from processor_strategies import machines, on_processors

from hosim.analysis.verifying import verify
from hosim.cache_plan import Plan
from hosim.engine import replay
from hosim.errors import InfeasibleError, InputError
from hosim.io import load_hardware
from hosim.io.models import build
from hosim.policies import Policy, policy_named, policy_names
from hosim.shipped import find_hardware

STATIC = [name for name in policy_names() if not policy_named(name).runtime and name != "optimal"]
BY_THE_BACKWARD_PASS = ("deepcompile", "pipeline_swap", "saved_activations")
"""Policies that recognise it by names, which drawn ops do not have."""
H100 = load_hardware(find_hardware("h100-80gb-sxm"))
TRAIN = {
    "model": "llama-3.1-8b",
    "phase": "train",
    "layers": 2,
    "sequence": 2048,
    "optimizer_on": "ddr",
}


def may_refuse(policy, graph) -> bool:
    """Return whether a drawn graph does not say what the policy has to know: the backward pass, or
    on which processor the part runs that its system computes beside the device.
    """
    part = policy.elsewhere
    used = [graph.tensors[t].kind for t, users in enumerate(graph.users) if users]
    unplaced = part is not None and part.kind in used and (part.chosen or not graph.elsewhere)
    unnamed = policy.name in BY_THE_BACKWARD_PASS and any(
        [tensor.kind == "gradient" for tensor in graph.tensors]
    )
    return unplaced or unnamed


def check(data) -> None:
    machine = data.draw(machines())
    graph = data.draw(on_processors(machine, data.draw(st.booleans())))
    machine = replace(
        machine, tiers=tuple(replace(tier, capacity_bytes=10**4) for tier in machine.tiers)
    )
    budget = data.draw(st.sampled_from((None, 60, 120, 200)))
    policy = policy_named(data.draw(st.sampled_from(STATIC)))
    try:
        plan = policy.plan(graph, machine, budget)
    except InfeasibleError:
        return
    except InputError:
        assert may_refuse(policy, graph)
        return
    assert [
        finding for finding in verify(plan, machine, budget) if finding.rule != "capacity"
    ] == []
    replay(plan, machine, budget)  # raises no PlanError


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_plans_are_legal(data) -> None:
    check(data)


@pytest.mark.long
@settings(max_examples=400, deadline=None)
@given(st.data())
def test_plans_are_legal_at_length(data) -> None:
    check(data)


def makespan(parameters, policy, budget=None) -> int:
    graph = build("step", parameters)
    result = replay(policy_named(policy).plan(graph, H100, budget), H100, budget)
    assert result.error is None
    return result.makespan_ns


def test_each_system_has_its_own_step() -> None:
    on_cpu = makespan(TRAIN, "zero_offload")
    assert (
        makespan({**TRAIN, "update": "delayed"}, "zero_offload")
        < makespan({**TRAIN, "update": "speculative"}, "superoffload")
        < on_cpu
    )
    assert on_cpu < makespan(TRAIN, "zero_infinity")  # whose parameters cross the link twice more


def test_superoffload_streams_parameters_that_do_not_fit() -> None:
    graph = build("step", TRAIN)
    stationary, flowing = (
        policy_named("superoffload").plan(graph, H100, budget) for budget in (None, 7 * 10**9)
    )
    assert (stationary.initial, {graph.tensors[t].kind for t in flowing.initial}) == (
        {},
        {"parameter"},
    )
    assert replay(flowing, H100, 7 * 10**9).error is None


def test_runtime_policies_and_those_of_others_refuse() -> None:
    graph = build("step", {**TRAIN, "layers": 1})
    mine = Policy("mine", "moves nothing", lambda graph, hardware, budget_bytes: Plan(graph))
    for policy in (policy_named("on_demand"), mine):
        with pytest.raises(
            InputError, match=f"policy {policy.name} plans for ops of the device alone"
        ):
            policy.plan(graph, H100)
