"""Critical path: hand-made diamonds, and networkx as the oracle."""

from __future__ import annotations

import networkx as nx
from hypothesis import given
from hypothesis import strategies as st

from hosim.analysis.lower_bounds import critical_path, tails
from hosim.data.stream_order import earliest_starts, stream_predecessors
from hosim.graph import Graph, GraphBuilder, Op, Tensor


@st.composite
def layered(draw):
    """Ops on up to three streams, joined by data and by deps; with a duration each."""
    ops = []
    for i in range(draw(st.integers(1, 12))):
        earlier = st.lists(st.integers(0, i - 1), unique=True, max_size=3) if i else st.just([])
        ops.append(
            Op(
                f"f{i}",
                "any",
                tuple(draw(earlier)),
                (i,),
                deps=tuple(draw(earlier)),
                stream=draw(st.sampled_from("abc")),
            )
        )
    durations = draw(st.lists(st.integers(0, 20), min_size=len(ops), max_size=len(ops)))
    return Graph(
        "layered", tuple(Tensor(f"t{i}", 1) for i in range(len(ops))), tuple(ops)
    ), durations


def diamond():
    b = GraphBuilder("diamond")
    for t in "abcd":
        b.tensor(t, 1)
    b.op("top", "any", outputs=["a"])
    b.op("left", "any", inputs=["a"], outputs=["b"], stream="left")
    b.op("right", "any", inputs=["a"], outputs=["c"], stream="right")
    b.op("bottom", "any", inputs=["b", "c"], outputs=["d"])
    return b.build()


def test_the_slower_side_of_a_diamond():
    # top 2, then left 7 beside right 5, then bottom 3: 2 + 7 + 3
    path = critical_path(diamond(), [2, 7, 5, 3])
    assert (path.length_ns, path.ops) == (12, (0, 1, 3))
    assert earliest_starts(diamond(), [2, 7, 5, 3]) == [0, 2, 2, 9]
    assert tails(diamond(), [2, 7, 5, 3]) == [12, 10, 8, 3]


def test_stream_order_counts():
    b = GraphBuilder("g")
    b.op("f", "any")
    b.op("g", "any", stream="other")
    b.op("h", "any")
    assert stream_predecessors(b.build()) == [-1, -1, 0]
    path = critical_path(b.build(), [4, 6, 5])
    assert (path.length_ns, path.ops) == (9, (0, 2))


def test_no_ops():
    assert critical_path(Graph("g", (), ()), []).ops == ()


@given(layered())
def test_it_is_the_longest_path_of_networkx(drawn):
    graph, durations = drawn
    view = nx.DiGraph()
    view.add_nodes_from(
        range(-1, len(graph.ops))
    )  # -1: a start of no duration, so that an edge carries the duration of its head
    view.add_weighted_edges_from((-1, i, durations[i]) for i in range(len(graph.ops)))
    for i, op in enumerate(graph.ops):
        earlier = [
            j
            for j in range(i)
            if graph.ops[j].stream == op.stream
            or j in op.deps
            or set(graph.ops[j].uses) & set(op.uses)
        ]
        reads_only = {
            j
            for j in earlier
            if graph.ops[j].stream != op.stream
            and j not in op.deps
            and not _conflict(graph.ops[j], op)
        }
        view.add_weighted_edges_from((j, i, durations[i]) for j in earlier if j not in reads_only)
    path = critical_path(graph, durations)
    assert path.length_ns == nx.dag_longest_path_length(view)
    assert sum(durations[i] for i in path.ops) == path.length_ns
    assert nx.is_path(view, path.ops)
    assert max(tails(graph, durations)) == path.length_ns


def _conflict(earlier, later):
    return bool(set(earlier.writes) & set(later.uses) or set(earlier.uses) & set(later.writes))
