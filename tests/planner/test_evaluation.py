"""The cost of choices is what the replay of their plan says; equal plans are replayed once."""

from dataclasses import replace

import pytest
from toys import hill, machine, plateau

from hosim.cache_plan import AT_START, CacheOp, Plan
from hosim.engine import replay
from hosim.graph import GraphBuilder
from hosim.hardware import Tier
from hosim.planner.hyperoffload.tensor_choices import (
    BELOW,
    HOME,
    Evaluator,
    PlanCost,
    TensorChoice,
    WorkDone,
    analyse,
    of_all_devices,
    of_another,
    plan_cost,
)


def test_what_fits_comes_first_then_the_makespan_then_what_moves() -> None:
    order = [
        PlanCost(False, 90, 0),
        PlanCost(False, 90, 20),
        PlanCost(False, 100, 0),
        PlanCost(True, 0, 0),
    ]
    assert sorted((order[2], order[0], order[3], order[1])) == order


def test_an_outcome_is_the_replay_of_its_plan() -> None:
    graph, hw = hill(4), machine()
    evaluate = Evaluator(analyse(graph, hw), 30, "test", WorkDone())
    outcome = evaluate({0: TensorChoice("ddr", HOME, {1: 5})})
    assert outcome.plan.policy == "test"
    assert outcome.result == replay(outcome.plan, hw, 30)
    assert outcome.cost == PlanCost(False, 160, 20)  # nothing waits; 10 B down and 10 B up


def test_the_same_choices_are_replayed_once() -> None:
    asked = []

    def judge(plan, hardware, budget_bytes):
        asked.append(plan)
        return replay(plan, hardware, budget_bytes)

    evaluate = Evaluator(analyse(hill(4), machine()), 30, "test", WorkDone(), judge)
    first = evaluate({0: TensorChoice("ddr", HOME, {1: 5})})
    once = evaluate.work.done
    assert evaluate({0: TensorChoice("ddr", HOME, {1: 5})}) is first
    again = evaluate.work.done
    evaluate({0: TensorChoice("ddr", HOME, {1: 4})})
    assert len(asked) == 2
    assert 0 < once <= again < evaluate.work.done


def test_what_does_not_fit_is_worth_less_than_what_waits() -> None:
    evaluate = Evaluator(analyse(hill(4), machine()), 30, "test", WorkDone())
    late = evaluate(
        {0: TensorChoice("ddr", HOME, {1: 6})}
    )  # issued when b1 ends, just before b0: that waits for 10 ns
    assert late.cost == PlanCost(False, 170, 20)
    assert late.cost < evaluate({}).cost
    assert evaluate({}).cost.infeasible


def test_detaches_move_nothing() -> None:
    graph, hw = plateau(3), machine()
    evaluate = Evaluator(analyse(graph, hw), 1000, "test", WorkDone())
    outcome = evaluate({0: TensorChoice("ddr", BELOW, {AT_START: AT_START})})
    assert [c.op for c in outcome.plan.cache_ops] == ["prefetch", "detach"]
    assert plan_cost(outcome.plan, outcome.result).moved_bytes == 10


def test_op_times_of_a_replay_are_those_with_its_waits() -> None:
    graph, hw = plateau(3), machine()
    evaluate = Evaluator(analyse(graph, hw), 1000, "test", WorkDone())
    outcome = evaluate({0: TensorChoice("ddr", BELOW, {AT_START: AT_START})})
    assert evaluate.times(outcome) == ((10, 30, 50), (30, 50, 70))  # f0 waits 10 ns for w0


@pytest.mark.parametrize(("devices", "host_bytes"), [(2, 10), (200, 10), (200, 20)])
def test_many_devices_are_replayed_only_where_they_do_the_same(devices, host_bytes) -> None:
    """Two stores of 10 B follow each other. Where a share of the host has room for one of them, the
    other one waits, and which of 200 devices is next takes too long to find out.
    """
    b = GraphBuilder("two")
    for t in ("a", "b"):
        b.op(t, "any", outputs=[b.tensor(t, 10)], duration_ns=10)
    b.op("sum", "any", inputs=["a", "b"], duration_ns=10)
    hw = machine()
    tiers = hw.tiers[0], Tier("ddr", devices * host_bytes, 10**11, "host")
    hw = replace(hw, devices=devices, tiers=tiers)
    stores = [CacheOp("store", t, "hbm", "ddr", after=t) for t in (0, 1)]
    plan = Plan(b.build(), "test", cache_ops=tuple(stores))
    asked = []

    def judge(plan, hardware, budget_bytes):
        asked.append(hardware.devices)
        return replay(plan, hardware, budget_bytes)

    found = of_all_devices(judge, plan, hw.fair_share, 1000)
    assert (found is None) == (devices > 2 and host_bytes == 10)
    assert (devices in asked) == (devices == 2)


@pytest.mark.parametrize(("host_bytes", "asked_whole"), [(50, True), (10_000, False)])
def test_plans_of_others_that_a_share_has_no_room_for_are_replayed_on_the_whole_machine(
    host_bytes, asked_whole
) -> None:
    """Where a tier below cannot hold all 40 B of tensors; otherwise it cannot be for that."""
    graph = hill(4)
    hw = machine()
    hw = replace(hw, devices=2, tiers=(hw.tiers[0], Tier("ddr", host_bytes, 10**11, "host")))
    plan = Plan(graph, "another")
    asked = []

    def judge(plan, hardware, budget_bytes):
        asked.append(hardware)
        return replace(replay(plan, hardware, 1000), feasible=hardware is hw)

    assert of_another(judge, plan, hw.fair_share, 1000).feasible is asked_whole
    assert asked == [hw.fair_share, *([hw] if asked_whole else [])]
    asked.clear()
    assert of_another(judge, plan, hw, 1000).feasible
    assert asked == [hw]
    evaluate = Evaluator(analyse(graph, hw.fair_share), 1000, "test", WorkDone(), judge)
    assert evaluate({}).cost.infeasible  # the planner's own plans are for a share
    assert evaluate.plan(plan).cost.infeasible is not asked_whole
