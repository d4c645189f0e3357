"""Graphs and plans by names, and the views of them for networkx."""

from __future__ import annotations

import copy
import pickle
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import graphs

from hosim.cache_plan import CacheOp, Plan
from hosim.errors import GraphError
from hosim.graph import Graph, GraphBuilder, Op, Tensor


def toy() -> Graph:
    """``f`` makes ``a`` from ``w``; ``g`` on another stream only waits; ``h`` uses both tensors and
    changes ``a``.
    """
    b = GraphBuilder("toy", {"from": "here"})
    b.tensor("w", 40, "parameter", home="ddr")
    b.tensor("a", 30)
    b.op("f", "matmul", inputs=["w"], outputs=["a"], duration_ns=50, flops=7)
    b.op("g", "copy", deps=["f"], stream="side")
    b.op("h", "matmul", inputs=["w"], mutates=["a"], deps=["g"])
    return b.build()


def described(view: Any) -> tuple[dict[str, dict[str, Any]], dict[tuple[str, str], dict[str, Any]]]:
    return dict(view.nodes(data=True)), {(a, b): data for a, b, data in view.edges(data=True)}


NODES = {
    "f": {"position": 0, "kind": "matmul", "stream": "compute", "duration_ns": 50, "flops": 7},
    "g": {"position": 1, "kind": "copy", "stream": "side", "duration_ns": None, "flops": 0},
    "h": {"position": 2, "kind": "matmul", "stream": "compute", "duration_ns": None, "flops": 0},
}
EDGES = {
    ("f", "g"): {"tensors": ()},
    ("f", "h"): {"tensors": ("w", "a")},
    ("g", "h"): {"tensors": ()},
}


def test_the_view_of_a_graph() -> None:
    view = toy().to_networkx()
    assert view.name == "toy"
    assert described(view) == (NODES, EDGES)


def test_the_view_of_a_plan() -> None:
    """``w`` comes at the start, goes after ``f`` and comes again after ``g``; ``a`` is stored and
    stays.
    """
    ops = (
        CacheOp("prefetch", 0, "ddr", "hbm", 1),
        CacheOp("prefetch", 0, "ddr", "hbm"),
        CacheOp("detach", 0, "hbm", None, 0),
        CacheOp("store", 1, "hbm", "ddr", 0),
    )
    nodes, edges = described(Plan(toy(), cache_ops=ops).to_networkx())
    assert nodes == {
        **NODES,
        "prefetch:w#0": {"kind": "prefetch", "source": "ddr", "destination": "hbm", "cache_op": 0},
        "prefetch:w#1": {"kind": "prefetch", "source": "ddr", "destination": "hbm", "cache_op": 1},
        "detach:w#2": {"kind": "detach", "source": "hbm", "destination": None, "cache_op": 2},
        "store:a#3": {"kind": "store", "source": "hbm", "destination": "ddr", "cache_op": 3},
    }
    assert edges == {
        **EDGES,
        ("g", "prefetch:w#0"): {"tensors": ()},
        ("f", "detach:w#2"): {"tensors": ()},
        ("f", "store:a#3"): {"tensors": ()},
        ("prefetch:w#1", "detach:w#2"): {"tensors": ("w",)},
        ("detach:w#2", "prefetch:w#0"): {"tensors": ("w",)},
        ("prefetch:w#1", "f"): {"tensors": ("w",)},
        ("prefetch:w#0", "h"): {"tensors": ("w",)},
    }


def test_names_that_a_builder_refuses() -> None:
    b = GraphBuilder("toy")
    assert (b.tensor("w", 1), b.op("f", "k")) == ("w", "f")
    cases = [
        (lambda: b.tensor("w", 1), "tensors[1].name: tensor name 'w' is listed twice"),
        (lambda: b.op("f", "k"), "ops[1].name: op name 'f' is listed twice"),
        (lambda: b.op("g", "k", inputs=["w", "x"]), "ops[1].inputs[1]: unknown tensor 'x'"),
        (lambda: b.op("g", "k", outputs=["x"]), "ops[1].outputs[0]: unknown tensor 'x'"),
        (lambda: b.op("g", "k", mutates=["x"]), "ops[1].mutates[0]: unknown tensor 'x'"),
        (lambda: b.op("g", "k", deps=["f", "g"]), "ops[1].deps[1]: unknown earlier op 'g'"),
        *(
            (
                lambda key=key: b.op("g", "k", **{key: "w"}),
                f"ops[1].{key}: expected a list of names, got 'w'",
            )
            for key in ("inputs", "outputs", "mutates", "deps")
        ),
    ]
    for call, message in cases:
        with pytest.raises(GraphError) as caught:
            call()
        assert str(caught.value) == message
    assert [op.name for op in b.build().ops] == ["f"]


def test_what_a_graph_keeps() -> None:
    graph = toy()
    calls: list[tuple[Any, ...]] = []

    def compute(graph: Graph, *arguments: int, **named: int) -> int:
        calls.append((*arguments, named))
        return len(calls)

    assert [
        graph.derived(compute, 1, b=2, a=3),
        graph.derived(compute, 1, a=3, b=2),
        graph.derived(compute, 2),
    ] == [1, 1, 2]
    assert calls == [(1, {"b": 2, "a": 3}), (2, {})]
    one, other = [1], [2]

    def on(graph: Graph, machine: list[int]) -> list[int]:
        return [len(graph.ops)]

    kept = graph.derived_on(one, on)
    assert kept == [3]
    assert graph.derived_on(one, on) is kept
    assert graph.derived_on([1], on) is kept
    again = graph.derived_on(other, on)
    assert again is not kept
    assert graph.derived_on(other, on) is again
    assert graph.derived_on(one, on) is not kept


def test_the_main_stream() -> None:
    def of(*streams: str) -> str:
        b = GraphBuilder("toy")
        for i, stream in enumerate(streams):
            b.op(f"op{i}", "k", stream=stream)
        return b.build().main_stream

    assert [of("a", "compute"), of("b", "a"), of()] == ["compute", "b", "compute"]


def test_a_builder_goes_on_after_it_has_built():
    """And after an op that it refused."""
    b = GraphBuilder("toy")
    b.tensor("a", 30), b.op("f", "matmul", outputs=["a"])
    first = b.build()
    with pytest.raises(GraphError, match=r"ops\[1\]\.inputs\[1\]: unknown tensor 'c'"):
        b.op("g", "matmul", inputs=["a", "c"])
    b.tensor("c", 30)
    b.op("g", "matmul", inputs=(name for name in ("a",)), outputs=["c"], deps=["f"])
    second = b.build()
    assert (len(first.ops), len(second.ops)) == (1, 2)
    assert second.ops[0] == first.ops[0]
    assert second.ops[1] == Op("g", "matmul", inputs=(0,), outputs=(1,), deps=(0,))
    assert second.tensors == (Tensor("a", 30), Tensor("c", 30))


@given(graphs(max_ops=6, max_streams=2))
def test_a_builder_makes_the_graph_that_its_ops_say(graph):
    """In two halves, with a graph built between them: what the first one named is not lost, nor
    what one op names the next one's.
    """
    b = GraphBuilder(graph.name)
    names = [
        b.tensor(t.name, t.size_bytes, t.kind, t.home, t.persistent, t.of) for t in graph.tensors
    ]
    for i, op in enumerate(graph.ops):
        if i == len(graph.ops) // 2:
            b.build()
        read, written, mutated = (
            [names[t] for t in listed] for listed in (op.inputs, op.outputs, op.mutates)
        )
        others = {
            f.name: getattr(op, f.name)
            for f in fields(op)
            if f.name not in ("name", "kind", "inputs", "outputs", "mutates", "deps")
        }
        with pytest.raises(GraphError, match="unknown tensor 'lost'"):
            b.op(op.name, op.kind, inputs=[*read, "lost"])
        deps = [graph.ops[d].name for d in op.deps]
        others["also_on"] = dict(op.also_on)
        b.op(
            op.name,
            op.kind,
            inputs=read,
            outputs=iter(written),
            mutates=mutated,
            deps=deps,
            **others,
        )
    built = b.build()
    assert built == graph
    assert built.tensor_index == {name: t for t, name in enumerate(names)}


@pytest.mark.parametrize("names", [("", "b"), ("a", "b")])
def test_a_builder_refuses_an_empty_name_when_it_builds(names):
    b = GraphBuilder("toy")
    for name in names:
        b.tensor(name, 1)
    b.op("" if all(names) else "f", "k")
    with pytest.raises(GraphError, match=r"(ops|tensors)\[0\]\.name: (op|tensor) name '' is empty"):
        b.build()


@given(graphs(max_ops=6, max_streams=2))
def test_users_and_initial_residents_are_those_of_the_definition(graph):
    users = [
        tuple(i for i, op in enumerate(graph.ops) if t in op.uses)
        for t in range(len(graph.tensors))
    ]
    assert graph.users == tuple(users)
    held = [
        t
        for t, tensor in enumerate(graph.tensors)
        if tensor.persistent or (users[t] and t in graph.ops[users[t][0]].reads)
    ]
    assert graph.initial == tuple(held)


@pytest.mark.parametrize(
    ("label", "what"),
    [("inputs", "tensor"), ("outputs", "tensor"), ("mutates", "tensor"), ("deps", "earlier op")],
)
def test_an_unknown_name_that_an_iterator_gives_is_named(label, what):
    builder = GraphBuilder("toy")
    with pytest.raises(GraphError) as refused:
        builder.op("f", "matmul", **({"inputs": (), "outputs": ()} | {label: iter(["lost"])}))
    assert str(refused.value) == f"ops[0].{label}[0]: unknown {what} 'lost'"


WRONG = (3, [], None, {"a": 1}, b"x", 1.5, float("nan"), ["y"], [["x"]], ("x", 3))


@pytest.mark.parametrize(
    "field",
    [
        "inputs",
        "outputs",
        "mutates",
        "deps",
        "also_on",
        "sizes",
        "kind",
        "stream",
        "dtype",
        "name",
        "message",
    ],
)
def test_what_is_no_text_and_no_list_of_names_is_refused_by_name(field: str) -> None:
    """In hosim's words: Python's would name neither the op nor the field."""
    refused = 0
    for value in WRONG:
        builder = GraphBuilder("toy")
        builder.tensor("x", 4, "parameter")
        try:
            builder.op(**{"name": "f", "kind": "any", field: value})
            builder.build()
        except GraphError as error:
            refused += 1
            assert field in str(error)
    assert refused >= 6


@pytest.mark.parametrize("field", ["name", "size_bytes", "kind", "home", "persistent"])
def test_what_is_no_field_of_a_tensor_is_refused_by_name(field: str) -> None:
    for value in ([], {"a": 1}, 1.5, [["x"]]):
        builder = GraphBuilder("toy")
        fields = {"name": "x", "size_bytes": 4, field: value}
        with pytest.raises(GraphError, match=field):
            (builder.tensor(**fields), builder.build())


@given(graphs(max_ops=6, max_streams=2))
def test_columns_say_what_the_objects_of_a_graph_say(graph: Graph) -> None:
    """Of a copy that has no objects yet, and of one that is made of objects."""
    unlooked = pickle.loads(pickle.dumps(graph))
    made = Graph(graph.name, tuple(graph.tensors), list(graph.ops), graph.meta)
    for each in (unlooked, made, copy.deepcopy(graph)):
        assert [op.kind for op in each.ops.each()] == [op.kind for op in graph.ops]
        assert each.ops.column(lambda op: op.duration_ns) == [op.duration_ns for op in graph.ops]
        assert each.tensors.those(lambda tensor: tensor.persistent) == tuple(
            t for t, tensor in enumerate(graph.tensors) if tensor.persistent
        )
        starts, named = each.ops.starts().tolist(), each.ops.named.tolist()
        lists = [tuple(named[a:b]) for a, b in pairwise(starts)]
        assert lists == [
            getattr(op, field)
            for op in graph.ops
            for field in ("inputs", "outputs", "mutates", "deps")
        ]
        assert each == graph
        assert hash(each) == hash(graph)
        assert (each.tensors, each.ops) == (tuple(graph.tensors), tuple(graph.ops))
        assert each.tensors.index(graph.tensors[-1]) == len(graph.tensors) - 1
    for i, op in enumerate(graph.ops):
        other = [replace(op, flops=op.flops + 1) if j == i else o for j, o in enumerate(graph.ops)]
        assert Graph(graph.name, graph.tensors, other) != graph


def test_the_columns_of_a_graph_cannot_be_changed() -> None:
    graph = toy()
    for numbers in (graph.tensors.codes, graph.ops.codes, graph.ops.named):
        with pytest.raises(TypeError):
            numbers[0] = 1
    with pytest.raises(AttributeError):
        graph.ops = ()
    with pytest.raises(AttributeError):
        graph.ops[0].flops = 1


def is_right(graph: Graph, ops: list[Op]) -> bool:
    """Whether ops name tensors and earlier ops as the reference of :class:`Op` says."""
    there = {t for t, tensor in enumerate(graph.tensors) if tensor.persistent or tensor.home}
    for i, op in enumerate(ops):
        read = [*op.inputs, *op.mutates]
        if not there.issuperset(read) or not set(op.deps) <= set(range(i)):
            return False
        if not set(op.outputs) <= set(range(len(graph.tensors))):
            return False
        if any(len(set(one)) < len(one) for one in (op.inputs, op.outputs, op.mutates)):
            return False
        there.update(op.outputs)
    return True


@given(graphs(max_ops=5, max_streams=1), st.data())
def test_ops_that_name_what_is_not_there_are_refused(graph: Graph, data: st.DataObject) -> None:
    """One list of one op gets one more position: of any tensor, of one that is there already, or of
    none at all.
    """
    i = data.draw(st.integers(0, len(graph.ops) - 1))
    field = data.draw(st.sampled_from(["inputs", "outputs", "mutates", "deps"]))
    most = len(graph.tensors) if field != "deps" else len(graph.ops)
    more = data.draw(st.integers(-1, most) | st.just(1 << 40))
    ops = list(graph.ops)
    ops[i] = replace(ops[i], **{field: (*getattr(ops[i], field), more)})
    if is_right(graph, ops):
        assert tuple(Graph(graph.name, graph.tensors, ops).ops) == tuple(ops)
    else:
        with pytest.raises(GraphError, match=rf"^ops\[{i}\]" if field != "outputs" else r"^ops\["):
            Graph(graph.name, graph.tensors, ops)


@pytest.mark.parametrize("field", ["flops", "bytes_accessed", "workspace_bytes", "duration_ns"])
def test_what_equals_a_number_that_is_known_is_still_refused(field: str) -> None:
    """``True`` and 1.0 equal 1, so they are the same key of a dictionary."""
    b = GraphBuilder("toy")
    b.op("f", "matmul", sizes=(1,), **{field: 1})
    for wrong in (True, 1.0):
        with pytest.raises(GraphError, match=field):
            b.op("g", "matmul", sizes=(1,), **{field: wrong})
        with pytest.raises(GraphError, match="sizes"):
            b.op("g", "matmul", sizes=(wrong,), **{field: 1})
    b.tensor("x", 1)
    with pytest.raises(GraphError, match="size_bytes"):
        b.tensor("y", True)
    with pytest.raises(GraphError, match="persistent"):
        b.tensor("y", 1, persistent=0)  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="name"):
        b.op(2, "matmul", sizes=(1,), **{field: 1})  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="name"):
        b.tensor(2, 1)  # type: ignore[arg-type]
    assert len(b.build().ops) == len(b.build().tensors) == 1


def test_an_unknown_field_of_an_op_is_refused() -> None:
    b = GraphBuilder("toy")
    b.op("f", "matmul")
    with pytest.raises(TypeError, match="flop"):
        b.op("g", "matmul", flop=1)  # type: ignore[call-arg]
    assert len(b.build().ops) == 1


def test_calls_that_say_the_same_make_ops_that_are_alike() -> None:
    """Whichever defaults they say, and in whatever order."""
    b = GraphBuilder("toy")
    b.tensor("a", 1), b.tensor("b", 1, persistent=False, of="")
    b.op("f", "matmul", dtype="bf16", kernel="", sizes=(1,))
    b.op("g", "matmul", sizes=(1,), dtype="bf16")
    b.op("h", "matmul", sizes=(1,), also_on={})
    b.op("i", "matmul", sizes=(1,), dtype="gemm")
    b.op("j", "matmul", sizes=(1,), kernel="gemm")
    graph = b.build()
    assert [len(graph.tensors.alike), len(graph.ops.alike)] == [1, 3]
    assert list(graph.ops.codes) == [0, 0, 0, 1, 2]
    assert [op.kernel for op in graph.ops] == ["", "", "", "", "gemm"]
    assert graph == Graph("toy", tuple(graph.tensors), tuple(graph.ops))


F = Op("f", "k", inputs=(0,), outputs=(1,))
RIGHT_AND_WRONG = [
    ([F, replace(F, name="g", inputs=(1,)), replace(F, name="h")], None),  # two ops make a
    ([F, Op("g", "k", deps=(0, 0))], None),
    ([replace(F, mutates=(0,))], None),
    ([replace(F, inputs=(1,))], "ops[0].inputs[0]: op 'f' uses tensor 'a' before any op"),
    ([replace(F, outputs=(), mutates=(1,))], "ops[0].mutates[0]: op 'f' uses tensor 'a' before"),
    ([replace(F, inputs=(0, 0))], "ops[0].inputs: op 'f' lists a tensor twice"),
    ([replace(F, outputs=(1, 1))], "ops[0].outputs: op 'f' lists a tensor twice"),
    ([replace(F, outputs=(2,))], "ops[0].outputs[0]: no tensor number 2"),
    ([Op("f", "k", deps=(0,))], "ops[0].deps[0]: op 'f' depends on an op that is not listed"),
]


@pytest.mark.parametrize(("ops", "wrong"), RIGHT_AND_WRONG)
def test_what_ops_may_name(ops: list[Op], wrong: str | None) -> None:
    tensors = (Tensor("w", 40, "parameter"), Tensor("a", 30))
    try:
        graph = Graph("toy", tensors, ops)
    except GraphError as error:
        assert wrong is not None
        assert str(error).startswith(wrong)
    else:
        assert wrong is None
        assert tuple(graph.ops) == tuple(ops)


def test_graphs_that_differ_in_one_name_or_one_position_are_not_equal() -> None:
    tensors = (Tensor("w", 40, "parameter"), Tensor("v", 40, "parameter"))
    f = Op("f", "k", inputs=(0,))
    graph = Graph("toy", tensors, [f, replace(f, name="g")])
    assert graph == Graph("toy", tensors, [f, replace(f, name="g")])
    for ops in ([f, replace(f, name="h")], [f, replace(f, name="g", inputs=(1,))]):
        assert Graph("toy", tensors, ops) != graph
    assert graph.tensors != graph.ops
    assert graph.ops != 3
