"""Local search: it ends no worse than it begins, finds what single changes do not, is the same for
a seed, and can be gone on with.
"""

from collections.abc import Iterator

import pytest
from instances import instance
from toys import hill, machine

from hosim.engine import replay
from hosim.planner.hyperoffload import Weights, select
from hosim.planner.hyperoffload.local_moves import LocalSearch, PlanSimulator
from hosim.planner.hyperoffload.tensor_choices import (
    HOME,
    Choices,
    Problem,
    TensorChoice,
    WorkDone,
    analyse,
    everything,
    insert,
)

WORK = 20_000


def improved(
    simulator: PlanSimulator, begun: Choices, floor_ns: int, work: int = WORK, seed: int = 0
) -> Choices:
    local = LocalSearch(simulator, begun, floor_ns, seed)
    local.go_on(work, WorkDone())
    return local.best()


def makespan(problem: Problem, budget: int, made: Choices) -> int:
    """Of choices that must fit."""
    result = replay(insert(problem, made, "test"), problem.hardware, budget)
    assert result.feasible, result.error
    assert result.makespan_ns is not None
    return result.makespan_ns


def drawn(number: int) -> tuple[Problem, int, Choices]:
    """An instance, its budget, and the choices of a sweep."""
    case = instance(number, 5)
    problem = analyse(case.graph, case.hardware)
    return problem, case.budget_bytes, select(problem, case.budget_bytes, Weights()).choices


def test_a_late_return_is_found_its_place() -> None:
    # b0 waits 10 ns for a0, whose return is issued just before it; anywhere sooner in its gap is in
    # time
    problem = analyse(hill(4), machine())
    found = improved(PlanSimulator(problem, 30), {0: TensorChoice("ddr", HOME, {1: 6})}, 160)
    assert makespan(problem, 30, found) == 160


def test_what_moves_for_nothing_stays() -> None:
    problem = analyse(hill(4), machine())
    assert improved(PlanSimulator(problem, 100), {0: TensorChoice("ddr", HOME, {1: 6})}, 0) == {}


def test_a_plan_that_does_not_fit_is_made_to() -> None:
    problem = analyse(hill(4), machine())
    assert makespan(problem, 30, improved(PlanSimulator(problem, 30), {}, 160)) == 160


@pytest.mark.parametrize("number", [0, 2, 7])
def test_it_ends_no_worse_and_the_same_for_the_same_seed(number: int) -> None:
    problem, budget, begun = drawn(number)
    before = PlanSimulator(problem, budget).begin(begun)
    found = [
        improved(PlanSimulator(problem, budget), begun, problem.horizon_ns, seed=3)
        for _ in range(2)
    ]
    assert found[0] == found[1]
    assert PlanSimulator(problem, budget).begin(found[0]) <= before


def test_it_helps_where_a_large_graph_waits() -> None:
    # 240 layers in 480 ops: with everything moved as late as can be all returns are waited for;
    # room is enough for all to come sooner
    problem = analyse(hill(240), machine())
    budget = 1500
    begun = everything(problem)
    simulator = PlanSimulator(problem, budget)
    before = simulator.begin(begun)
    assert before[0] == 0
    found = improved(simulator, begun, problem.horizon_ns, 6 * WORK)
    assert makespan(problem, budget, found) == simulator.begin(found)[1]
    assert (
        problem.horizon_ns <= simulator.cost[1] < before[1] - (before[1] - problem.horizon_ns) // 4
    )


def test_what_it_spends_is_counted_and_bounded() -> None:
    problem, spent = analyse(hill(240), machine()), WorkDone()
    simulator = PlanSimulator(problem, 1500)
    local = LocalSearch(simulator, everything(problem), 0, 0)
    one_more = 2 * simulator.work + 200 * len(problem.graph.tensors)  # a change of all of them
    for times in (1, 2):
        local.go_on(4_000, spent)
        assert spent.done == simulator.work <= times * (4_000 + one_more)


@pytest.mark.parametrize("number", [0, 2, 7])
def test_a_search_goes_on_where_it_ended(number: int) -> None:
    """In two parts it finds what it finds at once, with as much work, and no less than after the
    first part.
    """
    problem, budget, begun = drawn(number)
    parts, spent = (
        LocalSearch(PlanSimulator(problem, budget), begun, problem.horizon_ns, 1),
        WorkDone(),
    )
    parts.go_on(WORK, spent)
    half, first = spent.done, parts.best()
    better = parts.go_on(WORK, spent)
    at_once, whole = (
        LocalSearch(PlanSimulator(problem, budget), begun, problem.horizon_ns, 1),
        WorkDone(),
    )
    at_once.go_on(half + WORK, whole)
    assert (parts.best(), spent.done) == (at_once.best(), whole.done)
    costs = [PlanSimulator(problem, budget).begin(choices) for choices in (parts.best(), first)]
    assert costs[0] <= costs[1]
    assert better == (costs[0] < costs[1])


@pytest.mark.parametrize("number", [0, 2, 7])
def test_searches_that_share_a_simulator_in_turns_do_not_disturb_each_other(number: int) -> None:
    """What each says of its best choices is so on a simulator of its own, and the same turns find
    the same.
    """
    problem, budget, begun = drawn(number)
    starts: list[Choices] = [begun, everything(problem)]

    def turns(*simulators: PlanSimulator) -> Iterator[tuple[int, Choices, bool]]:
        pair = [
            LocalSearch(simulator, starts[k], problem.horizon_ns, k)
            for k, simulator in enumerate(simulators)
        ]
        for _ in range(4):
            for k, local in enumerate(pair):
                better = local.go_on(WORK // 4, WorkDone())
                yield k, local.best(), better

    shared = PlanSimulator(problem, budget)
    found, costs = (
        list(turns(shared, shared)),
        [PlanSimulator(problem, budget).begin(choices) for choices in starts],
    )
    for k, best, better in found:
        now = PlanSimulator(problem, budget).begin(best)
        assert now <= costs[k]
        assert better == (now < costs[k])
        costs[k] = now
    again = PlanSimulator(problem, budget)
    assert found == list(turns(again, again))
    apart = list(turns(PlanSimulator(problem, budget), PlanSimulator(problem, budget)))
    assert found[0] == apart[0]  # the first turn of the first one
