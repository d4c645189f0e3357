"""The search around the stalls: it ends no worse than it begins, finds what single changes do not, and is the same for the same seed."""

import pytest
from instances import instance
from toys import hill, machine

from hosim.engine import replay
from hosim.planner.hyperoffload import Weights, select
from hosim.planner.hyperoffload.local_moves import PlanSimulator, improve
from hosim.planner.hyperoffload.tensor_choices import HOME, Problem, TensorChoice, analyse, everything, insert

WORK = 20_000


def makespan(problem: Problem, budget: int, made: object) -> int:
    """Of choices that must fit."""
    result = replay(insert(problem, made, "test"), problem.hardware, budget)  # type: ignore[arg-type]
    assert result.feasible, result.error
    assert result.makespan_ns is not None
    return result.makespan_ns


def test_a_late_return_is_found_its_place() -> None:
    # b0 waits 10 ns for a0, whose return is issued just before it; anywhere sooner in its gap is in time
    problem = analyse(hill(4), machine())
    found = improve(PlanSimulator(problem, 30), {0: TensorChoice("ddr", HOME, {1: 6})}, 160, WORK, 0)
    assert makespan(problem, 30, found) == 160


def test_what_moves_for_nothing_stays() -> None:
    problem = analyse(hill(4), machine())
    assert improve(PlanSimulator(problem, 100), {0: TensorChoice("ddr", HOME, {1: 6})}, 0, WORK, 0) == {}


def test_a_plan_that_does_not_fit_is_made_to() -> None:
    problem = analyse(hill(4), machine())
    assert makespan(problem, 30, improve(PlanSimulator(problem, 30), {}, 160, WORK, 0)) == 160


@pytest.mark.parametrize("number", [0, 2, 7])
def test_it_ends_no_worse_and_the_same_for_the_same_seed(number: int) -> None:
    drawn = instance(number, 5)
    problem = analyse(drawn.graph, drawn.hardware)
    begun = select(problem, drawn.budget_bytes, Weights()).choices
    simulator = PlanSimulator(problem, drawn.budget_bytes)
    before = simulator.begin(begun)
    found = [improve(PlanSimulator(problem, drawn.budget_bytes), begun, problem.horizon_ns, WORK, 3) for _ in range(2)]
    assert found[0] == found[1]
    assert simulator.begin(found[0]) <= before


def test_it_helps_where_a_large_graph_waits() -> None:
    # 240 layers in 480 ops: with everything moved as late as can be all returns are waited for; room is enough for all to come sooner
    problem = analyse(hill(240), machine())
    budget = 1500
    begun = everything(problem)
    simulator = PlanSimulator(problem, budget)
    before = simulator.begin(begun)
    assert before[0] == 0
    found = improve(simulator, begun, problem.horizon_ns, 3 * WORK, 0)
    assert makespan(problem, budget, found) == simulator.begin(found)[1]
    assert problem.horizon_ns <= simulator.cost[1] < before[1] - (before[1] - problem.horizon_ns) // 4


def test_what_it_spends_is_bounded() -> None:
    problem = analyse(hill(240), machine())
    simulator = PlanSimulator(problem, 1500)
    improve(simulator, everything(problem), 0, 4_000, 0)
    assert simulator.work < 40_000
