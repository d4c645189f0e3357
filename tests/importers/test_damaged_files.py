"""Files that are not there, damaged or made by hand: the one line about them, and what is read of
the rest.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mindir_toys import WRITES, mindir, named, number, parameter, primitive, text, value, varint

from hosim.base.files import formats
from hosim.errors import InputError
from hosim.formats import (
    import_chakra,
    import_hyper_parallel,
    import_inductor,
    import_mindir,
    is_chakra,
    read_document,
)
from hosim.formats.nsight import read_nsys
from hosim.io import load_any
from hosim.io.importers.onnx import import_onnx
from hosim.io.importers.torch_programs import import_torch_trace, read_archive


def archive(path: Path) -> object:
    return read_archive(str(path))


READERS = [
    import_hyper_parallel,
    import_chakra,
    import_inductor,
    import_mindir,
    import_onnx,
    import_torch_trace,
    archive,
    read_nsys,
]


@pytest.mark.parametrize("read", READERS)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, read: Callable[[Path], Any]) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, expected in (
        ("none", "no such file"),
        (".", "expected a file, this is a directory"),
        ("pipe", "this is a pipe"),
    ):
        with pytest.raises(InputError, match=expected) as caught:
            read(tmp_path / name)
        assert caught.value.source == str(tmp_path / name)


@pytest.mark.parametrize(
    ("head", "title"),
    [
        (b'{"workload_graph": []}', "Chakra trace"),
        (b'{"storage_sizes": {}, "retained_sids": []}', "hyper-parallel trace"),
        (b'{"model_type": "llama"}', "config.json of transformers"),
        (b"GGUF", "GGUF"),
        (b'{"format": "hosim.workload/1"}', "workload (hosim.workload/1)"),
    ],
)
def test_dimensions_of_a_format_that_has_none(tmp_path: Path, head: bytes, title: str) -> None:
    (tmp_path / "x").write_bytes(head)
    with pytest.raises(InputError) as caught:
        load_any(tmp_path / "x", {"batch": 2})
    assert str(caught.value) == f"{tmp_path / 'x'}: a {title} has no free dimensions to size"


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ([], "expected an object with ops and storage_sizes"),
        (3, "expected an object with ops and storage_sizes"),
        ({"ops": []}, "storage_sizes: expected an object of bytes by storage id"),
        ({"storage_sizes": {}}, "ops: expected a list of at least one op"),
    ],
)
def test_an_activation_trace_without_its_keys(document: Any, expected: str) -> None:
    with pytest.raises(InputError) as caught:
        read_document(document)
    assert str(caught.value) == expected


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from hosim.io.importers.torch_programs import load

    with pytest.raises(InputError) as caught:
        load(str(tmp_path / "x.pt2"))
    assert str(caught.value) == f"{tmp_path / 'x.pt2'}: no such file"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("[1]", "expected an object with the key nodes"),
        ('{"schema": "1", "nodes": []}', "nodes: expected a list of at least one node"),
        ('{"schema": "1", "nodes": 3}', "nodes: expected a list of at least one node"),
        ('{"schema": "1", "nodes": [3]}', "nodes[0]: expected an object"),
        (
            '{"nodes": [',
            "damaged JSON of an execution trace (Expecting value: line 1 column 12 (char 11)); "
            "record it again",
        ),
    ],
)
def test_an_execution_trace_that_is_none(tmp_path: Path, content: str, expected: str) -> None:
    (tmp_path / "x").write_text(content)
    with pytest.raises(InputError) as caught:
        import_torch_trace(tmp_path / "x")
    assert str(caught.value) == f"{tmp_path / 'x'}: {expected}"


# ---- protobuf


def test_fields_of_a_message() -> None:
    minus_2 = (1 << 64) - 2
    message = (
        number(1, 300)
        + text(2, b"ab")
        + number(1, minus_2)
        + b"\x19"
        + b"12345678"
        + b"\x25"
        + b"1234"
        + text(5, varint(3) + varint(minus_2))
    )
    found = formats.Reader().fields(message)
    assert found == {
        1: [300, minus_2],
        2: [b"ab"],
        3: [b"12345678"],
        4: [b"1234"],
        5: [varint(3) + varint(minus_2)],
    }
    assert (
        formats.number(found, 1),
        formats.number(found, 9),
        formats.numbers(found, 1),
        formats.numbers(found, 5),
    ) == (
        -2,
        0,
        [300, -2],
        [3, -2],
    )
    assert (
        formats.text(found, 2),
        formats.text(found, 9),
        formats.parts(found, 2),
        formats.parts(found, 9),
    ) == ("ab", "", [b"ab"], [])
    for wrong in (
        lambda: formats.number(found, 2),
        lambda: formats.parts(found, 1),
        lambda: formats.text({1: [b"\xff"]}, 1),
    ):
        with pytest.raises(formats.WireError):
            wrong()
    for cut in (
        message[:2],
        text(2, b"ab")[:-1],
        b"\x19123",
        b"\x25123",
        b"\x0b",
        b"\xff" * 10 + b"\x01",
    ):
        with pytest.raises(formats.WireError):
            formats.Reader().fields(cut)
    assert list(formats.messages(b"\x02ab\x00\x01c")) == [(1, b"ab"), (4, b""), (5, b"c")]
    with pytest.raises(formats.WireError):
        list(formats.messages(b"\x02a"))


HEAD = text(1, b"0.0.4") + text(2, text(1, b"schema"))
"""A metadata message."""


def chakra(folder: Path, *nodes: bytes) -> Path:
    (folder / "trace.et").write_bytes(b"".join(varint(len(m)) + m for m in (HEAD, *nodes)))
    return folder / "trace.et"


def wired(i: int, *more: bytes, deps: tuple[bytes, ...] = ()) -> bytes:
    return (
        number(1, i)
        + text(2, b"op")
        + number(3, 4)
        + b"".join(deps)
        + number(7, 5)
        + b"".join(more)
    )


def test_chakra_nodes_on_the_wire(tmp_path: Path) -> None:
    """Node 3 waits for 1 and 2 (packed), node 4 for 3 (not packed): three chains become one order,
    whatever the order in the file.
    """
    packed, single = text(5, varint(1) + varint(2)), number(5, 3)
    path = chakra(tmp_path, wired(4, deps=(single,)), wired(3, deps=(packed,)), wired(2), wired(1))
    assert is_chakra(path.read_bytes())
    graph = import_chakra(path)
    assert [op.name for op in graph.ops] == ["op.1", "op.2", "op.3", "op.4"]
    assert [sorted(op.deps) for op in graph.ops] == [[], [], [0, 1], [2]]
    assert [op.duration_ns for op in graph.ops] == [5000] * 4
    assert graph.name == "trace"


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (text(1, b"ab") + text(2, b"op"), "node 1: expected a whole number below 2^60 in field 1"),
        (
            number(1, 1 << 60) + text(2, b"op"),
            "node 1: expected a whole number below 2^60 in field 1",
        ),
        (
            number(1, 1) + number(2, 5),
            "node 1: damaged or cut off after byte 23; expected protobuf of a Chakra node",
        ),
        (wired(1, text(8, text(1, b"5"))), "node 1: expected a list of values in field 8"),
        (wired(1, text(9, text(1, b"[5"))), "node 1: expected a list of values in field 9"),
    ],
)
def test_a_damaged_chakra_node(tmp_path: Path, node: bytes, expected: str) -> None:
    with pytest.raises(InputError) as caught:
        import_chakra(chakra(tmp_path, node))
    assert str(caught.value) == f"{tmp_path / 'trace.et'}: {expected}"


def said(name: bytes, value: int) -> bytes:
    """An attribute of a Chakra node that is a number."""
    return text(10, text(1, name) + number(3, value))


COLLECTIVES = [
    "all_reduce",
    "reduce",
    "all_gather",
    "gather",
    "scatter",
    "broadcast",
    "all_to_all",
    "reduce_scatter",
]


def chakra_node(
    i: int, kind: int, name: bytes, took: int, *more: bytes, deps: tuple[int, ...] = ()
) -> bytes:
    return (
        number(1, i)
        + text(2, name)
        + number(3, kind)
        + b"".join(number(5, d) for d in deps)
        + number(7, took)
        + b"".join(more)
    )


def test_kinds_of_chakra_nodes(tmp_path: Path) -> None:
    """A collective by its number, a transfer by its type, an op by the host operator that it is, or
    waits for first.
    """
    host = chakra_node(20, 4, b"aten::mm(2)", 1, said(b"is_cpu_op", 1))
    numbered = [chakra_node(i, 7, b"x", 1, said(b"comm_type", i)) for i in range(9)]
    typed = [chakra_node(30 + t, t, b"x", 1) for t in (2, 3, 5, 6, 7)]
    others = [
        chakra_node(40, 4, b"k", 1, deps=(30 + 2, 20)),
        chakra_node(41, 4, b"k", 1),
        chakra_node(42, 4, b"k", 1, deps=(40,)),
    ]
    graph = import_chakra(chakra(tmp_path, host, *numbered, *typed, *others))
    kinds = {int(op.name.rpartition(".")[2]): op.kind for op in graph.ops}
    assert kinds == {
        **dict(enumerate([*COLLECTIVES, "collective"])),
        20: "matmul",
        **dict(
            zip((32, 33, 35, 36, 37), ("load", "store", "send", "recv", "collective"), strict=True)
        ),
        40: "matmul",
        41: "kernel",
        42: "kernel",
    }


def test_streams_of_chakra_nodes(tmp_path: Path) -> None:
    """The busiest stream of the device is ``compute``, the first of equals; the host has a stream
    for each thread.
    """
    listed = [(7, 5, 0), (20, 3, 0), (None, 3, 0), (20, 2, 0), (3, 99, 1), (None, 1, 1)]
    nodes = [
        chakra_node(
            i,
            4,
            b"k",
            took,
            *([] if thread is None else [said(b"tid", thread)]),
            said(b"is_cpu_op", host),
        )
        for i, (thread, took, host) in enumerate(listed)
    ]
    graph = import_chakra(chakra(tmp_path, *nodes))
    assert [op.stream for op in graph.ops] == [
        "compute",
        "stream20",
        "stream",
        "stream20",
        "host3",
        "host",
    ]
    assert [op.duration_ns for op in graph.ops] == [5000, 3000, 3000, 2000, 99_000, 1000]
    assert {op.dtype for op in graph.ops} == {"fp32"}


def test_a_chakra_trace_of_metadata_alone(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"expected at least one node$"):
        import_chakra(chakra(tmp_path))


# ---- MindIR


@pytest.mark.parametrize(
    ("operator", "a", "b", "made", "flops"),
    [
        (b"MatMul", (3, 5), (5, 7), (3, 7), 2 * 3 * 7 * 5),
        (b"BatchMatMul", (4, 3, 5), (4, 5, 7), (4, 3, 7), 2 * 4 * 3 * 7 * 5),
        (
            b"Baddbmm",
            (4, 3, 7),
            (4, 3, 5),
            (4, 3, 7),
            2 * 4 * 3 * 7 * 5,
        ),  # c + a @ b: the second operand is a
        (b"Conv2D", (2, 3, 8, 8), (6, 3, 3, 3), (2, 6, 6, 6), 2 * (2 * 6 * 6 * 6) * 3 * 3 * 3),
        (
            b"Conv2DBackpropInput",
            (2, 6, 6, 6),
            (6, 3, 3, 3),
            (2, 3, 8, 8),
            2 * (2 * 6 * 6 * 6) * 3 * 3 * 3,
        ),
        (
            b"Conv2DBackpropFilter",
            (2, 6, 6, 6),
            (2, 3, 8, 8),
            (6, 3, 3, 3),
            2 * (2 * 6 * 6 * 6) * 3 * 3 * 3,
        ),
        (b"FlashAttentionScore", (2, 16, 32), (2, 24, 32), (2, 16, 32), 4 * (2 * 16 * 32) * 24),
        (
            b"FlashAttentionScoreGrad",
            (2, 16, 32),
            (2, 24, 32),
            (2, 16, 32),
            10 * (2 * 16 * 32) * 24,
        ),
        (b"Add", (3, 5), (3, 5), (3, 5), 0),
    ],
)
def test_flops_of_mindir_primitives(
    tmp_path: Path,
    operator: bytes,
    a: tuple[int, ...],
    b: tuple[int, ...],
    made: tuple[int, ...],
    flops: int,
) -> None:
    graph = import_mindir(
        mindir(
            tmp_path,
            value(5, b"a", *a),
            value(5, b"b", *b),
            primitive(operator, [b"a", b"b"], *made),
            value(6, b"y", *made),
        )
    )
    assert [op.flops for op in graph.ops] == [flops]
    sizes = [graph.tensors[t].size_bytes for op in graph.ops for t in (*op.inputs, *op.outputs)]
    assert sizes == [4 * size for size in (product(a), product(b), product(made))]


def product(dims: tuple[int, ...]) -> int:
    result = 1
    for d in dims:
        result *= d
    return result


@pytest.mark.parametrize(
    ("layout", "length"), [(b"BSH", 24), (b"SBH", 2), (b"BNSD", 32), (b"BSND", 24)]
)
def test_the_length_of_keys_by_layout(tmp_path: Path, layout: bytes, length: int) -> None:
    made = primitive(
        b"FlashAttentionScore",
        [b"a", b"b"],
        2,
        16,
        32,
        4,
        attributes=named(b"input_layout", layout),
    )
    graph = import_mindir(
        mindir(
            tmp_path,
            value(5, b"a", 2, 16, 32, 4),
            value(5, b"b", 2, 24, 32, 4),
            made,
            value(6, b"y", 2, 16, 32, 4),
        )
    )
    assert [op.flops for op in graph.ops] == [4 * (2 * 16 * 32 * 4) * length]


@pytest.mark.parametrize(
    ("operator", "inputs", "expected"),
    [
        (b"TupleGetItem", [b"a", b"b"], "expected a tuple and the place of an item in it"),
        (b"Switch", [b"a", b"b", b"a"], "expected a condition and two functions"),
        (b"Switch", [b"a", b"b"], "expected a condition and two functions"),
        (b"Partial", [b"a"], "expected a function as the first input"),
        (b"REF::a", [b"b"], "calls something that is not a function"),
        (b"Load", [], "has 0 inputs, expected more"),
    ],
)
def test_mindir_nodes_with_the_wrong_inputs(
    tmp_path: Path, operator: bytes, inputs: list[bytes], expected: str
) -> None:
    with pytest.raises(InputError) as caught:
        import_mindir(
            mindir(
                tmp_path,
                value(5, b"a", 2),
                value(5, b"b", 2),
                primitive(operator, inputs, 2),
                value(6, b"y", 2),
            )
        )
    assert str(caught.value) == f"{tmp_path / 'x.mindir'}: net/here: {expected}"


@pytest.mark.parametrize(
    ("operator", "inputs", "written", "kinds"),
    [
        (b"Assign", [b"p", b"a"], ["p"], ["parameter", "parameter", "parameter", "input"]),
        (b"ScatterUpdate", [b"q", b"a"], ["q"], ["parameter", "parameter", "parameter", "input"]),
        (
            b"Adam",
            [b"p", b"q", b"r", b"a", b"a", b"a", b"a", b"a", b"a", b"a"],
            ["p", "q", "r"],
            ["parameter", *["optimizer_state"] * 2, "input"],
        ),
    ],
)
def test_what_mindir_optimizers_overwrite(
    tmp_path: Path, operator: bytes, inputs: list[bytes], written: list[str], kinds: list[str]
) -> None:
    parts = [parameter(b"p", 2), parameter(b"q", 2), parameter(b"r", 2), value(5, b"a", 2)]
    graph = import_mindir(
        mindir(
            tmp_path, *parts, primitive(operator, inputs, 2, attributes=WRITES), value(6, b"y", 2)
        )
    )
    (op,) = graph.ops
    assert [graph.tensors[t].name for t in op.mutates] == written
    assert sorted((t.name, t.kind) for t in graph.tensors if t.name in "pqra") == sorted(
        zip("pqra", kinds, strict=True)
    )


def test_json_of_something_else_is_no_chakra_trace() -> None:
    assert is_chakra(json.dumps({"workload_graph": []}).encode())
    assert not is_chakra(b'{"nodes": []}')
    assert not is_chakra(b"")
    assert not is_chakra(varint(len(HEAD)) + HEAD)


def test_a_message_before_a_node_is_chakra_with_a_version_and_attributes_of_their_types() -> None:
    def file(metadata: bytes) -> bytes:
        return varint(len(metadata)) + metadata + varint(8) + number(1, 5) + text(2, b"name")

    assert is_chakra(file(text(2, text(1, b"schema"))))
    assert is_chakra(file(text(1, b"0.0.4")))
    assert not is_chakra(file(number(1, 4)))
    assert not is_chakra(file(text(2, number(1, 3))))
    assert not is_chakra(file(text(2, text(1, b"schema")))[:-8])
