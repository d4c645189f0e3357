"""What is left of an ONNX model without its weights, and models that are refused before onnx parses
them.
"""

from pathlib import Path

import pytest

from hosim.errors import InputError
from hosim.io.importers.onnx import import_onnx

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper  # noqa: E402

from hosim.io.importers.onnx import without_weights  # noqa: E402


def model(elements: int):
    """One product with a weight of ``elements`` float numbers, and one node that has such a
    constant in a branch of its own.
    """
    data = b"\x01\x02\x03\x04" * elements
    weight = helper.make_tensor("w", TensorProto.FLOAT, [1, elements], data, raw=True)
    inner = helper.make_graph(
        [],
        "inner",
        [],
        [],
        initializer=[helper.make_tensor("c", TensorProto.FLOAT, [elements], data, raw=True)],
    )
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("If", ["b"], ["z"], then_branch=inner, else_branch=inner),
    ]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1])
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, elements])
    return helper.make_model(helper.make_graph(nodes, "g", [given], [made], initializer=[weight]))


def test_large_weights_are_left_out_and_everything_else_stays() -> None:
    large = model(50_000)
    light = onnx.ModelProto.FromString(without_weights(memoryview(large.SerializeToString())))
    assert light.ByteSize() < 1000 < 600_000 < large.ByteSize()
    assert [tensor.HasField("raw_data") for tensor in light.graph.initializer] == [False]
    for graph in (large.graph, light.graph):
        for tensor in (
            *graph.initializer,
            *(a.g.initializer[0] for node in graph.node for a in node.attribute),
        ):
            tensor.ClearField("raw_data")
    assert light == large


def test_a_model_of_small_numbers_is_itself() -> None:
    content = model(100).SerializeToString()
    assert without_weights(memoryview(content)) == content


def nested(levels: int) -> bytes:
    """A type that is an optional of an optional of ..."""
    kind = onnx.TypeProto()
    for _ in range(levels):
        kind = onnx.TypeProto(optional_type=onnx.TypeProto.Optional(elem_type=kind))
    return onnx.ModelProto(
        ir_version=9, graph=onnx.GraphProto(input=[onnx.ValueInfoProto(name="x", type=kind)])
    ).SerializeToString()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"\x08\x09\x3a\x90\x4e" + b"\x0a\x00" * 5000,
            "expected at most 1000 records, got more",
        ),  # 5,000 nodes of two bytes
        (
            b"\x08\x09\x3a\xa4\x9c\x01\x52\xa0\x9c\x01" + b"x" * 20_000,
            "expected at most 1000 records, got more",
        ),  # one long text
        (nested(20), "expected at most 30 levels of nesting, got more"),
    ],
    ids=["nodes", "text", "depth"],
)
def test_what_would_take_much_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, message: str
) -> None:
    monkeypatch.setenv("HOSIM_LIMITS", "records=1000,nesting_depth=30")
    monkeypatch.setattr(onnx.ModelProto, "FromString", None)  # parsing it would be too late
    (tmp_path / "x.onnx").write_bytes(content)
    with pytest.raises(InputError, match=rf"x\.onnx: {message}"):
        import_onnx(tmp_path / "x.onnx")


def test_weights_of_a_large_file_are_not_read(tmp_path: Path) -> None:
    """3 GiB of weights, more than a file may have that is read as a whole: a hole in the file,
    behind the rest of the model.
    """
    size = 3 << 30
    given, made = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, n])
        for name, n in (("x", 1), ("y", size // 4))
    )
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [given], [made])
    tensor = (
        onnx.TensorProto(name="w", data_type=1, dims=[1, size // 4]).SerializeToString()
        + b"\x4a"
        + varint(size)
    )
    initializer = b"\x2a" + varint(len(tensor) + size) + tensor
    before = onnx.ModelProto(
        ir_version=9, opset_import=[helper.make_opsetid("", 18)]
    ).SerializeToString()
    with (tmp_path / "x.onnx").open("wb") as file:
        text = graph.SerializeToString() + initializer
        file.write(before + b"\x3a" + varint(len(text) + size) + text)
        file.truncate(file.tell() + size)
    assert [t.size_bytes for t in import_onnx(tmp_path / "x.onnx").tensors if t.name == "w"] == [
        size
    ]


def varint(value: int) -> bytes:
    return bytes([value & 127 | 128]) + varint(value >> 7) if value > 127 else bytes([value])
