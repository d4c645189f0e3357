"""Of plans that take about as long, the one that does best where times vary is returned, and says
how it does.
"""

from dataclasses import replace
from statistics import mean

import pytest
from instances import instance
from rendered import facts

from hosim.cache_plan import Plan
from hosim.engine import later_draws, read_budget, replay
from hosim.io import load_any, load_hardware
from hosim.planner.hyperoffload import RIVAL, Found, Search, stretched, swept
from hosim.planner.hyperoffload.explanations import explain
from hosim.policies import policy_named
from hosim.shipped import find_hardware, find_workload

GRAPH = load_any(find_workload("llama-3.1-8b-prefill-4k"))
H100 = load_hardware(find_hardware("h100-80gb-sxm"))
_, BUDGET = read_budget("12 GiB").of(GRAPH, H100)


def in_draws(plan: Plan) -> list[int]:
    """The makespans in all draws of op and copy times; the plan fits in all of them."""
    later = later_draws(plan, H100, BUDGET, None, None, lambda: None)
    assert later is not None
    draws = later()
    assert draws is not None
    assert draws.unfit == 0
    return [ns for ns in draws.makespan_ns if ns is not None]


def takes(plan: Plan) -> int:
    ns = replay(plan, H100, BUDGET).makespan_ns
    assert ns is not None
    return ns


def test_the_plan_with_the_least_mean_of_those_as_fast() -> None:
    """Under ``within`` the fastest is returned: here no bound is that near."""
    policy = policy_named("hyperoffload")
    steady, fastest = (policy.plan(GRAPH, H100, BUDGET, within=within) for within in (0.0, 1e-9))
    assert takes(fastest) <= takes(steady) <= 1.005 * takes(fastest)
    assert mean(in_draws(steady)) < mean(in_draws(fastest))
    assert fastest.search is not None
    assert fastest.search.alike == 0
    said = steady.search
    assert said is not None
    assert said.alike > 1
    assert (said.draws, said.failed) == (200, 0)
    assert said.lost == pytest.approx(mean(in_draws(steady)) / takes(steady) - 1)
    origin = explain(steady, H100, BUDGET).origin
    assert f"{said.alike}, 200, 200" in facts(origin)
    rivals = [policy_named(name).plan(GRAPH, H100, BUDGET) for name in ("static_split", "g10")]
    assert takes(steady) <= min(map(takes, rivals))


def test_a_plan_that_fails_in_draws_that_the_first_do_not_have() -> None:
    """The steadiest by the first 20 draws does not fit in some of 200; a plan that does is returned
    instead. A search that was short compares with the first draws alone.
    """
    policy = policy_named("hyperoffload")
    whole, short = policy.plan(GRAPH, H100, BUDGET), policy.plan(GRAPH, H100, BUDGET, work=1)
    assert len(in_draws(whole)) == 200
    assert whole.search is not None
    assert short.search is not None
    assert (whole.search.draws, short.search.draws) == (200, 20)


def test_no_plan_that_is_slower_than_a_rivals_is_alike() -> None:
    case = instance(5, 0)
    run = Search(case.graph, case.hardware, case.budget_bytes, "p", 0, replay)
    swept(run, run.plain, stretched(run.plain))
    assert run.best is not None
    outcome, fastest_ns = run.best.outcome, run.best.outcome.cost.makespan_ns
    assert {found.outcome.cost.makespan_ns for found in run.alike()} == {fastest_ns}
    cost = replace(outcome.cost, makespan_ns=fastest_ns - 1)
    rival = replace(outcome, choices={}, cost=cost)
    run.offer(Found(rival, run.plain, RIVAL, rival="keep_first"))
    assert run.alike() == []
