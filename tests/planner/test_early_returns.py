"""Returns as early as there is room, and even spreads, on plans made by hand."""

from dataclasses import replace

import pytest
from toys import hill, machine, plateau, told

from hosim.cache_plan import AT_START
from hosim.engine import replay
from hosim.hardware import Hardware
from hosim.planner.hyperoffload.choices import BELOW, HOME, Choices, TensorChoice, insert
from hosim.planner.hyperoffload.early_returns import advance, evenly, usual_bytes
from hosim.planner.hyperoffload.problem import Problem, analyse


def below(problem: Problem, choices: Choices | None) -> list[str]:
    assert choices is not None
    return [problem.graph.tensors[t].name for t in choices]


def test_a_return_moves_ahead_as_far_as_there_is_room() -> None:
    # f0..f3, b3..b0 hold 10 20 30 40 40 30 20 10; without a0 that is 20 30 30 20 10 from f2 to b1, the ops 2 to 6
    problem = analyse(hill(4), machine())
    late: Choices = {0: TensorChoice("ddr", HOME, {1: 6})}
    for budget, ahead in ((30, 4), (40, 1), (20, 5)):
        assert advance(problem, late, budget)[0].away == {1: ahead}
    assert advance(problem, {0: TensorChoice("ddr", HOME, {1: None})}, 40)[0].away == {1: None}


def test_returns_keep_the_order_of_the_uses_that_wait_for_them() -> None:
    # without a0 and a1, f3 b3 b2 b1 hold 20 20 10 10: a1 is needed first, and takes the room at b2; a0 has to wait for b1
    problem = analyse(hill(4), machine())
    late: Choices = {0: TensorChoice("ddr", HOME, {1: 6}), 1: TensorChoice("ddr", HOME, {2: 5})}
    moved = advance(problem, late, 20)
    assert (moved[1].away[2], moved[0].away[1]) == (4, 5)


def test_what_lives_below_comes_up_while_others_compute() -> None:
    # six weights of 10 B in ddr, 20 ns an op: with 30 B the first three are issued at time 0, each other one when an op has ended
    graph = plateau(6, home="ddr")
    problem, hw = analyse(graph, machine()), machine()
    forced: Choices = {t: TensorChoice("ddr", HOME, {AT_START: t - 1}) for t in range(6)}
    plan = insert(problem, advance(problem, forced, 30), "test")
    assert [told(plan, f"w{k}")[0] for k in range(6)] == [f"prefetch@{at}" for at in ("start", "start", "start", "f0", "f1", "f2")]
    late, early = (replay(insert(problem, choices, "test"), hw, 30).makespan_ns for choices in (forced, advance(problem, forced, 30)))
    assert (late, early) == (6 * 30, 10 + 6 * 20)


@pytest.mark.parametrize(("budget", "ahead", "names"), [(60, 0, []), (30, 0, ["w0", "w2", "w4"]), (40, 10, ["w0", "w2", "w4"])])
def test_an_even_spread_keeps_what_fits(budget: int, ahead: int, names: list[str]) -> None:
    # 60 B of weights: all beyond the budget less what is to be on its way starts below, every other one
    problem = analyse(plateau(6), machine())
    found = evenly(problem, budget, ahead, False, 1)
    assert below(problem, found) == names
    assert found is not None
    assert all((c.below, c.start, c.away) == ("ddr", BELOW, {AT_START: t - 1}) for t, c in found.items())


def test_what_the_step_writes_is_spread_if_asked_for() -> None:
    graph = plateau(4)
    written = replace(graph, ops=tuple(replace(op, inputs=(), mutates=op.inputs) for op in graph.ops))
    problem = analyse(written, machine())
    assert evenly(problem, 20, 0, False, 1) is None
    assert below(problem, evenly(problem, 20, 0, True, 1)) == ["w0", "w2"]


def test_several_tiers_take_what_their_channels_bring_up_in_the_same_time() -> None:
    # the second tier has half the rate: of six weights it gets two, unless it or the first one is full
    hw = machine("ddr", "pool")
    problem = analyse(plateau(6), hw)

    def tiers(hw: Hardware, count: int) -> list[str] | None:
        found = evenly(analyse(plateau(6), hw), 1, 0, False, count)
        return None if found is None else [choice.below for choice in found.values()]

    assert usual_bytes(problem) == 10
    assert tiers(hw, 1) == ["ddr"] * 6
    assert tiers(hw, 2) == ["ddr", "ddr", "pool", "ddr", "ddr", "pool"]
    small = replace(hw, tiers=(hw.tiers[0], replace(hw.tiers[1], capacity_bytes=20), hw.tiers[2]))
    assert tiers(small, 2) == ["ddr", "ddr", "pool", "pool", "pool", "pool"]
    assert tiers(small, 1) is None
