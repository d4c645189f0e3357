"""Gaps of a tensor: where it lies idle within the step, and whether its contents must come back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from strategies import graphs

from hosim.analysis import Gap, tensor_gaps
from hosim.cache_plan import AT_START
from hosim.graph import Graph, GraphBuilder


def gaps_of(graph: Graph, name: str) -> list[Gap]:
    return tensor_gaps(graph)[graph.tensor_index[name]]


def five_ops() -> Graph:
    b = GraphBuilder("five")
    b.tensor("w", 40, "parameter")
    b.tensor("a", 30)
    b.tensor("y", 30, "output")
    b.tensor("idle", 40, "parameter")
    b.op("f0", "any", outputs=["a"])
    b.op("f1", "any", inputs=["w"], outputs=["y"])
    b.op("f2", "any")
    b.op("f3", "any", inputs=["w", "a"])
    b.op("f4", "any")
    return b.build()


def test_a_parameter_is_idle_before_between_and_after_its_uses() -> None:
    assert gaps_of(five_ops(), "w") == [Gap(0, AT_START, 1), Gap(0, 1, 3), Gap(0, 3, 5)]


def test_an_activation_is_idle_between_its_uses_alone() -> None:
    assert gaps_of(five_ops(), "a") == [Gap(1, 0, 3, version=1, returns=True, written=0)]


def test_an_output_need_not_come_back() -> None:
    assert gaps_of(five_ops(), "y") == [Gap(2, 1, 5, version=1, returns=False, written=1)]


def test_a_parameter_that_no_op_uses_is_idle_for_the_whole_step() -> None:
    assert gaps_of(five_ops(), "idle") == [Gap(3, AT_START, 5, returns=False)]


def test_neighbouring_uses_leave_no_gap_and_the_first_op_leaves_one_before_it() -> None:
    b = GraphBuilder("g")
    b.tensor("w", 40, "parameter")
    b.op("f", "any", inputs=["w"])
    b.op("g", "any", inputs=["w"])
    # it may start below: op 0 waits, and the end of the step has the room
    assert gaps_of(b.build(), "w") == [Gap(0, AT_START, 0)]


def test_an_op_that_overwrites_makes_the_contents_dead() -> None:
    b = GraphBuilder("g")
    b.tensor("a", 40)
    for i in range(5):
        b.op(f"f{i}", "any", outputs=["a"] if i in (0, 2) else [], inputs=["a"] if i == 4 else [])
    first, second = gaps_of(b.build(), "a")
    assert (first, first.dead(5)) == (Gap(0, 0, 2, version=1, returns=False, written=0), True)
    assert (second, second.dead(5)) == (Gap(0, 2, 4, version=2, returns=True, written=2), False)


@given(graphs(max_ops=10, max_streams=2), st.data())
def test_gaps_are_the_runs_of_ops_that_do_not_use_a_tensor(
    graph: Graph, data: st.DataObject
) -> None:
    """Mark the ops that use a tensor: every run of others is a gap if the tensor is there before
    and wanted after, and they are all.
    """
    count = len(graph.ops)
    for t, tensor in enumerate(graph.tensors):
        used = [t in op.inputs or t in op.outputs or t in op.mutates for op in graph.ops]
        found = {(gap.after, gap.before): gap for gap in tensor_gaps(graph)[t]}
        assert all(gap.after >= 0 or t in graph.initial for gap in found.values())
        inside = [(i, [(a, b) for a, b in found if a < i < b]) for i in range(count)]
        lives = tensor.persistent or tensor.kind == "output"
        for i, covering in inside:
            before, after = any(used[:i]), any(used[i + 1 :])
            idle = not used[i] and (before or t in graph.initial) and (after or (lives and before))
            if not any(used):
                idle = bool(tensor.persistent and t in graph.initial)
            assert len(covering) == idle, (tensor.name, i)
        for (a, b), gap in found.items():
            writers = [
                i for i in range(a + 1) if t in graph.ops[i].outputs or t in graph.ops[i].mutates
            ]
            assert (gap.version, gap.written) == (
                len(writers),
                writers[-1] if writers else AT_START,
            )
            if b < count:
                assert gap.returns == (t in graph.ops[b].inputs or t in graph.ops[b].mutates)
            else:
                assert gap.returns == (t in graph.initial and any(used))
