"""Returns as early as there is room, on plans made by hand and against a walk that counts anew."""

from unittest.mock import patch

from drawn_choices import choices as drawn_choices
from hypothesis import given
from hypothesis import strategies as st
from strategies import graphs, hardware, sized
from toys import hill, machine, plateau, told

from hosim.cache_plan import AT_START
from hosim.engine import replay
from hosim.planner.hyperoffload.choice_passes import absences, account, advance, ops_away
from hosim.planner.hyperoffload.tensor_choices import (
    HOME,
    Choices,
    Problem,
    TensorChoice,
    analyse,
    insert,
)


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


def counted(problem: Problem, choices: Choices) -> list[int]:
    """Bytes of the device tier by position, one absence after the other."""
    sizes = [tensor.size_bytes for tensor in problem.graph.tensors]
    held = list(problem.held_bytes)
    for t, choice in choices.items():
        for gap, back in absences(problem, t, choice, problem.gaps_of.get(t, ())):
            for i in range(*ops_away(gap, back)):
                held[i] -= sizes[t]
    for t in problem.starts_below:
        for i in range(min(problem.graph.users[t], default=0)):
            held[i] += sizes[t]
    return held


def walked(problem: Problem, choices: Choices, budget: int) -> Choices:
    """Each return moves ahead op by op, while what it brings fits at the op before."""
    waiting = [
        (gap.before, back, gap, t)
        for t, choice in choices.items()
        for gap, back in absences(problem, t, choice, problem.gaps_of.get(t, ()))
        if back is not None
    ]
    moved, last = dict(choices), dict[str, int]()
    for _, back, gap, t in sorted(waiting, key=lambda each: each[:2]):
        tier = problem.starts_below.get(t, choices[t].tier(gap.after))
        first, size = max(gap.after, last.get(tier, AT_START)), problem.graph.tensors[t].size_bytes
        while back > first and counted(problem, moved)[back] + size <= budget:
            back -= 1
            moved[t] = moved[t].with_return(gap.after, back)
        last[tier] = max(first, back)
    return moved


@given(data=st.data())
def test_returns_move_as_in_a_walk_that_counts_anew(data: st.DataObject) -> None:
    drawn = data.draw(hardware())
    graph = data.draw(graphs(max_ops=12, max_streams=2, homes=[tier.name for tier in drawn.tiers]))
    problem = analyse(graph, sized(drawn, graph))
    made = data.draw(drawn_choices(problem))
    assert account(problem, made).tolist() == counted(problem, made)
    budget = data.draw(st.integers(0, max(1, *problem.held_bytes)))
    compiled = advance(problem, made, budget)
    assert compiled == walked(problem, made, budget)
    with patch("hosim.planner.hyperoffload.choice_passes.early_returns.form_of", lambda form: form):
        assert advance(problem, made, budget) == compiled


def test_levels_that_do_not_fit_in_64_bits_are_counted_as_well() -> None:
    problem = analyse(hill(6, 2**62, 2**62), machine(below=2**63 - 1))
    made: Choices = {0: TensorChoice("ddr", HOME, {1: 10})}
    assert problem.held_bytes[6] > 2**63
    assert account(problem, made).tolist() == counted(problem, made)
    assert advance(problem, made, 2**64) == walked(problem, made, 2**64)
