"""What a plan moves and need not: dropped where the step takes no longer without it, and nothing
else changes.
"""

from drawn_choices import choices
from hypothesis import given
from hypothesis import strategies as st
from strategies import graphs, hardware
from toys import machine, plateau

from hosim.engine import replay
from hosim.planner.hyperoffload import without_unneeded
from hosim.planner.hyperoffload.local_moves import PlanSimulator
from hosim.planner.hyperoffload.tensor_choices import (
    Problem,
    TensorChoice,
    WorkDone,
    analyse,
    everything,
    insert,
    plan_cost,
)


def tidied(
    problem: Problem, budget: int, made: dict[int, TensorChoice], most: int = 10**9
) -> dict[int, TensorChoice]:
    return dict(
        without_unneeded(PlanSimulator(problem, budget), made, most, WorkDone(), nearer=True)
    )


def test_what_has_room_stays() -> None:
    """Six weights of 10 B, an op each. All fit into 60 B. Of 50 B four stay, and two take turns:
    the one comes when the other has left.
    """
    problem = analyse(plateau(6), machine())
    moved = dict(everything(problem))
    assert len(moved) == 6
    assert tidied(problem, 60, moved) == {}
    left = tidied(problem, 50, moved)
    assert len(left) == 2
    before, after = (
        replay(insert(problem, made, "test"), problem.hardware, 50) for made in (moved, left)
    )
    assert after.makespan_ns is not None
    assert before.makespan_ns is not None
    assert after.makespan_ns <= before.makespan_ns


def test_without_work_nothing_changes() -> None:
    problem = analyse(plateau(6), machine())
    moved = dict(everything(problem))
    work = WorkDone()
    assert dict(without_unneeded(PlanSimulator(problem, 60), moved, -1, work, nearer=True)) == moved
    assert work.done > 0


@given(st.data())
def test_no_plan_gets_worse(data) -> None:
    graph = data.draw(graphs(max_streams=2))
    machine_drawn = data.draw(hardware())
    problem = analyse(graph, machine_drawn)
    budget = data.draw(
        st.integers(max(problem.floor_bytes, default=0), 2 * max(problem.held_bytes, default=0) + 1)
    )
    made = data.draw(choices(problem))
    simulator = PlanSimulator(problem, budget)
    if not simulator.covers(made):
        return
    left = dict(without_unneeded(simulator, made, 10**9, WorkDone(), nearer=True))
    plans = [insert(problem, each, "test") for each in (made, left)]
    before, after = (plan_cost(plan, replay(plan, machine_drawn, budget)) for plan in plans)
    assert after <= before
    assert set(left) <= set(made)
    simulator = PlanSimulator(problem, budget)
    same = dict(without_unneeded(simulator, made, 10**9, WorkDone(), nearer=True, faster=False))
    again = insert(problem, same, "test")
    found = plan_cost(again, replay(again, machine_drawn, budget))
    if not before.infeasible:
        assert found.makespan_ns == before.makespan_ns
    assert found <= before
    assert all(set(left[t].away) <= set(made[t].away) for t in left)
