"""The kernels of the search: compiled and interpreted alike, and what they lower is what an oracle
makes of the same choices.
"""

from bisect import bisect_right

import pytest
from changed_plans import ChangedPlans
from drawn_choices import choices
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import instance
from naive_moves import RANK, initial_tiers, moves_of
from strategies import graphs, hardware, sized
from toys import machine

from hosim.engine import MOVES, ROW
from hosim.graph import GraphBuilder
from hosim.planner.hyperoffload import Weights, select
from hosim.planner.hyperoffload.kernels import ChoiceSearch
from hosim.planner.hyperoffload.local_moves import LocalSearch, PlanSimulator
from hosim.planner.hyperoffload.tensor_choices import (
    COPY,
    HOME,
    TensorChoice,
    WorkDone,
    analyse,
    insert,
)

FORMS = [None, ChoiceSearch]
"""Kernels as they run here, and interpreted."""


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("streams", [1, 3])
@given(data=st.data())
def test_a_choice_is_lowered_to_the_moves_of_the_oracle(
    form: type[ChoiceSearch] | None, streams: int, data: st.DataObject
) -> None:
    drawn = data.draw(hardware())
    graph = data.draw(graphs(max_ops=12, max_streams=streams, homes=[t.name for t in drawn.tiers]))
    problem = analyse(graph, sized(drawn, graph))
    made = data.draw(choices(problem))
    if PlanSimulator(problem, 10**9).covers(made):
        lowers_alike(problem, made, form)


@pytest.mark.parametrize("streams", [1, 3])
@given(data=st.data())
def test_a_plan_has_the_moves_of_its_choices_in_order(streams: int, data: st.DataObject) -> None:
    drawn = data.draw(hardware())
    graph = data.draw(graphs(max_ops=12, max_streams=streams, homes=[t.name for t in drawn.tiers]))
    problem = analyse(graph, sized(drawn, graph))
    made = data.draw(choices(problem))
    plan = insert(problem, made, "test")
    moves = [(t, *move) for t, choice in made.items() for move in moves_of(problem, t, choice)]
    moves.sort(key=lambda move: (move[4], RANK[move[1]], move[5], move[0]))
    listed = [(c.tensor, c.op, c.source, c.destination, c.after) for c in plan.cache_ops]
    assert listed == [move[:5] for move in moves]
    starts = {t: initial_tiers(problem, t, choice) for t, choice in sorted(made.items())}
    assert plan.initial == {
        t: starts[t]
        for t, choice in made.items()
        if choice.start != HOME and t not in problem.starts_below
    }


@pytest.mark.parametrize("form", FORMS)
def test_what_leaves_after_the_last_write_goes_where_it_is_kept(
    form: type[ChoiceSearch] | None,
) -> None:
    # w has a copy in ddr, and op 0 writes it; so the store that saves it for the end goes to ddr,
    # whatever the tier of the absence in which it would go
    b = GraphBuilder("kept")
    b.tensor("w", 10, "parameter")
    b.op("update", "op", inputs=["w"], outputs=["w"], duration_ns=10)
    for i in range(3):
        b.op(f"f{i}", "op", duration_ns=10)
    b.op("use", "op", inputs=["w"], duration_ns=10)
    problem = analyse(b.build(), machine("ddr", "pool"))
    made = {0: TensorChoice("ddr", COPY, {0: 3}, tiers={0: "pool"})}
    moves = lowers_alike(problem, made, form)
    assert [move[1:3] for move in moves] == [[0, 1], [0, -1], [1, 0]]


def lowers_alike(problem, made, form):
    """Holds the rows of each choice against the moves of its plan; returns the last choice's."""
    simulator, index, graph = (
        PlanSimulator(problem, 10**9, form=form),
        problem.hardware.tier_index,
        problem.graph,
    )
    simulator.begin(made)
    expected: list[list[int]] = []
    assert simulator.choices == {t: as_cells(choice) for t, choice in made.items()}
    for t, choice in made.items():
        start = initial_tiers(problem, t, choice)
        moves = moves_of(problem, t, choice)
        expected, places = [], [0] * (len(graph.users[t]) + 1)
        for _op, source, target, after, _turn in sorted(
            moves, key=lambda m: (m[3], RANK[m[0]], m[4])
        ):
            window = bisect_right(graph.users[t], after)
            place, to = MOVES * window + places[window], -1 if target is None else index[target]
            expected.append([place, index[source], to, after])
            places[window] += 1
        count = simulator.kernel.lower(t)
        rows = [simulator.cells["rows"][k : k + ROW] for k in range(0, count, ROW)]
        assert [[*row[:3], row[4]] for row in rows] == expected
        assert simulator.kernel.initial == sum([1 << index[tier] for tier in start])
    return expected


def as_cells(choice):
    """A choice as cells have it: places in a queue and in a gap are there for any slot."""
    away = {after: choice.away[after] for after in sorted(choice.away)}
    return choice._replace(away=away)


@pytest.mark.parametrize("streams", [1, 2])
@settings(max_examples=8)
@given(data=st.data())
def test_both_forms_search_alike(streams: int, data: st.DataObject) -> None:
    drawn = data.draw(hardware())
    graph = data.draw(graphs(max_ops=10, max_streams=streams, homes=[t.name for t in drawn.tiers]))
    problem = analyse(graph, sized(drawn, graph))
    least, most = max(problem.floor_bytes), max(problem.held_bytes)
    budget, made = data.draw(st.integers(least, max(least, most))), data.draw(choices(problem))
    if not PlanSimulator(problem, budget).covers(made):
        return
    assert searched(problem, budget, made, FORMS[0]) == searched(problem, budget, made, FORMS[1])


@pytest.mark.parametrize("number", range(4))
def test_both_forms_search_alike_on_an_instance_of_each_family(number: int) -> None:
    drawn = instance(number, 5)
    problem, budget = analyse(drawn.graph, drawn.hardware), drawn.budget_bytes
    made = select(problem, budget, Weights()).choices
    assert searched(problem, budget, made, FORMS[0]) == searched(problem, budget, made, FORMS[1])


@settings(max_examples=10)
@given(st.data())
def test_choices_are_written_to_cells_of_either_form(data):
    drawn = instance(data.draw(st.integers(0, 40)), 3)
    problem = analyse(drawn.graph, drawn.hardware)
    made = select(problem, drawn.budget_bytes, Weights()).choices
    simulator = PlanSimulator(problem, drawn.budget_bytes)
    listed = [0] * len(simulator.cells["cells"])
    for cells in (listed, simulator.cells["cells"]):
        simulator.coding.write(cells, made)
        assert simulator.coding.choices(cells) == made


def searched(problem, budget, made, form):
    """What a search finds, with the work that it took, and what it was at in the end."""
    simulator, spent = ChangedPlans(problem, budget, form=form), WorkDone()
    local = LocalSearch(simulator, made, problem.horizon_ns, 3)
    local.go_on(1_500, spent)
    return local.best(), spent.done, simulator.choices, simulator.cost, simulator.stalls()
