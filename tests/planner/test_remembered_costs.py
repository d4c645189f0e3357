"""Choices judged once: the same answers as the simulator's, with no second simulation."""

from toys import hill, machine

from hosim.planner.hyperoffload.local_moves import PlanSimulator, RememberedCosts
from hosim.planner.hyperoffload.tensor_choices import HOME, TensorChoice, analyse

EARLY, LATE = TensorChoice("ddr", HOME, {1: 5}), TensorChoice("ddr", HOME, {1: 6})
"""A hill of 8 ops within 30 B: the early return takes 160 ns, the late one 170."""


def begun() -> tuple[PlanSimulator, RememberedCosts]:
    simulator = PlanSimulator(analyse(hill(4), machine()), 30)
    known = RememberedCosts(simulator)
    assert known.begin({0: EARLY}) == (0, 160, 20)
    return simulator, known


def test_the_same_choices_are_simulated_once_however_they_are_reached() -> None:
    simulator, known = begun()
    instants = simulator.work
    assert known.judge({0: LATE}) == (0, 170, 20)
    assert simulator.work > instants + 10
    assert known.accept({0: LATE}) == (0, 170, 20)
    assert known.choices == {0: LATE}
    assert known.judge({0: EARLY}) == (0, 160, 20)
    instants = simulator.work
    assert known.judge({}) == known.judge({0: LATE}) == (0, 170, 20)
    assert known.judge({0: None})[0] > 0  # all of it stays: no room
    assert known.judge({0: EARLY}) == (0, 160, 20)
    before = simulator.work
    assert known.judge({0: EARLY}) == (0, 160, 20)
    assert simulator.work == before + 5


def test_what_was_given_up_at_a_limit_is_judged_again_beyond_it() -> None:
    _, known = begun()
    assert known.judge({0: LATE}, 161)[1] >= 161
    assert known.judge({0: LATE}, 161)[1] >= 161
    assert known.judge({0: LATE}, 200) == (0, 170, 20)
