"""What a budget forces to move: the greedy sweep against linear programming."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosim.analysis.forced_traffic import START, Demand, arrivals, demands, departures
from hosim.graph import GraphBuilder

optimize = pytest.importorskip("scipy.optimize")


@st.composite
def covering(draw):
    """Intervals over a few places, some forced, with what must be covered: never more than all intervals together cover."""
    end = draw(st.integers(1, 7))
    pairs = st.tuples(st.integers(START, end - 1), st.integers(0, end), st.integers(0, 20)).filter(lambda i: i[0] < i[1])
    intervals = draw(st.lists(pairs, max_size=8))
    forced = [left == START and draw(st.booleans()) for left, _, _ in intervals]
    spans = [sum(size for left, right, size in intervals if left < p < right) for p in range(end)]
    excess = [draw(st.integers(-5, most)) for most in spans]
    return Demand(tuple(intervals), tuple(forced), tuple(excess))


def least(demand, places, cost, forced):
    """min sum(cost x) with x in [0, bytes] such that the intervals cover the excess at ``places``; ``forced`` ones whole."""
    if not demand.intervals:
        return 0
    rows = [[-1.0 * (left < p < right) for left, right, _ in demand.intervals] for p in places]
    limits = [(size if fixed else 0, size) for (_, _, size), fixed in zip(demand.intervals, forced, strict=True)]
    result = optimize.linprog(cost, A_ub=rows or None, b_ub=[-demand.excess[p] for p in places] or None, bounds=limits)
    assert result.status == 0
    return result.fun


@given(covering())
def test_arrivals_are_the_least_for_every_deadline(demand):
    end = len(demand.excess)
    come = arrivals(demand)
    for deadline in range(end + 1):
        cost = [float(right <= deadline) for _, right, _ in demand.intervals]
        assert come[deadline] == pytest.approx(least(demand, range(end), cost, demand.forced), abs=1e-6)


@given(covering(), st.data())
def test_arrivals_after_a_place_are_the_least_too(demand, data):
    end = len(demand.excess)
    begin = data.draw(st.integers(0, end - 1))
    later = arrivals(demand, begin)
    for deadline in range(end + 1):
        cost = [float(right <= deadline) for _, right, _ in demand.intervals]
        unforced = [False] * len(demand.intervals)
        assert later[deadline] == pytest.approx(least(demand, range(begin, end), cost, unforced), abs=1e-6)


@given(covering())
def test_departures_are_the_least_up_to_every_place(demand):
    end = len(demand.excess)
    # what rule 2 wants stored lasts to the end of the step
    intervals = tuple(
        (left, end, size) if fixed else (left, right, size)
        for (left, right, size), fixed in zip(demand.intervals, demand.forced, strict=True)
    )
    demand = Demand(intervals, demand.forced, demand.excess)
    gone = departures(demand)
    unforced = [False] * len(intervals)
    for p in range(end):
        assert gone[p] == pytest.approx(least(demand, range(p + 1), [1.0] * len(intervals), unforced), abs=1e-6)
    assert gone[end] == pytest.approx(least(demand, range(end), [1.0] * len(intervals), demand.forced), abs=1e-6)


def test_the_demands_of_a_small_step():
    b = GraphBuilder("small")
    b.tensor("w", 40, "parameter")
    b.tensor("c", 7, "parameter", home="ddr")
    b.tensor("a", 30)
    b.op("f0", "any", inputs=["w"], outputs=["a"])
    b.op("f1", "any", workspace_bytes=9)
    b.op("f2", "any", inputs=["a", "c"])
    b.op("f3", "any")
    graph = b.build()
    into, out = demands(graph, "compute", 50, {0: ("hbm",), 1: ("ddr",)}, "hbm", repeats=True)
    # w is used at 0 and must be there at the end (4); c starts elsewhere and is read at 2; a is used at 0 and 2
    assert set(zip(into.intervals, into.forced, strict=True)) == {((0, 4, 40), False), ((START, 2, 7), True), ((0, 2, 30), False)}
    # f0: 70 + c 7; f1: workspace 9 + w 40 + c 7 + a 30; f2: a 30 + c 7 + w 40; f3: w 40. Less 50
    assert into.excess == (27, 36, 27, -10)
    # w exists in hbm alone from the start and is needed to the end; a from f0 to f2
    assert set(out.intervals) == {(START, 4, 40), (0, 2, 30)}
    # f0 uses w itself: 70; f1: 9 + 40 + 30; f2: 37 + 40; f3: 40. Less 50
    assert out.excess == (20, 29, 27, -10)
