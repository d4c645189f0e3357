"""Values, element types and shapes of an ONNX model, as the ``onnx`` package infers them node by
node. Imports onnx and numpy.

The package infers the shapes of a node's outputs from those of its inputs and from the values of
small constants. Its reference implementation does the arithmetic on sizes (``Shape``, ``Gather``,
``Concat``, ``Mul``) for a few numbers. Weights and files beside the model are not read, and
operators outside a short list are never run.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import defs, helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

from hosim.errors import InputError
from hosim.io.importers.stored import ELEMENTS, LARGEST, StaticTensor

DTYPES: Mapping[int, tuple[str, int]] = {
    **ELEMENTS,
    17: ("fp8", 8),
    18: ("fp8", 8),
    19: ("fp8", 8),
    20: ("fp8", 8),
    21: ("uint4", 4),
    22: ("int4", 4),
    23: ("fp4", 4),
    24: ("fp8", 8),
    25: ("uint2", 2),
    26: ("int2", 2),
}
"""hosim's name and the bits of each ``TensorProto.DataType``; strings have no size."""

_MOST_NUMBERS = 1024
"""The most elements of a tensor whose values are computed here."""

_ARITHMETIC = frozenset(
    """Gather Concat Slice Unsqueeze Squeeze Cast Reshape Identity Range ConstantOfShape Equal Greater Less GreaterOrEqual LessOrEqual
    Where Expand ReduceProd ReduceSum ReduceMax ReduceMin Add Sub Mul Div Mod Neg Abs Min Max Floor Ceil Sqrt Pow Not And Or Split
    Transpose Flatten Sign Round Reciprocal CastLike""".split()  # noqa: SIM905
)


_FUSED = {"FusedConv": "Conv", "FusedGemm": "Gemm"}


@dataclass(frozen=True, slots=True)
class OnnxValue:
    """The value of a name. ``known`` has its elements, if they are few and independent of data;
    ``tensor`` is ``None`` for plain numbers.
    """

    shape: tuple[int, ...]
    element: int
    known: Any = None
    tensor: StaticTensor | None = None

    @property
    def is_number(self) -> bool:
        """Return whether this is a number or a list of sizes, whose memory is negligible."""
        if self.known is None:
            return False
        return not self.shape or (
            len(self.shape) == 1 and self.shape[0] <= 64 and self.element in (6, 7, 9)
        )


def dtype_of(element: int, name: str) -> tuple[str, int]:
    """Return hosim's name and the bits of an element type. Raises :class:`InputError` for strings
    and unknown types.
    """
    if element not in DTYPES:
        raise InputError(f"{name[:100]!r} has the element type {element}, which is not numeric")
    return DTYPES[element]


def constant(tensor: onnx.TensorProto) -> OnnxValue:
    """Return the value of an initializer, with its elements only if they are few and in the file
    itself.
    """
    shape = tuple(int(n) for n in tensor.dims)
    known = None
    inside = tensor.data_location != onnx.TensorProto.EXTERNAL
    if (
        inside
        and tensor.data_type in DTYPES
        and all(0 <= n <= _MOST_NUMBERS for n in shape)
        and prod(shape) <= _MOST_NUMBERS
    ):
        try:
            known = numpy_helper.to_array(tensor)
        except Exception:  # numpy raises all kinds of errors for missing bytes: the shape is enough
            known = None
    return OnnxValue(
        shape, int(tensor.data_type), known if known is not None and known.shape == shape else None
    )


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """Return the attributes of a node by name; subgraphs and tensors are unchanged."""
    found = {}
    for attribute in node.attribute:
        try:
            found[attribute.name] = helper.get_attribute_value(attribute)
        except (ValueError, TypeError):
            raise InputError(
                f"attribute {attribute.name[:50]!r} has no value", where=node.name[:100]
            ) from None
    return {
        key: value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        for key, value in found.items()
    }


def infer(
    node: onnx.NodeProto,
    inputs: Mapping[str, OnnxValue],
    opsets: Mapping[str, int],
    version: int,
    where: str,
) -> dict[str, OnnxValue]:
    """Return the outputs of a node by name, if their shapes can be inferred. Raises
    :class:`InputError` if the node contradicts itself.
    """
    node = _unfused(node)
    inputs = {name: inputs[name] for name in node.input if name}
    domain = "" if node.domain == "ai.onnx" else node.domain
    try:
        schema = defs.get_schema(node.op_type, opsets.get(domain, 1), domain)
    except Exception:  # a custom operator: the model may declare its outputs
        return {}
    if (
        not schema.min_input <= len(node.input) <= schema.max_input
        or not schema.min_output <= len(node.output) <= schema.max_output
    ):
        raise InputError(
            f"operator {node.op_type[:50]} cannot have {len(node.input)} inputs and "
            f"{len(node.output)} outputs",
            where=where,
        )
    types = {
        name: helper.make_tensor_type_proto(value.element, value.shape)
        for name, value in inputs.items()
    }
    try:
        data = {
            name: numpy_helper.from_array(value.known)
            for name, value in inputs.items()
            if value.known is not None
        }
        imports = [helper.make_opsetid(key, number) for key, number in opsets.items()]
        made = shape_inference.infer_node_outputs(
            schema, node, types, data, opset_imports=imports, ir_version=version
        )
    except Exception as error:  # the package raises all kinds of errors, in C++ and Python
        reason = " ".join(str(error).split())
        raise InputError(
            f"shapes of operator {node.op_type[:50]} do not fit: {reason[:200]}", where=where
        ) from None
    return {name: value for name, proto in made.items() if (value := of_type(proto)) is not None}


def _unfused(node: onnx.NodeProto) -> onnx.NodeProto:
    """Return the ONNX operator with the same result shape as a fused operator of onnxruntime; other
    nodes are unchanged.
    """
    known = _FUSED.get(node.op_type) if node.domain == "com.microsoft" else None
    if known is None:
        return node
    attributes = {attribute.name for attribute in defs.get_schema(known).attributes.values()}
    plain = helper.make_node(known, list(node.input[:3]), list(node.output))
    plain.attribute.extend(
        attribute for attribute in node.attribute if attribute.name in attributes
    )
    return plain


def of_type(proto: onnx.TypeProto) -> OnnxValue | None:
    """Return a value of a tensor type with all its sizes; ``None`` if a size is missing, or for
    another type.
    """
    if not proto.HasField("tensor_type") or not proto.tensor_type.HasField("shape"):
        return None
    dims = proto.tensor_type.shape.dim
    if not all(dim.HasField("dim_value") and 0 <= dim.dim_value < LARGEST for dim in dims):
        return None
    return OnnxValue(tuple(int(dim.dim_value) for dim in dims), int(proto.tensor_type.elem_type))


def compute(
    node: onnx.NodeProto,
    inputs: Mapping[str, OnnxValue],
    made: Mapping[str, OnnxValue],
    opsets: Mapping[str, int],
) -> dict[str, np.ndarray[Any, Any]]:
    """Return the elements of a node's outputs by name, if it computes with known numbers; else
    nothing.
    """
    if node.op_type in ("Shape", "Size") and len(inputs) == 1:
        (given,) = inputs.values()
        if node.op_type == "Size":
            return {node.output[0]: np.array(prod(given.shape), dtype=np.int64)}
        bounds = attributes_of(node)
        return {
            node.output[0]: np.array(
                given.shape[bounds.get("start", 0) : bounds.get("end")], dtype=np.int64
            )
        }
    if node.op_type not in _ARITHMETIC or node.domain not in ("", "ai.onnx"):
        return {}
    if any(value.known is None for value in inputs.values()):
        return {}
    if any(attribute.t.data_location == onnx.TensorProto.EXTERNAL for attribute in node.attribute):
        return {}  # onnx would open the file that the model names
    outputs = [name for name in node.output if name]
    if any(prod(made[name].shape) > _MOST_NUMBERS for name in outputs):
        return {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            takes = [
                helper.make_tensor_value_info(name, value.element, value.shape)
                for name, value in inputs.items()
            ]
            gives = [
                helper.make_tensor_value_info(name, made[name].element, None) for name in outputs
            ]
            graph = helper.make_graph([node], "sizes", takes, gives)
            imports = [helper.make_opsetid(key, number) for key, number in opsets.items()]
            feeds = {name: value.known for name, value in inputs.items()}
            results = ReferenceEvaluator(helper.make_model(graph, opset_imports=imports)).run(
                outputs, feeds
            )
    except (
        Exception
    ):  # numbers that cannot be computed stay unknown; the code that needs them reports it
        return {}
    pairs = ((name, np.asarray(result)) for name, result in zip(outputs, results, strict=True))
    return {name: result for name, result in pairs if result.shape == made[name].shape}
