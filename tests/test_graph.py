"""Graphs and plans by names, and the views of them for networkx."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
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
    one, other = [1], [1]

    def on(graph: Graph, machine: list[int]) -> list[int]:
        return [len(graph.ops)]

    kept = graph.derived_on(one, on)
    assert kept == [3]
    assert graph.derived_on(one, on) is kept
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
