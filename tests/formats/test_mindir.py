"""MindIR: files that MindSpore 2.10 wrote beside what it said of the same networks, handmade
changes, damaged files.
"""

import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rendered import facts
from wholes import wholes

from hosim.analysis import static_peak
from hosim.errors import HosimError, InputError
from hosim.graph import Graph
from hosim.io import load_any

DATA = Path(__file__).parents[1] / "importers/data"
TRUTH = json.loads((DATA / "mindir_truth.json").read_text())["networks"]


def load(name: str) -> Graph:
    return load_any(DATA / f"mindir_{name}.mindir")


def comparison(name: str) -> Iterator[tuple[str, int, int]]:
    """Rows (quantity, truth, hosim's figure): bytes as MindSpore says them, FLOP of the products
    that the script lists by hand.
    """
    truth = TRUTH[name]
    graph = load(name)
    size = Counter[str]()
    for tensor in graph.tensors:
        size[tensor.kind] += tensor.size_bytes
    ours = {
        "parameter bytes": size["parameter"] + size["optimizer_state"],
        "input bytes": size["input"],
        "output bytes": size["output"],
        "FLOP": sum(op.flops for op in graph.ops),
    }
    theirs = {
        "parameter bytes": sum(4 * prod(shape) for shape, _ in truth["parameters"].values()),
        "input bytes": sum(4 * prod(shape) for shape, _ in truth["inputs"]),
        "output bytes": sum(4 * prod(shape) for shape, _ in truth["outputs"]),
        "FLOP": sum(2 * prod(sizes) for sizes in truth["products"]),
    }
    for quantity, figure in theirs.items():
        yield quantity, figure, ours[quantity]


@pytest.mark.parametrize("name", TRUTH)
def test_what_mindspore_says(name: str, compared: Callable[..., None]) -> None:
    for quantity, theirs, ours in comparison(name):
        compared(
            "sizes by hand" if quantity == "FLOP" else "MindSpore",
            f"MindIR {name}",
            quantity,
            theirs,
            ours,
        )


@pytest.mark.parametrize("name", TRUTH)
def test_shapes_and_dtypes(name: str) -> None:
    graph, truth = load(name), TRUTH[name]
    shapes = graph.meta["shapes"]
    for parameter, (shape, dtype) in truth["parameters"].items():
        assert shapes[parameter] == shape
        assert wholes(graph)[parameter] == prod(shape) * 4, dtype
    returned = sorted(shapes[t.name] for t in graph.tensors if t.kind == "output")
    assert returned == sorted(shape for shape, _ in truth["outputs"])
    assert {op.dtype for op in graph.ops} <= {"fp32", "int32"}
    assert graph.meta["mindspore"] == "2.10.0"


def test_what_computes_nothing_is_no_op() -> None:
    graph = load("block")
    kinds = Counter(op.kind for op in graph.ops)
    # seven products, two norms, three transpositions in and one out, one softmax, one split
    assert (kinds["matmul"], kinds["norm"], kinds["copy"], kinds["softmax"], kinds["gather"]) == (
        7,
        2,
        4,
        1,
        1,
    )
    assert set(kinds) == {"matmul", "norm", "copy", "softmax", "gather", "elementwise"}
    assert not any("TupleGetItem" in op.name or "Reshape" in op.name for op in graph.ops)


def test_a_training_step() -> None:
    graph = load("step")
    kinds = {t.name: t.kind for t in graph.tensors}
    weights = ["up.weight", "up.bias", "down.weight", "down.bias"]
    assert all(kinds[f"step.{name}"] == "parameter" for name in weights)
    assert all(kinds[f"step.optimizer.moments.{name}"] == "optimizer_state" for name in weights)
    gradients = sorted(t.size_bytes for t in graph.tensors if t.kind == "gradient")
    assert gradients == sorted(
        graph.tensors[graph.tensor_index[f"step.{name}"]].size_bytes for name in weights
    )
    steps = [op for op in graph.ops if op.kind == "optimizer"]
    assert [len(op.mutates) for op in steps] == [2, 2, 2, 2]
    assert static_peak(graph).breakdown["optimizer_state"] == 848


def test_the_larger_of_two_branches() -> None:
    graph = load("branches")
    used = {graph.tensors[t].name for op in graph.ops for t in op.inputs}
    assert {"far.weight", "far.bias"} <= used
    assert "near.weight" not in used  # one product instead of two; it is still there from the start
    assert graph.tensors[graph.tensor_index["near.weight"]].kind == "parameter"
    (line,) = graph.meta["missing"]
    assert facts(line, "FLOP") == "1, FLOP"


def test_gzip_and_another_name(tmp_path: Path) -> None:
    (tmp_path / "mindir_mlp.json").write_bytes(
        gzip.compress((DATA / "mindir_mlp.mindir").read_bytes())
    )
    assert load_any(tmp_path / "mindir_mlp.json") == load("mlp")


def message(number: int, content: bytes) -> bytes:
    size = len(content)
    return bytes([number << 3 | 2]) + bytes([size & 127 | 128, size >> 7]) + content


def tensor(name: bytes, *dims: int) -> bytes:
    sizes = b"".join(
        b"\x08" + (d & (1 << 64) - 1).to_bytes(1, "little")
        if d >= 0
        else b"\x08" + b"\xff" * 9 + b"\x01"
        for d in dims
    )
    return sizes + b"\x10\x01" + message(7, name)


def model(*graphs: bytes) -> bytes:
    head = b"\x0a\x03" + b"1.1" + b"\x12\x09" + b"MindSpore"
    return head + message(7, graphs[0]) + b"".join(message(8, graph) for graph in graphs[1:])


def node(operator: bytes, output: bytes, *inputs: bytes, shape: bytes = b"") -> bytes:
    typed = (
        message(5, message(1, b"shape") + b"\x80\x01\x13" + message(12, shape)) if shape else b""
    )
    return message(
        1,
        b"".join(message(1, i) for i in inputs) + message(2, output) + message(4, operator) + typed,
    )


def value(number: int, name: bytes, *dims: int) -> bytes:
    return message(number, message(1, name) + (message(2, tensor(b"", *dims)) if dims else b""))


def read(folder: Path, *graphs: bytes) -> Graph:
    (folder / "x").write_bytes(model(*graphs))
    return load_any(folder / "x")


def test_by_hand(tmp_path: Path) -> None:
    """The format as one reads it in the description of its messages: ``y = relu(x)``, with the
    primitive's own name as operator.
    """
    graph = read(
        tmp_path,
        value(5, b"x", 2, 3)
        + node(b"ReLU", b"y", b"x", shape=tensor(b"", 2, 3))
        + value(6, b"y", 2, 3),
    )
    assert [(op.kind, op.bytes_accessed) for op in graph.ops] == [("elementwise", 48)]
    assert [(t.name, t.size_bytes, t.kind) for t in graph.tensors] == [
        ("x", 24, "input"),
        ("y", 24, "output"),
    ]


def test_a_function_of_two_outputs_gives_a_tuple(tmp_path: Path) -> None:
    """``a, b = both(x)`` with ``a`` of 2 floats and ``b`` of 3; the second is what goes on."""
    both = message(2, b"both") + value(5, b"v", 2)
    both += node(b"ReLU", b"a", b"v", shape=tensor(b"", 2)) + node(
        b"Tile", b"b", b"v", shape=tensor(b"", 3)
    )
    both += value(6, b"a") + value(6, b"b")
    index = message(
        1,
        message(2, b"one")
        + message(4, b"Constant")
        + message(5, message(1, b"value") + b"\x18\x01\x80\x01\x07"),
    )
    main = (
        value(5, b"x", 2)
        + node(b"REF::both", b"pair", b"x")
        + index
        + node(b"TupleGetItem", b"second", b"pair", b"one")
    )
    main += node(b"Sin", b"y", b"second", shape=tensor(b"", 3)) + value(6, b"y", 3)
    graph = read(tmp_path, main, both)
    assert [
        [graph.tensors[t].size_bytes for t in (*op.inputs, *op.outputs)] for op in graph.ops
    ] == [[8, 8], [8, 12], [12, 12]]


@pytest.mark.parametrize(
    ("graphs", "expected"),
    [
        (
            [value(5, b"x", -1, 3)],
            r"'x' has the shape \[-1, 3\], which is not fixed; export the model with inputs of "
            r"fixed shapes",
        ),
        (
            [value(5, b"x", 2) + node(b"ReLU", b"y", b"z", shape=tensor(b"", 2))],
            "'z' is used before any node makes it",
        ),
        ([value(5, b"x", 2)], "no operator that computes"),
        (
            [
                value(5, b"x", 2) + node(b"REF::loop", b"y", b"x"),
                message(2, b"loop")
                + value(5, b"a", 2)
                + node(b"REF::loop", b"b", b"a")
                + value(6, b"b"),
            ],
            "function 'loop' calls itself",
        ),
        (
            [value(5, b"x", 2) + node(b"REF::gone", b"y", b"x")],
            "'gone' is used before any node makes it",
        ),
        ([value(5, b"x", 2) + node(b"TupleGetItem", b"y", b"x")], "has 1 inputs, expected more"),
        ([value(5, b"x", *[127] * 9)], "below 2.60 bytes"),
    ],
    ids=["unknown-shape", "unmade", "empty", "loop", "no-function", "no-index", "too-large"],
)
def test_what_cannot_be_imported_is_said(
    tmp_path: Path, graphs: list[bytes], expected: str
) -> None:
    with pytest.raises(InputError, match=expected):
        read(tmp_path, *graphs)


def mutated(data: st.DataObject, content: bytes) -> bytes:
    """A few bytes overwritten, dropped or put in, anywhere; or a piece of the file elsewhere; or
    its beginning alone.
    """
    changed = bytearray(content)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(changed)))
        match data.draw(st.sampled_from(["bytes", "splice", "cut"])):
            case "bytes":
                changed[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
            case "splice":
                begin = data.draw(st.integers(0, len(content)))
                changed[at:at] = content[begin : begin + data.draw(st.integers(0, 300))]
            case "cut":
                del changed[max(at, 40) :]
    return bytes(changed)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data(), name=st.sampled_from(["mlp", "branches", "step"]))
def test_mutated_files_import_or_say_why(tmp_path: Path, data: st.DataObject, name: str) -> None:
    path = tmp_path / "x"
    path.write_bytes(mutated(data, (DATA / f"mindir_{name}.mindir").read_bytes()))
    try:
        graph = load_any(path)
    except HosimError as error:
        assert "\n" not in str(error)
    else:
        assert graph.ops


def test_cut_off(tmp_path: Path) -> None:
    content = (DATA / "mindir_mlp.mindir").read_bytes()
    for size in (40, 200, 2000, len(content) - 1):
        (tmp_path / "x").write_bytes(content[:size])
        with pytest.raises(InputError, match=r"damaged or cut off|expected a graph"):
            load_any(tmp_path / "x")


def test_operators_of_one_name_are_told_apart(tmp_path: Path) -> None:
    nodes = [
        node(b"ReLU", b"y%d" % i, b"y%d" % (i - 1) if i else b"x", shape=tensor(b"", 2))
        for i in range(3)
    ]
    graph = read(tmp_path, value(5, b"x", 2) + b"".join(nodes) + value(6, b"y2", 2))
    assert [op.name for op in graph.ops] == ["elementwise", "elementwise_2", "elementwise_3"]
