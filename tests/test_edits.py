"""A workload's ops in another order, and again: nothing that an op sees may change."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import cases, edits, graphs, plans, sized

from hosim.analysis import static_peak
from hosim.analysis.costmodel import op_durations
from hosim.analysis.lower_bounds import bounded, free_order_bound_ns
from hosim.analysis.verifying import check_edits, verify
from hosim.cache_plan import Plan
from hosim.edits import Edits, Recompute, edited, permuted
from hosim.engine import replay
from hosim.errors import GraphError
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Channel, Compute, Hardware, Tier

MACHINE = Hardware("flat", (Tier("hbm", 100, 10**12, "device"),), (), Compute({}))
"""A machine with nothing below its device tier."""


def values(graph: Graph, edit: Edits | None = None) -> tuple[dict[str, list], dict[str, object]]:
    """What each op reads, and what survives the step, as terms: an op's name applied to the terms
    of what it reads.

    Runs the graph on symbols; a recomputed op is called as its original.
    """
    original = {entry.name: entry.op for entry in edit.recompute} if edit else {}
    terms: list[object] = [tensor.name for tensor in graph.tensors]
    read: dict[str, list] = {}
    for op in graph.ops:
        name = original.get(op.name, op.name)
        seen = [terms[t] for t in op.reads]
        read.setdefault(name, []).append(seen)
        made = (name, tuple(map(hash, map(str, seen))))
        for k, t in enumerate(op.outputs):
            terms[t] = (*made, "output", k)
        for k, t in enumerate(op.mutates):
            terms[t] = (*made, "in place", k)
    return read, {
        graph.tensors[t].name: terms[t] for t in range(len(graph.tensors)) if graph.survives[t]
    }


@given(st.data())
def test_edits_compute_the_same(data):
    graph = data.draw(graphs(max_streams=3))
    edit = data.draw(edits(graph))
    made = edit.graph()
    assert list(check_edits(made, edit)) == []
    expected, at_the_end = values(graph)
    read, kept = values(made, edit)
    assert kept == at_the_end
    for name, seen in expected.items():
        again = sum(entry.op == name for entry in edit.recompute)
        assert read[name] == seen * (1 + again)
    assert len(made.ops) == len(graph.ops) + len(edit.recompute)


@given(st.data())
def test_edited_graphs_are_planned_verified_and_replayed_like_any(data):
    graph, machine, _ = data.draw(cases(max_streams=2))
    edit = data.draw(edits(graph))
    made = edit.graph()
    machine = sized(machine, made)
    plan = replace(data.draw(plans(made, machine)), edits=edit)
    assert verify(plan, machine) == ()
    result = replay(plan, machine)
    assert result.feasible
    assert result.plan.get("recomputes", 0) == len(edit.recompute)
    durations = op_durations(graph, machine)
    assert free_order_bound_ns(graph, durations, machine) <= result.makespan_ns
    starts = {
        t: plan.initial.get(t, (graph.tensors[t].home or machine.device_tier,))
        for t in graph.initial
    }
    assert free_order_bound_ns(graph, durations, machine, None, starts) <= result.makespan_ns
    assert bounded(result, plan, machine, None).lower_bound_ns <= result.makespan_ns


@pytest.mark.parametrize(
    ("below", "up_ns", "down_ns"), [("", 250, 300), ("s", 250, 400), ("ps", 300, 400)]
)
def test_what_is_below_comes_up_and_goes_back_if_it_is_written(below, up_ns, down_ns):
    """p of 10 B is read, s and m of 20 B each are written, in a device tier of 25 B; 10 ns/B up, 20
    ns/B down.

    Of the 50 B at least 25 come up in 250 ns, and of the 40 B that are written at least 15 go back
    in 300 ns. If s starts below, 20 B and 5 of the other 30 B come up, and 20 B go back at least;
    the other 20 B that are written would fit. If p does, too, 30 B come up.
    """
    b = GraphBuilder("step")
    b.tensor("p", 10, "parameter")
    b.op("read", "matmul", inputs=["p"], duration_ns=5)
    for name in "sm":
        b.tensor(name, 20, "optimizer_state")
        b.op(f"update.{name}", "adam", mutates=[name], duration_ns=5)
    graph = b.build()
    channels = (Channel("up", "ddr", "hbm", 10**8), Channel("down", "hbm", "ddr", 5 * 10**7))
    machine = Hardware(
        "slow", (Tier("hbm", 25, 10**12, "device"), Tier("ddr", 100, 10**12)), channels, Compute({})
    )
    starts = {graph.tensor_index[name]: ("ddr",) for name in below}
    for repeats, bound in ((True, down_ns), (False, up_ns)):
        assert (
            free_order_bound_ns(graph, (5, 5, 5), machine, None, starts, repeats=repeats) == bound
        )


def chain() -> Graph:
    """f makes a; g, h and k read it; h adds to the parameter w in place, which f reads."""
    b = GraphBuilder("chain")
    for name, kind in (("w", "parameter"), ("s", "input")):
        b.tensor(name, 5, kind)
    for name in "abc":
        b.tensor(name, 10)
    b.tensor("y", 1, "output")
    b.op("f", "matmul", inputs=["w"], outputs=["a"], duration_ns=3)
    b.op("g", "relu", inputs=["a"], outputs=["b"], duration_ns=4)
    b.op("r", "dropout", inputs=["s"], outputs=["c"], duration_ns=4)
    b.op("h", "adam", inputs=["b", "c"], mutates=["w"], duration_ns=5)
    b.op("k", "add", inputs=["a", "c"], outputs=["y"], deps=["g"], duration_ns=6)
    return b.build()


def test_a_recomputed_tensor_has_two_short_lives():
    made = edited(chain(), recompute=[Recompute("f", "h", "f~2")])
    assert [op.name for op in made.ops] == ["f", "g", "r", "f~2", "h", "k"]
    again = made.tensor_index["a@f~2"]
    assert (made.tensors[again].size_bytes, made.tensors[again].kind, made.survives[again]) == (
        10,
        "activation",
        False,
    )
    a, k = made.tensor_index["a"], made.op_index["k"]
    assert made.users[a] == (0, 1)  # dies after g
    assert made.users[again] == (3, 5)  # lives from f~2 to k
    assert made.ops[k].deps == (1,)
    assert made.ops[3].duration_ns == 3


def test_an_output_that_survives_is_made_aside():
    b = GraphBuilder("g")
    b.tensor("y", 10, "output")
    b.tensor("a", 10)
    b.op("f", "k", outputs=["y", "a"])
    b.op("g", "k", inputs=["a", "y"])
    b.op("h", "k", inputs=["a", "y"])
    made = edited(b.build(), recompute=[Recompute("f", "h", "f~2")])
    assert [made.tensors[t].name for t in made.ops[3].inputs] == ["a@f~2", "y"]
    assert not made.survives[made.tensor_index["y@f~2"]]


@pytest.mark.parametrize(
    ("order", "recompute", "message"),
    [
        ("fghk", [], "order: op 'r' missing; the order lists every op of 'chain' once"),
        ("fgrhh", [], "order[4]: op 'h' is listed twice"),
        ("fgrhx", [], "order[4]: unknown op 'x'; the order lists the ops of 'chain'"),
        ("gfrhk", [], "order[0]: op 'g' stands before op 'f', but it reads tensor 'a', which that "
            "writes"),
        ("fhgrk", [], "order[1]: op 'h' stands before op 'g', but it reads tensor 'b', which that "
            "writes"),
        ("", [("f", "k", "f~2")], "recompute[0].before: op 'f' reads tensor 'w', which op 'h' has "
            "written since"),
        ("", [("r", "k", "r~2")], "recompute[0].op: op 'r' is random (kind 'dropout'): run again, "
            "it would give another result"),
        ("", [("h", "k", "h~2")], "recompute[0].op: op 'h' changes tensor 'w' in place: run "
            "again, it would change it twice"),
        ("", [("g", "f", "g~2")], "recompute[0].before: op 'g' has not run before op 'f': it "
            "cannot run again there"),
        ("", [("x", "k", "x~2")], "recompute[0].op: unknown op 'x'; expected one of 'chain'"),
        ("", [("g", "f~2", "g~2")], "recompute[0].before: unknown op 'f~2'; expected one of "
            "'chain'"),
        ("", [("g", "k", "g")], "recompute[0].name: op name 'g' is taken; give the recomputed op "
            "a name of its own, such as 'g~2'"),
        ("", [("f", "h", "x")] * 2, "recompute[1].name: op name 'x' is taken; give the recomputed "
            "op a name of its own, such as 'f~2'"),
    ],
)  # fmt: skip
def test_what_would_change_the_computation_is_refused(order, recompute, message):
    with pytest.raises(GraphError) as error:
        edited(chain(), list(order), [Recompute(*entry) for entry in recompute])
    assert str(error.value) == message


def test_a_tensor_has_the_name_of_a_new_one():
    b = GraphBuilder("g")
    b.op("f", "k", outputs=[b.tensor("a", 1)])
    b.op("g", "k", inputs=["a"], outputs=[b.tensor("a@f~2", 1)])
    b.op("h", "k", inputs=["a", "a@f~2"])
    with pytest.raises(GraphError, match="tensor name 'a@f~2' is taken"):
        edited(b.build(), recompute=[Recompute("f", "h", "f~2")])
    assert len(edited(b.build(), recompute=[Recompute("f", "h", "f~3")]).tensors) == 3


def test_an_order_that_breaks_only_a_dep_or_a_write_names_it():
    b = GraphBuilder("g")
    b.tensor("w", 1, "parameter")
    b.op("f", "k", inputs=["w"])
    b.op("u", "k", mutates=["w"])
    b.op("d", "k", deps=["u"])
    graph = b.build()
    with pytest.raises(
        GraphError,
        match="op 'u' stands before op 'f', but it writes tensor 'w', which that uses first",
    ):
        edited(graph, ["u", "f", "d"])
    with pytest.raises(GraphError, match="op 'd' stands before op 'u', but its deps name that"):
        edited(graph, ["f", "d", "u"])
    with pytest.raises(GraphError, match="stands before"):
        permuted(graph, [1, 0, 2])


def test_the_check_finds_what_an_edit_must_not_do():
    graph = chain()
    edit = Edits(graph, (), (Recompute("f", "h", "f~2"),))
    right = edit.graph()

    def messages(wrong: Graph) -> list[str]:
        return [finding.message for finding in check_edits(wrong, edit)]

    w, a, c = (graph.tensor_index[name] for name in "wac")
    h, k = right.op_index["h"], right.op_index["k"]

    def with_op(i: int, **changed: object) -> Graph:
        return replace(
            right, ops=(*right.ops[:i], replace(right.ops[i], **changed), *right.ops[i + 1 :])
        )

    assert messages(right) == []
    assert messages(with_op(k, inputs=(c, a))) == [
        "op 'k' reads other contents in tensor 'c' than op 'k' of 'chain' does"
    ]
    assert messages(with_op(k, inputs=(a, c))) == []  # the first a has the same contents
    assert messages(with_op(3, inputs=(c,))) == [
        "op 'f~2' reads other contents in tensor 'c' than op 'f' of 'chain' does"
    ]
    assert messages(with_op(h, mutates=())) == [
        "op 'h' reads 2 tensors, op 'h' of 'chain' 3",
        "tensor 'w' survives the step with other contents than in 'chain'",
    ]
    made_otherwise = ["op 'k' makes other tensors, or follows other ops, than op 'k' of 'chain'"]
    assert messages(with_op(k, deps=(0,))) == made_otherwise
    small = tuple(
        [
            replace(tensor, size_bytes=1) if tensor.name == "c" else tensor
            for tensor in right.tensors
        ]
    )
    assert messages(replace(right, tensors=small))[-1] == "tensor 'c' is not tensor 'c' of 'chain'"
    copy = tuple(
        [
            replace(tensor, size_bytes=1) if tensor.name == "a@f~2" else tensor
            for tensor in right.tensors
        ]
    )
    assert messages(replace(right, tensors=copy)) == [
        "op 'f~2' makes other tensors, or follows other ops, than op 'f' of 'chain'"
    ]
    assert messages(with_op(h, duration_ns=1)) == ["op 'h' is not the op 'h' of 'chain'"]
    assert (
        messages(replace(right, ops=right.ops[:-1]))[0]
        == "op 'k' of 'chain' is listed 0 times, not once"
    )
    assert (
        messages(with_op(k, name="z"))[0] == "op 'z' is neither one of 'chain' nor a recomputed one"
    )
    assert verify(Plan(with_op(3, inputs=(c,)), edits=edit), MACHINE)[0].rule == "edit"
    assert w == right.ops[3].inputs[0]


def test_with_everything_resident_the_peak_is_that_of_the_edited_graph():
    """w and s are 5 each, a, b, c 10 each, y 1. From r (at 7) on all are held; with a gone after g
    that is so from f~2 (at 11) on.
    """
    graph = chain()
    edit = Edits(graph, (), (Recompute("f", "h", "f~2"),))
    result = replay(Plan(edit.graph(), edits=edit), MACHINE)
    assert (result.peak_bytes["hbm"], result.peak_at_ns["hbm"]) == (40, 11)
    assert static_peak(edit.graph()).bytes == 40
    assert result.makespan_ns == 3 + 4 + 4 + 3 + 5 + 6
    assert replay(Plan(graph), MACHINE).peak_at_ns["hbm"] == 7


@given(st.data())
def test_an_edited_graph_is_what_its_objects_make(data):
    """Its columns are made without objects: codes come in the order of their first op."""
    graph = data.draw(graphs(8, max_streams=2))
    made = data.draw(edits(graph)).graph()
    assert Graph(made.name, tuple(made.tensors), tuple(made.ops)) == made
