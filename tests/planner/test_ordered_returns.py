"""Returns in a given order as early as there is room, and the choices that a plan comes from."""

import pytest
from drawn_choices import choices
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import graphs, hardware, sized
from toys import hill, machine, plateau

from hosim.analysis.verifying import verify
from hosim.cache_plan import AT_START
from hosim.engine import replay
from hosim.planner.hyperoffload.choice_passes import OrderedReturns
from hosim.planner.hyperoffload.tensor_choices import (
    BELOW,
    HOME,
    TensorChoice,
    analyse,
    choices_of,
    everything,
    insert,
)


@pytest.mark.parametrize(("budget", "ahead"), [(20, 5), (30, 4), (40, 1)])
def test_a_return_is_as_early_as_there_is_room(budget: int, ahead: int) -> None:
    # f0..f3, b3..b0 hold 10 20 30 40 40 30 20 10; without a0 that is 20 30 30 20 10 from f2 to b1,
    # the ops 2 to 6
    problem = analyse(hill(4), machine())
    for late in (2, 6):
        assert OrderedReturns(problem, budget)({0: TensorChoice("ddr", HOME, {1: late})})[
            0
        ].away == {1: ahead}


@pytest.mark.parametrize(("first", "second", "found"), [(5, 6, (4, 5)), (4, 3, (5, 4))])
def test_what_is_issued_first_takes_the_room(
    first: int, second: int, found: tuple[int, int]
) -> None:
    # without a0 and a1, f3 b3 b2 b1 hold 20 20 10 10, and 20 B is the budget: a1 (back for b1) has
    # room from b2 on, a0 (back for b0) from b2 on as well if it is ahead, and then a1 not before
    # its use
    problem = analyse(hill(4), machine())
    moved = OrderedReturns(problem, 20)(
        {0: TensorChoice("ddr", HOME, {1: second}), 1: TensorChoice("ddr", HOME, {2: first})}
    )
    assert (moved[1].away[2], moved[0].away[1]) == found


def test_what_lives_below_is_in_the_account() -> None:
    # six weights of 10 B in ddr, 30 B: three come up at once, each other one when an op has ended
    problem = analyse(plateau(6, home="ddr"), machine())
    forced = {t: TensorChoice("ddr", HOME, {AT_START: t - 1}) for t in range(6)}
    assert [c.away[AT_START] for c in OrderedReturns(problem, 30)(forced).values()] == [
        -1,
        -1,
        -1,
        0,
        1,
        2,
    ]


def test_what_starts_below_leaves_again() -> None:
    # six weights of 10 B: w0 and w5 start below, the others stay, so that f0 and f1 hold 50 B
    # without w5, and with it 60
    problem = analyse(plateau(6), machine())
    begun = {
        0: TensorChoice("ddr", BELOW, {AT_START: -1}),
        5: TensorChoice("ddr", BELOW, {AT_START: 4}),
    }
    assert OrderedReturns(problem, 50)(begun)[5].away == {AT_START: 0}
    assert OrderedReturns(problem, 60)(begun)[5].away == {AT_START: -1}


@settings(max_examples=20)
@given(data=st.data())
def test_only_the_places_of_returns_change(data: st.DataObject) -> None:
    graph = data.draw(graphs(max_ops=8))
    problem = analyse(graph, sized(data.draw(hardware()), graph))
    begun = data.draw(choices(problem))
    found = OrderedReturns(problem, data.draw(st.integers(0, max(problem.held_bytes) + 1)))(begun)
    assert {t: (c.below, c.start, list(c.away), c.stores, c.leaves) for t, c in found.items()} == {
        t: (c.below, c.start, list(c.away), c.stores, c.leaves) for t, c in begun.items()
    }
    for t, choice in found.items():
        places = {gap.after: gap for gap in problem.gaps if gap.tensor == t}
        assert all(
            back is None or after not in places or after <= back < places[after].before
            for after, back in choice.away.items()
        )


@pytest.mark.parametrize("streams", [1, 3])
@given(data=st.data())
def test_choices_of_a_plan_make_it_again(streams: int, data: st.DataObject) -> None:
    graph = data.draw(graphs(max_ops=8, max_streams=streams))
    hw = sized(data.draw(hardware()), graph)
    problem = analyse(graph, hw)
    plan = insert(problem, data.draw(choices(problem)), "test")
    again = insert(problem, choices_of(problem, plan), "test")
    assert verify(again, hw) == ()
    assert insert(problem, choices_of(problem, again), "test") == again
    assert {c.tensor for c in again.cache_ops} <= {c.tensor for c in plan.cache_ops}


def test_choices_of_everything_moved() -> None:
    problem = analyse(hill(4), machine())
    plan = insert(problem, everything(problem), "test")
    again = insert(problem, choices_of(problem, plan), "test")
    assert again == plan
    assert replay(again, machine(), 100).makespan_ns == replay(plan, machine(), 100).makespan_ns
