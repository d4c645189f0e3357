"""Changes around the stalls: each gives a plan that the verifier accepts; of several tensors where
they are alike.
"""

from collections.abc import Iterator

from changed_plans import difference
from toys import hill, machine

from hosim.analysis.verifying import verify
from hosim.planner.hyperoffload.local_moves import PlanSimulator
from hosim.planner.hyperoffload.tensor_choices import (
    Choices,
    TensorChoice,
    analyse,
    everything,
    insert,
)


def draws(simulator: PlanSimulator, count: int, seed: int = 0) -> Iterator[Choices]:
    """The present choices after each of so many changes, which are taken back."""
    kernel = simulator.kernel
    kernel.begin(seed, 0, 1)
    kernel.look()
    for _ in range(count):
        kernel.draw()
        yield simulator.choices
        kernel.take_back()


def test_draws_are_legal_changes_of_one_tensor_and_of_several() -> None:
    problem = analyse(hill(30), machine("ddr", "pool"))
    simulator = PlanSimulator(problem, 200)
    begun = everything(problem)
    assert simulator.begin(begun)[0] == 0
    sizes, tiers = set(), set()
    for made in draws(simulator, 300):
        changes = difference(begun, made)
        simulator.kernel.judge(-1)
        if not simulator.kernel.found()[0]:
            assert not verify(insert(problem, made, "test"), problem.hardware, 200)
        sizes.add(len(changes))
        tiers |= {choice.below for choice in changes.values() if choice is not None}
    assert {1, 3} < sizes
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
    alone = turns = earlier = 0
    for made in draws(simulator, 1_000):
        for t, choice in difference(begun, made).items():
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
    def dropped(gain: int) -> int:
        """How many of the draws take an absence away if that has gained so much each time."""
        simulator = PlanSimulator(analyse(hill(30), machine()), 200)
        begun = everything(simulator.problem)
        simulator.begin(begun)
        count = 0
        for made in draws(simulator, 400, 1):
            changes = difference(begun, made)
            drops = bool(changes) and all(choice is None for choice in changes.values())
            count += drops
            simulator.kernel.learn(gain if drops else 0, 1)
        return count

    assert dropped(1 << 30) > 1.5 * dropped(0) > 0


def test_where_the_device_tier_holds_the_most() -> None:
    # four layers of 20 ns make 10 B each, used again in reverse order: if all stay, most is held
    # when the last is made
    simulator = PlanSimulator(analyse(hill(4), machine()), 100, 1)
    simulator.begin({})
    assert simulator.kernel.fullest(0, 7) in (2, 3, 4)
    assert simulator.kernel.fullest(5, 7) in (6, 7)
