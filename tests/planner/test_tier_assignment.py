"""Which tensors give way where a tier below fills up, by hand."""

from dataclasses import replace

from toys import hill, machine

from hosim.planner.hyperoffload import Weights, select
from hosim.planner.hyperoffload.choice_passes import assigned_tiers
from hosim.planner.hyperoffload.tensor_choices import HOME, Choices, TensorChoice, analyse


def test_what_is_away_the_longest_gives_way() -> None:
    # a0 is away the longest: from f1 to b0; a1 within that. ddr has room for one of them, and a0
    # frees it for the most time
    hw = machine("ddr", "pool")
    moved: Choices = {0: TensorChoice("ddr", HOME, {1: 6}), 1: TensorChoice("ddr", HOME, {2: 5})}
    for room, expected in ((20, {}), (10, {0: "pool"}), (9, {0: "pool", 1: "pool"})):
        small = replace(
            hw, tiers=(hw.tiers[0], replace(hw.tiers[1], capacity_bytes=room), hw.tiers[2])
        )
        assert assigned_tiers(analyse(hill(4), small), moved) == expected
    assert assigned_tiers(analyse(hill(4), machine()), moved) == {}


def test_a_sweep_puts_what_is_assigned_there() -> None:
    hw = machine("ddr", "pool")
    problem = analyse(hill(4), hw)
    assert {c.below for c in select(problem, 30, Weights()).choices.values()} == {"ddr"}
    everything = Weights(assigned=dict.fromkeys(range(4), "pool"))
    assert {c.below for c in select(problem, 30, everything).choices.values()} == {"pool"}
