"""Rule 22, tiers without DMA: the engine against the naive replay, and the lower bound against
it.
"""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from processor_strategies import machines, on_processors
from strategies import cases, processor_plans, several
from test_naive_devices import compare as compare_devices
from test_naive_replay import compare
from timeline_check import check_result

import hosim
from hosim.engine import replay
from hosim.errors import PlanError
from hosim.hardware import Hardware


def without_dma(data: st.DataObject, machine: Hardware) -> Hardware:
    """The machine without DMA of some of its tiers below: at least of one."""
    below = [tier.name for tier in machine.tiers if tier.name != machine.device_tier]
    which = data.draw(st.sets(st.sampled_from(below), min_size=1))
    return replace(
        machine, tiers=tuple(replace(tier, dma=tier.name not in which) for tier in machine.tiers)
    )


@given(st.data())
def test_the_replay(data):
    measured = data.draw(st.booleans())
    _, machine, plan = data.draw(
        cases(max_ops=7, max_streams=2, fabrics=True, roomy=None, measured=measured, uneven=True)
    )
    machine = without_dma(data, machine)
    if data.draw(st.booleans()):
        compare_devices(plan, data.draw(several(machine, 3)), compete=not measured)
        return
    compare(plan, machine, None, compete=not measured)
    result = replay(plan, machine, record=True)
    assert check_result(plan, machine, result) == ()
    alone = replay(
        plan, replace(machine, tiers=tuple(replace(tier, dma=True) for tier in machine.tiers))
    )
    assert {
        c.hidden_ns
        for c, held in zip(result.channels.values(), machine.copied_by_ops, strict=True)
        if held
    } <= {0}
    if result.feasible and alone.feasible and not result.slowed_ns:
        assert result.makespan_ns == alone.makespan_ns


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_beside_ops_on_other_processors(data):
    machine, measured = without_dma(data, data.draw(machines())), data.draw(st.booleans())
    plan = data.draw(processor_plans(data.draw(on_processors(machine, measured)), machine))
    compare(plan, machine, None, compete=not measured)


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_no_policy_is_below_the_bound(data):
    graph, machine, _ = data.draw(cases(max_ops=6, roomy=None, measured=data.draw(st.booleans())))
    machine = without_dma(data, machine)
    for policy in ("layerwise", "belady", "static_split", "on_demand"):
        try:
            plan = hosim.plan(graph, machine, policy)
        except (hosim.InfeasibleError, PlanError):
            continue
        result = hosim.replay(plan, machine)
        if result.feasible:
            assert result.lower_bound_ns <= result.makespan_ns
