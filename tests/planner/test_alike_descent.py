"""The descent over shifts of what is alike: it finds what takes several tensors at once, and what one of them gains in another tier."""

import pytest
from toys import hill, machine, plateau

from hosim.cache_plan import AT_START
from hosim.engine import NEVER
from hosim.planner.hyperoffload.local_moves import BestChoices, Changes, ChoiceMoves, PlanSimulator, descend
from hosim.planner.hyperoffload.tensor_choices import BELOW, HOME, Choices, Problem, TensorChoice, analyse

LAYERS = 30


def late(problem: Problem, tensors: range, tier: str) -> Choices:
    """Activation k leaves after its use k and returns only just before its use by the op that mirrors k."""
    gaps = {gap.tensor: gap for gap in problem.gaps}
    return {t: TensorChoice(tier, HOME, {gaps[t].after: gaps[t].before - 1}) for t in tensors}


@pytest.mark.parametrize("permuted", [False, True])
def test_returns_of_all_that_are_alike_become_earlier_together(permuted: bool) -> None:
    problem = analyse(hill(LAYERS), machine())
    simulator, moves = PlanSimulator(problem, 250), ChoiceMoves(problem, ["ddr"])
    begun = late(problem, range(8), "ddr")
    kept = BestChoices(simulator, dict(reversed(begun.items())) if permuted else begun, problem.horizon_ns)
    first = kept.cost
    assert first[0] == 0
    assert first[1] > problem.horizon_ns
    descend(kept, moves, [list(begun)], NEVER)
    assert kept.cost[1] < first[1]
    for t, choice in kept.best().items():
        for after, back in choice.away.items():
            before = begun[t].away[after]
            assert back is not None
            assert before is not None
            assert back < before
    assert PlanSimulator(problem, 250).begin(kept.best()) == kept.cost


def test_a_tensor_goes_to_the_tier_that_returns_it_sooner() -> None:
    problem = analyse(hill(LAYERS), machine("ddr", "pool"))
    simulator = PlanSimulator(problem, 10**6)
    costs = {tier: simulator.begin(late(problem, range(1), tier)) for tier in ("ddr", "pool")}
    slow, fast = sorted(costs, key=lambda tier: costs[tier], reverse=True)
    assert costs[fast] < costs[slow]
    kept = BestChoices(simulator, late(problem, range(1), slow), problem.horizon_ns)
    descend(kept, ChoiceMoves(problem, ["ddr", "pool"]), [], NEVER)
    assert kept.best()[0].below == fast


def test_what_the_workload_puts_below_is_tried_in_no_other_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = analyse(plateau(6, home="pool"), machine("ddr", "pool"))
    simulator, moves = PlanSimulator(problem, 10**6), ChoiceMoves(problem, ["ddr", "pool"])
    begun = {t: TensorChoice("pool", BELOW, {AT_START: t - 1}) for t in range(6)}
    kept = BestChoices(simulator, begun, problem.horizon_ns)
    tried: list[Changes] = []
    monkeypatch.setattr(kept, "better", lambda changes: bool(tried.append(changes)))
    descend(kept, moves, [sorted(moves.gaps)], NEVER)
    assert tried
    assert {choice.below for changes in tried for choice in changes.values() if choice is not None} == {"pool"}


@pytest.mark.parametrize("bounded", [False, True])
def test_nothing_is_judged_where_nothing_can_be_better_or_all_is_spent(bounded: bool) -> None:
    problem = analyse(hill(LAYERS), machine("ddr", "pool"))
    simulator, moves = PlanSimulator(problem, 250), ChoiceMoves(problem, ["ddr", "pool"])
    begun = late(problem, range(8), "ddr")
    kept = BestChoices(simulator, begun, problem.horizon_ns if bounded else simulator.begin(begun)[1])
    work = simulator.work
    descend(kept, moves, [sorted(moves.gaps)], work if bounded else NEVER)
    assert kept.best() == begun
    assert simulator.work == work
