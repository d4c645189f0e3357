"""hyperoffload finds a plan wherever one exists: held against the exact solver on graphs with every
sort of tensor.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import graphs
from toys import machine

from hosim.analysis.verifying import verify
from hosim.engine import replay
from hosim.errors import InfeasibleError
from hosim.graph import Graph
from hosim.planner.exact import solve
from hosim.planner.hyperoffload import search
from hosim.planner.hyperoffload.tensor_choices import analyse

pytest.importorskip("ortools")


@settings(max_examples=15)
@given(graphs(max_ops=7, homes=("hbm", "ddr")), st.sampled_from((0.0, 0.0, 0.2, 0.5)))
def test_it_is_feasible_wherever_the_optimum_is(graph: Graph, share: float) -> None:
    hw = machine()
    problem = analyse(graph, hw)
    floor, peak = max(problem.floor_bytes), max(problem.held_bytes)
    budget = floor + int((peak - floor) * share)
    try:
        found = search(graph, hw, budget, effort=0.02)
    except InfeasibleError:
        with pytest.raises(InfeasibleError):
            solve(graph, hw, budget, limit=2.0)
        return
    assert verify(found.plan, hw, budget) == ()
    result = replay(found.plan, hw, budget)
    assert result.feasible
    assert result.makespan_ns == found.cost.makespan_ns
