"""Inductor's graph for a simulator: one that torch 2.13 wrote, handmade memory handed over, damaged
files.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hosim.analysis import static_peak
from hosim.errors import HosimError, InputError
from hosim.graph import Graph
from hosim.io import load_any

EXPORTED = Path(__file__).parents[1] / "importers/data/inductor_mlp.json"


def inductors_peak(document: dict) -> int:
    """Inductor's own account: a buffer's bytes come with its node and go after the last node that
    waits for it.
    """
    buffers = {b["name"]: b for b in document["buffers"]}
    last = {
        d: i
        for i, node in enumerate(document["nodes"])
        for b in node["buffer_names"]
        for d in buffers[b]["deps"]
    }
    live = peak = sum(b["size_alloc"] for b in buffers.values() if b["is_input"])
    for i, node in enumerate(document["nodes"]):
        live += sum(buffers[b]["size_alloc"] for b in node["buffer_names"])
        peak = max(peak, live)
        gone = {name for name, at in last.items() if at == i} | {
            b for b in node["buffer_names"] if b not in last
        }
        live -= sum(buffers[b]["size_free"] for b in gone if not buffers[b]["is_output"])
    return peak


def test_an_exported_network(compared: Callable[..., None]) -> None:
    graph = load_any(EXPORTED)
    assert [op.name for op in graph.ops] == ["op0", "op1", "op2", "op3", "op4_op5_op6_op7"]
    hidden = 32 * 256 * 4
    assert [sum(graph.tensors[t].size_bytes for t in op.outputs) for op in graph.ops[:4]] == [
        32 * 64 * 4,
        hidden,
        hidden,
        32 * 16 * 4,
    ]
    assert [t.size_bytes for t in graph.tensors if t.kind == "output"] == [32 * 16 * 4]
    compared(
        "inductor's account",
        "graph for a simulator",
        "peak bytes",
        inductors_peak(json.loads(EXPORTED.read_text())),
        static_peak(graph).bytes,
    )
    assert static_peak(graph).bytes == 2 * hidden


def buffer(name: str, alloc: int, free: int, deps: list, **more: bool) -> dict:
    flags = {"is_input": False, "is_output": False} | more
    return {
        "name": name,
        "size_alloc": alloc,
        "size_free": free,
        "size": free,
        "deps": deps,
        "unmet_deps": deps,
        **flags,
    }


BUFFERS = [
    buffer("x", 8, 8, [], is_input=True),
    buffer("a", 40, 0, ["x"]),
    buffer("b", 0, 40, ["a"]),
    buffer("c", 8, 8, ["b"], is_output=True),
]
NODES = [{"name": f"f{b}", "buffer_names": [b]} for b in "abc"]


def read(folder: Path, nodes: list, buffers: list) -> Graph:
    (folder / "graph").write_text(json.dumps({"nodes": nodes, "buffers": buffers}))
    return load_any(folder / "graph")


def test_memory_that_is_handed_over_is_one_tensor(tmp_path: Path) -> None:
    graph = read(tmp_path, NODES, BUFFERS)
    assert [(t.name, t.size_bytes, t.kind) for t in graph.tensors] == [
        ("x", 8, "input"),
        ("a", 40, "activation"),
        ("c", 8, "output"),
    ]
    assert [(op.inputs, op.outputs, op.mutates) for op in graph.ops] == [
        ((0,), (1,), ()),
        ((), (), (1,)),
        ((1,), (2,), ()),
    ]
    assert static_peak(graph).bytes == inductors_peak({"nodes": NODES, "buffers": BUFFERS}) == 48


@pytest.mark.parametrize(
    ("nodes", "buffers", "expected"),
    [
        ([], BUFFERS, "nodes: expected a list of objects"),
        (NODES, [*BUFFERS, 3], "buffers: expected a list of objects"),
        (NODES, [BUFFERS[0], *BUFFERS], "buffers[1].name: expected every buffer's name once"),
        (NODES, BUFFERS[::-1], "buffers[0].deps: waits for 'b'"),
        (NODES, BUFFERS[:3], "nodes[2].buffer_names: unknown buffer 'c'"),
        (
            NODES,
            [BUFFERS[0] | {"size_free": -1}, *BUFFERS[1:]],
            "buffers[0].size_free: expected bytes",
        ),
        (
            NODES,
            [BUFFERS[0] | {"is_input": 1}, *BUFFERS[1:]],
            "buffers[0].is_input: expected true or false",
        ),
        ([{"name": "", "buffer_names": ["a"]}], BUFFERS, "nodes[0].name: expected a name"),
        (
            [{"name": "f", "buffer_names": "a"}],
            BUFFERS,
            "nodes[0].buffer_names: expected a list of names",
        ),
    ],
)
def test_damage_is_named_with_its_place(
    tmp_path: Path, nodes: list, buffers: list, expected: str
) -> None:
    with pytest.raises(InputError) as raised:
        read(tmp_path, nodes, buffers)
    assert str(raised.value).startswith(f"{tmp_path / 'graph'}: {expected}")


def test_cut_off(tmp_path: Path) -> None:
    (tmp_path / "graph").write_bytes(EXPORTED.read_bytes()[:-20])
    with pytest.raises(InputError, match="damaged JSON"):
        load_any(tmp_path / "graph")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_mutated_files_import_or_say_why(tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(EXPORTED.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    (tmp_path / "graph").write_bytes(bytes(content))
    try:
        graph = load_any(tmp_path / "graph")
    except HosimError as error:
        assert "\n" not in str(error)
    else:
        assert graph.ops
