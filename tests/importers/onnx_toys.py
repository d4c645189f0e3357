"""Small ONNX models, written node by node."""

from pathlib import Path

from onnx import TensorProto, helper

from hosim.graph import Graph
from hosim.io import load_any

FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def value(name: str, element: int, *shape: object) -> object:
    return helper.make_tensor_value_info(name, element, list(shape))


def weight(name: str, *shape: int) -> object:
    """An initializer whose data lie in a file that is not there."""
    tensor = TensorProto(name=name, dims=shape, data_type=FLOAT, data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="gone.bin")
    return tensor


def numbers(name: str, *values: int) -> object:
    return helper.make_tensor(name, INT, [len(values)], values)


def model(nodes, inputs, outputs, constants=(), opset=20, **more) -> bytes:
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", opset), *more.pop("opsets", ())]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, **more).SerializeToString()


def read(folder: Path, content: bytes, **dims: int) -> Graph:
    (folder / "x").write_bytes(content)
    return load_any(folder / "x", dims)


def uses(graph: Graph) -> list[tuple[str, list[str], list[str]]]:
    return [
        (
            op.kind,
            [graph.tensors[t].name for t in op.inputs],
            [graph.tensors[t].name for t in op.outputs],
        )
        for op in graph.ops
    ]
