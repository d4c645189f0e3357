"""Gaps in op positions and in time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hosim.analysis.gaps import Gap, gap_lengths_ns, gaps
from hosim.graph import Graph, GraphBuilder, Op, Tensor


def five_ops():
    b = GraphBuilder("five")
    b.tensor("w", 40, "parameter")
    b.tensor("a", 30)
    b.op("f0", "any", outputs=["a"])
    b.op("f1", "any", inputs=["w"])
    b.op("f2", "any")
    b.op("f3", "any", inputs=["w", "a"])
    b.op("f4", "any")
    return b.build()


def test_inner_and_wrapping_gaps():
    # w is used at 1 and 3, and across the step from 3 round to 1 (over f4 and f0); a at 0 and 3
    assert gaps(five_ops()) == (Gap(0, 1, 3), Gap(0, 3, 1, wraps=True), Gap(1, 0, 3))


def test_lengths_in_time():
    # starts 0 1 3 7 15, ends 1 3 7 15 31: f2 lasts 4; f4 + f0 last 16 + 1; f1 + f2 last 2 + 4
    assert gap_lengths_ns(five_ops(), [1, 2, 4, 8, 16], gaps(five_ops())) == (4, 17, 6)


def test_a_single_use_leaves_the_rest_of_the_step():
    b = GraphBuilder("g")
    b.tensor("w", 40, "parameter")
    b.tensor("idle", 40, "parameter")
    b.op("f", "any")
    b.op("g", "any", inputs=["w"])
    graph = b.build()
    assert gaps(graph) == (Gap(0, 1, 1, wraps=True),)
    assert gap_lengths_ns(graph, [3, 5], gaps(graph)) == (3,)


def test_neighbouring_uses_leave_none():
    b = GraphBuilder("g")
    b.tensor("w", 40, "parameter")
    b.op("f", "any", inputs=["w"])
    b.op("g", "any", inputs=["w"])
    assert gaps(b.build()) == ()


def test_uses_that_overlap_leave_no_time():
    b = GraphBuilder("g")
    b.tensor("w", 40, "parameter")
    b.op("f", "any", inputs=["w"], stream="a")
    b.op("between", "any", stream="c")
    b.op("g", "any", inputs=["w"], stream="b")
    assert gap_lengths_ns(b.build(), [9, 1, 2], [Gap(0, 0, 2)]) == (0,)


@given(st.lists(st.lists(st.integers(0, 3), unique=True, max_size=3), min_size=1, max_size=12), st.data())
def test_gaps_are_the_runs_of_ops_that_do_not_use_a_tensor(uses, data):
    """Mark the ops that use a tensor on a ring: every run of others between two marks is one gap, and they are all."""
    graph = Graph(
        "g", tuple(Tensor(f"t{i}", 1, "parameter") for i in range(4)), tuple(Op(f"f{i}", "any", tuple(u)) for i, u in enumerate(uses))
    )
    durations = data.draw(st.lists(st.integers(0, 9), min_size=len(uses), max_size=len(uses)))
    found = gaps(graph)
    lengths = gap_lengths_ns(graph, durations, found)
    for t in range(4):
        idle = [i for i, u in enumerate(uses) if t not in u]
        if len(idle) == len(uses):
            assert not [g for g in found if g.tensor == t]
            continue
        covered = []
        for gap, length in zip(found, lengths, strict=True):
            if gap.tensor != t:
                continue
            stop = gap.before + len(uses) * gap.wraps
            inside = [i % len(uses) for i in range(gap.after + 1, stop)]
            assert inside
            assert length == sum(durations[i] for i in inside)
            covered += inside
        assert sorted(covered) == idle
