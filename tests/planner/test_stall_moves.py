"""Changes around the stalls: each gives a plan that the verifier accepts; of several tensors where
they are alike.
"""

from random import Random

from toys import hill, machine

from hosim.analysis.verifying import verify
from hosim.planner.hyperoffload.local_moves import PlanSimulator, StallMoves
from hosim.planner.hyperoffload.tensor_choices import TensorChoice, analyse, everything, insert


def test_draws_are_legal_changes_of_one_tensor_and_of_several() -> None:
    problem = analyse(hill(30), machine("ddr", "pool"))
    simulator = PlanSimulator(problem, 200)
    begun = everything(problem)
    assert simulator.begin(begun)[0] == 0
    moves = StallMoves(simulator, Random(0), 1)
    moves.look()
    sizes, tiers = set(), set()
    for _ in range(300):
        changes = moves.draw()
        if all(choice == begun.get(t) for t, choice in changes.items()):
            continue
        made = {t: choice for t, choice in {**begun, **changes}.items() if choice is not None}
        found = simulator.judge(changes)
        plan = insert(problem, made, "test")
        if not found[0]:
            assert not verify(plan, problem.hardware, 200)
        sizes.add(len(changes))
        tiers |= {choice.below for choice in changes.values() if choice is not None}
    assert {1, 2} < sizes
    assert max(sizes) >= 29
    assert tiers == {"ddr", "pool"}


def test_draws_reach_the_tier_and_the_place_in_a_queue_of_one_absence() -> None:
    problem = analyse(hill(30), machine("ddr", "pool"))
    simulator = PlanSimulator(problem, 200)
    begun = {
        t: TensorChoice("ddr", away={gap.after: gap.before - 1})
        for gap in problem.gaps
        for t in [gap.tensor]
        if gap.returns
    }
    begun |= {
        t: choice.with_return(after, 30)
        for t, choice in list(begun.items())[:5]
        for after in choice.away
    }  # they queue
    simulator.begin(begun)
    moves = StallMoves(simulator, Random(0), 1)
    moves.look()
    alone = turns = earlier = 0
    for _ in range(1_000):
        for t, choice in moves.draw().items():
            if choice is None or t not in begun:
                continue
            alone += bool(choice.tiers)
            turns += bool(choice.turns)
            # another tier says when it returns
            earlier += choice.below == "pool" and any(
                back is not None and back < begun[t].away[a]
                for a, back in choice.away.items()
                if back
            )
    assert alone
    assert turns
    assert earlier


def test_kinds_that_paid_are_drawn_more_often() -> None:
    def dropped(gain: float) -> int:
        """How many of the draws take an absence away if that has gained so much each time."""
        simulator = PlanSimulator(analyse(hill(30), machine()), 200)
        simulator.begin(everything(simulator.problem))
        moves = StallMoves(simulator, Random(1), 1)
        moves.look()
        count = 0
        for _ in range(400):
            changes = moves.draw()
            drops = bool(changes) and all(choice is None for choice in changes.values())
            count += drops
            moves.learn(gain if drops else 0.0, 1)
        return count

    assert dropped(1.0) > 1.5 * dropped(0.0) > 0


def test_where_the_device_tier_holds_the_most() -> None:
    # four layers of 20 ns make 10 B each, used again in reverse order: if all stay, most is held
    # when the last is made
    simulator = PlanSimulator(analyse(hill(4), machine()), 100, 1)
    simulator.begin({})
    assert simulator.fullest(0, 7) in (2, 3, 4)
    assert simulator.fullest(5, 7) in (6, 7)
