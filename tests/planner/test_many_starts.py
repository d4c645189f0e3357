"""Many short searches of a small graph: how many there are, which of them go on, and when they end."""

from __future__ import annotations

from random import Random

import pytest
from instances import instance_on_streams
from toys import machine, plateau

from hosim.analysis.verifying import verify
from hosim.engine import replay
from hosim.planner.hyperoffload import refinement
from hosim.planner.hyperoffload.local_moves import FEW, ManyStarts, PlanSimulator, Restarts, many_starts
from hosim.planner.hyperoffload.tensor_choices import Choices, TensorChoice, analyse, insert
from hosim.policies import policy_named

BUDGET = 30


class Searches:
    """In the place of the search: notes where each begins and its work; it ends where the next of ``ends`` says, else at its begin."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *ends: Choices) -> None:
        self.begun: list[Choices] = []
        self.work: list[int] = []
        self.seeds: list[int] = []
        self.ends = list(ends)
        monkeypatch.setattr(many_starts, "improve", self)

    def __call__(self, simulator: PlanSimulator, choices: Choices, floor_ns: int, work: int, seed: int) -> Choices:
        self.begun.append(choices)
        self.work.append(work)
        self.seeds.append(seed)
        return self.ends.pop(0) if self.ends else choices


def starts(effort: float = 1.0, work: int = 100_000, seed: int = 0) -> ManyStarts:
    """Of six weights of 10 B in ddr, whose ops take 20 ns; three fit."""
    problem = analyse(plateau(6, home="ddr"), machine())
    simulator = PlanSimulator(problem, BUDGET)
    return ManyStarts(simulator, [late()], Restarts(problem, BUDGET, simulator, late()), work, effort, seed)


def late(*early: int) -> Choices:
    """Each weight comes up as late as can be, but for some that come up before the op before it: 10 ns of wait each for the others."""
    return {t: TensorChoice("ddr", away={-1: t - 1 - (t in early)}) for t in range(6)}


@pytest.mark.parametrize(("effort", "number", "shortest"), [(1.0, 28 + 4 + 1, 10_000), (0.5, 14 + 4 + 1, 10_000), (2.0, 56 + 4 + 1, 5_000)])
def test_how_many_searches_there_are(monkeypatch: pytest.MonkeyPatch, effort: float, number: int, shortest: int) -> None:
    """More effort is more starts, each with the work that one has of all; ``work`` has the effort in it already."""
    searches = Searches(monkeypatch)
    monkeypatch.setattr(many_starts, "_AGREE", 1_000)
    starts(effort).run(0, lambda: 0)
    assert len(searches.begun) == number
    assert searches.work[0] == shortest
    assert [round(work / shortest) for work in searches.work[-5:]] == [2, 2, 2, 2, 5]
    assert searches.begun[0] == late()
    assert len(set(searches.seeds)) == number


def test_the_best_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the first 28 searches the last ones end best; the first of the four that go on ends better still, and goes on alone."""
    best = [late(1, 2, 3), late(2, 3, 4), late(1, 3), late(3, 5)]
    found = late(1, 2, 3, 4)
    monkeypatch.setattr(many_starts, "_AGREE", 25)
    searches = Searches(monkeypatch, *[late()] * 24, *best, found, *best[1:])
    assert starts().run(0, lambda: 0) == found
    simulator = PlanSimulator(analyse(plateau(6, home="ddr"), machine()), BUDGET)
    assert searches.begun[28:32] == sorted(best, key=lambda choices: simulator.begin(choices)[1])
    assert searches.begun[32] == found


def test_it_ends_where_eight_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """They need not be the first ones, nor the same choices: with one weight early, whichever, the step takes as long."""
    searches = Searches(monkeypatch, late(), late(), *[late(1 + k % 5) for k in range(8)])
    assert starts().run(0, lambda: 0) == late(1)
    assert len(searches.begun) == 10


def test_it_ends_where_nothing_better_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all weights early the step takes 130 ns: 10 for the first one, and six ops."""
    asked: list[int] = []

    def least_ns() -> int:
        asked.append(1)
        return 130

    searches = Searches(monkeypatch, late(), late(), late(1, 2, 3, 4, 5))
    assert starts().run(0, least_ns) == late(1, 2, 3, 4, 5)
    assert (len(searches.begun), len(asked)) == (3, 1)
    searches = Searches(monkeypatch, late(1, 2, 3, 4, 5))
    assert starts().run(130, least_ns) == late(1, 2, 3, 4, 5)
    assert (len(searches.begun), len(asked)) == (1, 1)  # the bound is not asked for


def test_starts_are_unlike_and_the_same_for_a_seed() -> None:
    drawn = instance_on_streams(11, 6)
    problem = analyse(drawn.graph, drawn.hardware)
    simulator = PlanSimulator(problem, drawn.budget_bytes)
    restart = Restarts(problem, drawn.budget_bytes, simulator, {})
    found = [restart(Random(seed)) for seed in range(40)]
    assert found == [restart(Random(seed)) for seed in range(40)]
    away = [{(t, after) for t, choice in choices.items() for after in choice.away} for choices in found]
    assert len({frozenset(absences) for absences in away}) >= 8
    tiers = [{choice.below for t, choice in choices.items() if t not in problem.starts_below} for choices in found]
    assert {tier.name for tier in problem.below} == set().union(*tiers)


@pytest.mark.parametrize(("above", "several"), [(0, True), (1, False)])
def test_only_small_graphs_are_searched_so(monkeypatch: pytest.MonkeyPatch, above: int, several: bool) -> None:
    searches = Searches(monkeypatch)
    graph = plateau(FEW + above, home="ddr", duration=5)
    policy_named("hyperoffload").plan(graph, machine(), BUDGET, effort=0.05)
    assert bool(searches.begun) == several


def test_a_search_that_the_judge_does_not_cover_begins_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = analyse(plateau(6), machine())
    simulator = PlanSimulator(problem, BUDGET)
    monkeypatch.setattr(simulator, "covers", lambda choices: False)
    assert Restarts(problem, BUDGET, simulator, late())(Random(0)) == late()


def test_a_proved_optimum_is_found() -> None:
    """A single long search ended at 178 ns; the solver proves 167 (``python tests/bench/new_optima.py FILE --seed 7 --limit 4``)."""
    drawn = instance_on_streams(10, 7)
    plan = policy_named("hyperoffload").plan(drawn.graph, drawn.hardware, drawn.budget_bytes, effort=0.1)
    assert verify(plan, drawn.hardware, drawn.budget_bytes) == ()
    assert replay(plan, drawn.hardware, drawn.budget_bytes).makespan_ns == 167


def test_the_plan_is_none_the_worse_for_a_search_that_errs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a search ends with is replayed: where that does not fit, the plan is what the search began with."""
    drawn = instance_on_streams(10, 7)
    nothing = insert(analyse(drawn.graph, drawn.hardware), {}, "test")
    assert not replay(nothing, drawn.hardware, drawn.budget_bytes).feasible
    monkeypatch.setattr(refinement.ManyStarts, "run", lambda *_: {})
    plan = policy_named("hyperoffload").plan(drawn.graph, drawn.hardware, drawn.budget_bytes)
    assert replay(plan, drawn.hardware, drawn.budget_bytes).feasible
