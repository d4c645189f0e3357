"""Returns as early as there is room, on plans made by hand."""

from toys import hill, machine, plateau, told

from hosim.cache_plan import AT_START
from hosim.engine import replay
from hosim.planner.hyperoffload.choice_passes import advance
from hosim.planner.hyperoffload.tensor_choices import HOME, Choices, TensorChoice, analyse, insert


def test_a_return_moves_ahead_as_far_as_there_is_room() -> None:
    # f0..f3, b3..b0 hold 10 20 30 40 40 30 20 10; without a0 that is 20 30 30 20 10 from f2 to b1,
    # the ops 2 to 6
    problem = analyse(hill(4), machine())
    late: Choices = {0: TensorChoice("ddr", HOME, {1: 6})}
    for budget, ahead in ((30, 4), (40, 1), (20, 5)):
        assert advance(problem, late, budget)[0].away == {1: ahead}
    assert advance(problem, {0: TensorChoice("ddr", HOME, {1: None})}, 40)[0].away == {1: None}


def test_returns_keep_the_order_of_the_uses_that_wait_for_them() -> None:
    # without a0 and a1, f3 b3 b2 b1 hold 20 20 10 10: a1 is needed first, and takes the room at b2;
    # a0 has to wait for b1
    problem = analyse(hill(4), machine())
    late: Choices = {0: TensorChoice("ddr", HOME, {1: 6}), 1: TensorChoice("ddr", HOME, {2: 5})}
    moved = advance(problem, late, 20)
    assert (moved[1].away[2], moved[0].away[1]) == (4, 5)


def test_what_lives_below_comes_up_while_others_compute() -> None:
    # six weights of 10 B in ddr, 20 ns an op: with 30 B the first three are issued at time 0, each
    # other one when an op has ended
    graph = plateau(6, home="ddr")
    problem, hw = analyse(graph, machine()), machine()
    forced: Choices = {t: TensorChoice("ddr", HOME, {AT_START: t - 1}) for t in range(6)}
    plan = insert(problem, advance(problem, forced, 30), "test")
    assert [told(plan, f"w{k}")[0] for k in range(6)] == [
        f"prefetch@{at}" for at in ("start", "start", "start", "f0", "f1", "f2")
    ]
    late, early = (
        replay(insert(problem, choices, "test"), hw, 30).makespan_ns
        for choices in (forced, advance(problem, forced, 30))
    )
    assert (late, early) == (6 * 30, 10 + 6 * 20)
