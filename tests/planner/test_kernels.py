"""The kernels of the search: compiled and interpreted alike, and what they lower is what the plan of
the same choices does.
"""

import pytest
from drawn_choices import choices
from hypothesis import given
from hypothesis import strategies as st
from strategies import graphs, hardware, sized

from hosim.planner.hyperoffload.kernels import LoweredChoices
from hosim.planner.hyperoffload.local_moves import ChoiceArrays, PlanSimulator
from hosim.planner.hyperoffload.tensor_choices import analyse


@pytest.mark.parametrize("streams", [1, 3])
@given(data=st.data())
def test_a_choice_is_lowered_to_the_moves_of_its_plan(streams: int, data: st.DataObject) -> None:
    drawn = data.draw(hardware())
    graph = data.draw(graphs(max_ops=12, max_streams=streams, homes=[t.name for t in drawn.tiers]))
    problem = analyse(graph, sized(drawn, graph))
    simulator = PlanSimulator(problem, 10**9)
    made = data.draw(choices(problem))
    if not simulator.covers(made):
        return
    for form in (None, LoweredChoices):
        arrays = ChoiceArrays(problem, simulator.table, form)
        for t, tensor in enumerate(graph.tensors):
            arrays.put(t, made.get(t))
            found, kernel = simulator.compiler.moves(t, made.get(t)), arrays.kernel
            assert arrays.rows(kernel.lower(t)) == [*found.rows][: len(found.rows) // 9 * 9]
            assert kernel.initial == sum([1 << r for r in found.initial])
            assert kernel.copied * tensor.size_bytes == found.moved_bytes
