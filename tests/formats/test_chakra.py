"""Chakra traces: a handmade one, the published test data, damaged files."""

import gzip
import json
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from make_chakra import field, message, node, tensor, varint
from rendered import facts

import hosim
from hosim.analysis.costmodel import op_durations
from hosim.errors import HosimError, InputError
from hosim.graph import Graph
from hosim.hardware import Fabric
from hosim.io import load_any
from hosim.notes import notes

SMALL = Path(__file__).parents[1] / "importers/data/chakra_small.et"
NODE = {
    "Id": 1,
    "Name": "aten::mm(0)",
    "NodeType": 4,
    "ctrlDeps": [3],
    "data_deps": [],
    "runtime": 7,
    "is_cpu_op": True,
}


def sizes(graph: Graph, positions: tuple[int, ...]) -> list[int]:
    return [graph.tensors[t].size_bytes for t in positions]


def busy_us(graph: Graph) -> Counter[str]:
    busy: Counter[str] = Counter()
    for op in graph.ops:
        busy[op.stream] += (op.duration_ns or 0) // 1000
    return busy


def published(shared: Path, name: str) -> Path:
    path = shared / "data" / "chakra" / name
    if not path.is_file():
        pytest.skip(f"no file {path}: it is the published trace that this test reads")
    return path


def test_a_small_trace() -> None:
    graph = load_any(SMALL)
    ops = [
        (op.name, op.kind, op.stream, op.duration_ns, [graph.ops[d].name for d in op.deps])
        for op in graph.ops
    ]
    assert ops == [
        ("aten::mm(0).10", "matmul", "host1", 5000, []),
        ("gemm.11", "matmul", "compute", 40_000, ["aten::mm(0).10"]),
        ("aten::mm(1).12", "matmul", "host1", 2000, ["gemm.11"]),
        ("ncclAllReduce.20", "all_reduce", "stream14", 30_000, ["gemm.11"]),
        ("aten::exp(0).30", "elementwise", "host1", 3000, ["aten::mm(1).12"]),
        ("memset.32", "kernel", "compute", 0, ["gemm.11"]),
        ("exp.31", "elementwise", "compute", 20_000, ["aten::exp(0).30", "memset.32"]),
    ]
    uses = {
        op.name: (sizes(graph, op.inputs), sizes(graph, op.outputs), sizes(graph, op.mutates))
        for op in graph.ops
        if op.uses
    }
    assert uses == {
        "gemm.11": ([40, 400], [80], []),
        "ncclAllReduce.20": ([], [], [80]),
        "memset.32": ([], [], [80]),
        "exp.31": ([80], [200], []),  # the weight's id, given anew
    }
    assert [t.kind for t in graph.tensors] == ["input", "input", "activation", "activation"]
    assert "kinds" in graph.meta


def test_the_flop_of_an_operator_are_those_of_its_longest_kernel(tmp_path: Path) -> None:
    """A product in two parts with two kernels, the second of which is the longer; one without
    shapes, and one that is none.
    """
    a, b, y = tensor(1, 15), tensor(2, 12), tensor(3, 20)
    shapes = ([[5, 3], [3, 4]], [[5, 4]])
    nodes = [
        node(10, "aten::mm(0)", [], 5, [a, b], [y], host=True, thread=1, shapes=shapes),
        node(11, "first", [10], 4, [a, b], [y], host=False, thread=7),
        node(12, "aten::mm(1)", [10], 5, [a, b], [y], host=True, thread=1, shapes=shapes),
        node(13, "second", [12], 40, [a, b], [y], host=False, thread=7),
        node(20, "aten::mm(0)", [12], 5, [a, b], [y], host=True, thread=1),
        node(21, "unshaped", [20], 40, [a, b], [y], host=False, thread=7),
        node(
            30,
            "aten::linear(0)",
            [20],
            5,
            [a, b],
            [y],
            host=True,
            thread=1,
            shapes=([[5, 3], [4, 3]], [[5, 4]]),
        ),
        node(31, "composed", [30], 40, [a, b], [y], host=False, thread=7),
    ]
    path = tmp_path / "t.et"
    path.write_bytes(message(field(2, field(1, "schema") + field(29, "1.0.1"))) + b"".join(nodes))
    flops = {op.name: op.flops for op in load_any(path).ops if op.flops}
    assert flops == {"second.13": 2 * 5 * 4 * 3, "composed.31": 2 * 5 * 4 * 3}


def test_the_published_trace(shared: Path, compared: Callable[..., None]) -> None:
    graph = load_any(published(shared, "chakra.0.et.gz"))
    assert len(graph.ops) == 3664
    assert sum(not op.stream.startswith("host") for op in graph.ops) == 1216
    busy = busy_us(graph)
    assert busy["compute"] + busy["stream14"] == 329_543
    assert busy["host1"] + busy["host2"] == 52_252
    reduced = {t for op in graph.ops if op.kind == "all_reduce" for t in op.uses}
    # One training step of ResNet-50, whose gradients are reduced in five buckets: 25,557,032
    # weights as published.
    compared(
        "publication",
        "Chakra trace of ResNet-50",
        "bytes all-reduced",
        25_557_032 * 4,
        sum(graph.tensors[t].size_bytes for t in reduced),
    )
    assert sum(op.kind == "all_reduce" for op in graph.ops) == 5
    # Its convolutions by the published architecture, and their gradients, of which the images need
    # none.
    first, others = 2 * 32 * 64 * 3 * 49 * 112**2, 0
    for width, size, blocks, wide in (
        (64, 56, 3, 64),
        (128, 28, 4, 256),
        (256, 14, 6, 512),
        (512, 7, 3, 1024),
    ):
        before = (
            size if width == 64 else 2 * size
        )  # the second convolution of a stage's first block has the stride
        one = (4 * width * width + 9 * width * width + 4 * width * width) * size**2
        others += (
            2
            * 32
            * (
                blocks * one
                - 4 * width * width * size**2
                + wide * width * before**2
                + wide * 4 * width * size**2
            )
        )
    flops = {
        kind: sum(op.flops for op in graph.ops if op.kind == kind)
        for kind in ("convolution", "convolution_backward", "matmul")
    }
    compared(
        "publication",
        "Chakra trace of ResNet-50",
        "FLOP of convolutions",
        first + others,
        flops["convolution"],
    )
    compared(
        "publication",
        "Chakra trace of ResNet-50",
        "FLOP of their gradients",
        first + 2 * others,
        flops["convolution_backward"],
    )
    assert flops["matmul"] == 3 * 2 * 32 * 2048 * 1000
    # At least the weights, their momentum, the buckets and 32 images are there from the start.
    assert (
        sum(t.size_bytes for t in graph.tensors if t.kind == "input")
        > (3 * 25_557_032 + 32 * 3 * 224 * 224) * 4
    )


def test_the_published_json(shared: Path) -> None:
    graph = load_any(published(shared, "small_chakra.0.json.gz"))
    assert len(graph.ops) == 7
    assert busy_us(graph) == {"host": 663, "compute": 32}
    assert graph.tensors == ()
    assert [graph.ops[d].name.rpartition(".")[2] for d in graph.ops[5].deps] == [
        "432",
        "216",
        "217",
    ]


def read_json(folder: Path, *nodes: object) -> Graph:
    (folder / "trace").write_text(json.dumps({"workload_graph": list(nodes)}))
    return load_any(folder / "trace")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"Id": None}, "workload_graph[0].Id: expected a whole number"),
        ({"Id": True}, "workload_graph[0].Id: expected a whole number"),
        ({"Name": 3}, "workload_graph[0].Name: expected a name"),
        ({"runtime": -1}, "workload_graph[0].runtime: expected a whole number"),
        ({"data_deps": 3}, "workload_graph[0].data_deps: expected a list of ids"),
        ({"data_deps": [9]}, "workload_graph[0]: waits for node 9, which the trace does not have"),
        (
            {"data_deps": [2]},
            "workload_graph[0]: its data_deps form a circle, directly or indirectly",
        ),
        ({"is_cpu_op": 1}, "workload_graph[0].is_cpu_op: expected true or false"),
        ({"Id": 2}, "expected every node's id once"),
    ],
)
def test_damage_is_named_with_its_place(tmp_path: Path, change: dict, expected: str) -> None:
    with pytest.raises(InputError) as raised:
        read_json(tmp_path, NODE | change, NODE | {"Id": 2, "data_deps": [1]})
    assert str(raised.value).startswith(f"{tmp_path / 'trace'}: {expected}")


def test_the_node_that_is_named_is_in_the_circle(tmp_path: Path) -> None:
    """Node 1 only waits for node 2, which waits for 3, which waits for 2."""
    with pytest.raises(InputError, match=r"workload_graph\[1\]: its data_deps form a circle"):
        read_json(
            tmp_path, *(NODE | {"Id": n, "data_deps": [dep]} for n, dep in ((1, 2), (2, 3), (3, 2)))
        )


@pytest.mark.parametrize(
    "content",
    [
        b'{"workload_graph": []}',
        b'{"workload_graph": 3}',
        b'{"workload_graph": [',
        b'{"workload_graph": [3]}',
    ],
)
def test_damaged_json(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "trace").write_bytes(content)
    with pytest.raises(InputError, match=r"expected|damaged JSON"):
        load_any(tmp_path / "trace")


def test_cut_off(tmp_path: Path) -> None:
    (tmp_path / "trace").write_bytes(SMALL.read_bytes()[:-3])
    with pytest.raises(InputError, match="node 7: damaged or cut off after byte"):
        load_any(tmp_path / "trace")


def mutated(data: st.DataObject, content: bytes) -> bytes:
    """A few bytes overwritten, dropped or put in, anywhere."""
    changed = bytearray(content)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(changed) - 1))
        changed[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    return bytes(changed)


def imports_or_says_why(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    try:
        graph = load_any(path)
    except HosimError as error:
        assert "\n" not in str(error)
    else:
        assert graph.ops


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_mutated_bytes_import_or_say_why(tmp_path: Path, data: st.DataObject) -> None:
    imports_or_says_why(tmp_path / "trace", mutated(data, SMALL.read_bytes()))


def first_messages(content: bytes, count: int) -> bytes:
    """The first messages of a stream, each with its length in front."""
    at = 0
    for _ in range(count):
        size = shift = 0
        more = True
        while more:
            size |= (content[at] & 127) << shift
            more, shift, at = content[at] > 127, shift + 7, at + 1
        at += size
    return content[:at]


@pytest.fixture(scope="module")
def beginnings(shared: Path) -> list[bytes]:
    """The published JSON, and the metadata and the first six nodes of the published protobuf, which
    wait for no others.
    """
    text, wire = (
        gzip.decompress(published(shared, name).read_bytes())
        for name in ("small_chakra.0.json.gz", "chakra.0.et.gz")
    )
    return [text, first_messages(wire, 7)]


def test_the_beginning_of_the_published_trace(tmp_path: Path, beginnings: list[bytes]) -> None:
    (tmp_path / "trace").write_bytes(beginnings[1])
    assert [op.duration_ns for op in load_any(tmp_path / "trace").ops] == [
        318_000,
        28_000,
        4_000,
        85_000,
        79_000,
        28_000,
    ]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_mutated_published_files_import_or_say_why(
    tmp_path: Path, beginnings: list[bytes], data: st.DataObject
) -> None:
    imports_or_says_why(tmp_path / "trace", mutated(data, data.draw(st.sampled_from(beginnings))))


@pytest.mark.parametrize(
    ("kind", "said"), [(2, "load"), (3, "store"), (5, "send"), (6, "recv"), (7, "collective")]
)
def test_what_a_node_is_by_its_type(tmp_path: Path, kind: int, said: str) -> None:
    graph = read_json(
        tmp_path,
        NODE,
        NODE | {"Id": 2, "Name": "moves", "NodeType": kind, "is_cpu_op": False, "data_deps": [1]},
    )
    assert [op.kind for op in graph.ops] == ["matmul", said]


def proto3(number: int, value: int | str | bytes) -> bytes:
    """A field as proto3 writes it: left out if it is 0 or empty."""
    return field(number, value) if value else b""


@pytest.mark.parametrize(
    "metadata",
    [
        b"",
        field(1, "0.0.4"),
        field(2, field(1, "schema") + field(29, "1.0.2-chakra.0.0.4")),
        field(1, "0.0.4") + field(2, field(1, "rank")),
    ],
)
@given(
    first=st.sampled_from((0, 1, 5)),
    nodes=st.lists(
        st.tuples(
            st.sampled_from(("", "COMP_NODE")), st.sampled_from((0, 4)), st.sampled_from((0, 7))
        ),
        min_size=1,
        max_size=4,
    ),
)
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_proto3_leaves_out_is_zero(
    metadata: bytes, first: int, nodes: list[tuple[str, int, int]], tmp_path: Path
) -> None:
    content, written = message(metadata), []
    for place, (name, kind, micros) in enumerate(nodes):
        deps = varint(first + place - 1) if place else b""
        fields = (
            proto3(1, first + place)
            + proto3(2, name)
            + proto3(3, kind)
            + proto3(5, deps)
            + proto3(7, micros)
        )
        content += message(fields + field(10, field(1, "is_cpu_op") + field(27, 0)))
        written.append((f"{name}.{first + place}", place - 1 if place else None))
    (tmp_path / "t.et").write_bytes(content)
    graph = load_any(tmp_path / "t.et")
    assert [(op.name, op.deps[0] if op.deps else None) for op in graph.ops] == written
    assert [op.stream for op in graph.ops] == ["compute"] * len(nodes)


def test_an_attribute_without_a_value_is_zero(tmp_path: Path) -> None:
    collective = field(2, "sum") + field(3, 7) + field(7, 3) + field(10, field(1, "comm_type"))
    (tmp_path / "t.et").write_bytes(message(field(1, "0.0.4")) + message(collective))
    assert [op.kind for op in load_any(tmp_path / "t.et").ops] == ["all_reduce"]


def figures(**said):
    return [field(1, name) + field(7, value) for name, value in said.items()]


def attributed(number, kind, deps, *attributes, micros=None):
    """A node of the device; proto3 leaves out a duration of 0."""
    head = (
        field(1, number)
        + field(2, f"n{number}")
        + field(3, kind)
        + field(5, b"".join(map(varint, deps)))
    )
    head += b"" if micros is None else field(7, micros)
    host = field(1, "is_cpu_op") + field(27, 0)
    return message(head + b"".join(field(10, attribute) for attribute in (host, *attributes)))


def simulated(tmp_path, *nodes):
    path = tmp_path / "simulated.et"
    path.write_bytes(message(field(2, field(1, "schema") + field(29, "1.0.2"))) + b"".join(nodes))
    return hosim.load(path)


def test_nodes_without_a_duration_are_timed_by_what_they_compute_and_send(tmp_path):
    double = field(1, "num_ops") + varint(3 << 3 | 1) + struct.pack("<d", 2.0**40)
    graph = simulated(
        tmp_path,
        attributed(1, 4, [], *figures(num_ops=10**12, tensor_size=2**30)),
        attributed(2, 7, [1], field(1, "comm_type") + field(9, 0), *figures(comm_size=2**30)),
        attributed(3, 5, [2], *figures(comm_size=2**20)),
        attributed(4, 2, [3], *figures(tensor_size=2**28)),
        attributed(5, 4, [4], micros=7),
        attributed(6, 4, [5], micros=0),
        attributed(7, 4, [6], double),
        attributed(8, 4, [7]),
    )
    assert [(op.kind, op.duration_ns, op.flops, op.bytes_accessed) for op in graph.ops] == [
        ("kernel", None, 10**12, 2**30),
        ("all_reduce", None, 0, 2**30),
        ("send", None, 0, 2**20),
        ("load", None, 0, 2**28),
        ("kernel", 7000, 0, 0),
        ("kernel", 0, 0, 0),
        ("kernel", None, 2**40, 0),
        ("kernel", None, 0, 0),
    ]
    hardware = hosim.load_hardware(hosim.find_hardware("h100"))
    lines = [str(note) for note in notes(graph, hardware)]
    assert any(line.startswith("untimed: 1 op") and "(n8.8)" in line for line in lines)
    assert any(line.startswith("guessed: 2 collectives") for line in lines)
    assert any(line.startswith("assumed: FLOP are in fp32") for line in lines)
    # over links: an all-reduce sends its message twice, a send once
    linked = replace(hardware, fabrics=(Fabric("links", 10**9, (), "device", 1),))
    launch = hardware.compute.launch_ns
    times = op_durations(graph, linked)
    assert times[1] == launch + -(-2 * 2**30 * 10**9 // 10**9)
    assert times[2] == launch + 2**20
    assert not any(str(note).startswith("guessed") for note in notes(graph, linked))


def test_nodes_of_the_host_without_a_duration_are_said(tmp_path):
    host = field(1, "is_cpu_op") + field(27, 1)
    node_of_host = message(field(1, 1) + field(2, "aten::add") + field(3, 4) + field(10, host))
    graph = simulated(tmp_path, node_of_host, attributed(2, 4, [1], micros=3))
    assert [op.duration_ns for op in graph.ops] == [0, 3000]
    (line,) = graph.meta["missing"]
    assert facts(line, "host") == "1, host"


def test_nodes_of_json_have_the_same_figures(tmp_path):
    node = {"Name": "a", "NodeType": 4, "is_cpu_op": False}
    nodes = [
        {**node, "Id": 1, "num_ops": 5, "tensor_size": 6},
        {**node, "Id": 2, "NodeType": 7, "comm_type": 3, "comm_size": 9},
    ]
    nodes += [{**node, "Id": 3, "runtime": 0}]
    path = tmp_path / "simulated.json"
    path.write_text(json.dumps({"workload_graph": nodes}))
    graph = hosim.load(path)
    found = [(op.kind, op.duration_ns, op.flops, op.bytes_accessed) for op in graph.ops]
    assert found == [("kernel", None, 5, 6), ("gather", None, 0, 9), ("kernel", 0, 0, 0)]


def test_figures_that_are_none_are_refused_by_name(tmp_path):
    half = field(1, "num_ops") + varint(3 << 3 | 1) + struct.pack("<d", 2.5)
    with pytest.raises(InputError, match=r"node 1: expected a whole number below 2.60 as num_ops"):
        simulated(tmp_path, attributed(1, 4, [], half))


@pytest.mark.parametrize("value", [2**60, b"seven"])
@pytest.mark.parametrize("number", [1, 3, 7])
def test_numbers_of_a_node_that_are_none_are_refused_by_field(tmp_path, number, value):
    damaged = message(field(2, "n") + field(number, value))
    with pytest.raises(InputError, match=rf"node 2: .*below 2.60 in field {number}$"):
        simulated(tmp_path, attributed(9, 4, []), damaged)


def test_the_largest_numbers_of_a_node_are_read(tmp_path):
    (op,) = simulated(tmp_path, attributed(2**60 - 1, 4, [], micros=2**40)).ops
    assert (op.name, op.duration_ns) == (f"n{2**60 - 1}.{2**60 - 1}", 1000 * 2**40)
