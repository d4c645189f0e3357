"""FLOP and bytes of a recording's operators, from the shapes and dtypes of their arguments, with the times of their kernels.

Products, convolutions and attention have FLOP and tensors; elementwise ops, norms, softmax, copies, fills and reductions have tensors.
Assumptions about what is not recorded: outputs have the shape that follows from the inputs; a convolution's output has the shape of the
gradient that a backward pass with the same input and weight takes (without one it is left out, because strides are not recorded); attention
counts without a mask. Single precision counts as tf32 if the kernel's name shows that it used tensor cores.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from hosim.importers.kineto_events import CpuOp, DeviceOp, KinetoTrace
from hosim.importers.op_kinds import op_kind
from hosim.importers.traced_tensors import DTYPES

ITEM_BYTES = {"fp64": 8, "int64": 8, "fp32": 4, "int32": 4, "fp16": 2, "bf16": 2, "int8": 1, "uint8": 1, "bool": 1}
_TF32 = re.compile(r"tf32|s1688|s16816gemm_f32|tensorop_s\d+gemm")
_GRADIENTS = re.compile(r"dgrad|bwd_data|backward_data"), re.compile(r"wgrad|bwd_filter|backward_filter|bwd_weight")

Shape = tuple[int, ...]
Output = Mapping[tuple[Shape, Shape], Shape]
"""Output shapes of convolutions, by the shapes of input and weight."""


@dataclass(frozen=True, slots=True)
class OpWork:
    """An operator: FLOP, bytes read and written, and the nanoseconds of its kernels together."""

    kind: str
    dtype: str
    flops: int
    bytes_accessed: int
    time_ns: int


@dataclass(frozen=True)
class Counted:
    """The operators of a recording whose work is known, and the number and the nanoseconds of the kernels of all others."""

    works: tuple[OpWork, ...]
    kernels_left_out: int
    time_left_out_ns: int


def work_of(trace: KinetoTrace) -> Counted:
    """The work of every operator that launched kernels, if known."""
    outputs = _outputs(trace.cpu_ops)
    launched: defaultdict[int, list[DeviceOp]] = defaultdict(list)
    left: list[DeviceOp] = []
    known: dict[int, tuple[int, int] | None] = {}
    for op in trace.ops:
        if op.kind == "copy":
            continue
        at = trace.calls[op.call].cpu_op if op.call is not None else None
        while at is not None:
            if at not in known:
                known[at] = _counted(trace.cpu_ops[at], outputs)
            if known[at] is not None:
                break
            at = trace.cpu_ops[at].parent
        if at is None:
            left.append(op)
        else:
            launched[at].append(op)
    works = []
    for at, ops in sorted(launched.items()):
        operator, found = trace.cpu_ops[at], known[at]
        assert found is not None
        name, dtype = _bare(operator), _dtype(operator)
        flops, size = found
        names = [op.name for op in ops]
        if "convolution_backward" in name:  # the wanted gradients are not recorded, but the kernels show them
            flops *= sum(any(pattern.search(n) for n in names) for pattern in _GRADIENTS) or len(_GRADIENTS)
        if dtype == "fp32" and flops and any(_TF32.search(n) for n in names):
            dtype = "tf32"
        works.append(OpWork(_kind(name), dtype, flops, size, sum(op.duration_ns for op in ops)))
    kernels = [op for op in left if op.kind == "kernel"]
    return Counted(tuple(works), len(kernels), sum(op.duration_ns for op in kernels))


def _bare(operator: CpuOp) -> str:
    return operator.name.rpartition("::")[2]


def _kind(name: str) -> str:
    for prefix in ("cudnn_", "miopen_", "_cudnn_"):
        name = name.removeprefix(prefix)
    return op_kind(name)


def _dtype(operator: CpuOp) -> str:
    return next(DTYPES[name] for name in operator.dtypes if isinstance(name, str) and name in DTYPES)


def _tensors(operator: CpuOp) -> list[tuple[Shape, int]]:
    """Shape and bytes of an item of each argument that is a tensor."""
    found = []
    for shape, dtype in zip(operator.shapes, operator.dtypes, strict=False):
        name = DTYPES.get(dtype) if isinstance(dtype, str) else None
        if name is not None and isinstance(shape, tuple) and all(type(n) is int and n >= 0 for n in shape):
            found.append((shape, ITEM_BYTES[name]))
    return found


def _bytes(tensors: Sequence[tuple[Shape, int]]) -> int:
    return sum(prod(shape) * item for shape, item in tensors)


def _outputs(operators: Sequence[CpuOp]) -> Output:
    """The output of each convolution whose backward pass was recorded."""
    found = {}
    for operator in operators:
        name = _bare(operator)
        shapes = [shape for shape, _ in _tensors(operator)[:3]]
        if name == "convolution_backward" and len(shapes) == 3:
            found[shapes[1], shapes[2]] = shapes[0]
        elif name in ("cudnn_convolution_backward", "miopen_convolution_backward") and len(shapes) == 3:
            found[shapes[0], shapes[2]] = shapes[1]
    return found


def _counted(operator: CpuOp, outputs: Output) -> tuple[int, int] | None:
    """FLOP and bytes of an operator, if they are known; of a convolution's backward pass the FLOP of one of its two products."""
    name, tensors = _bare(operator), _tensors(operator)
    if not tensors or not any(prod(shape) for shape, _ in tensors):
        return None
    if name in _PRODUCTS:
        return _PRODUCTS[name](tensors, outputs)
    kind = op_kind(name)
    first = tensors[:1]
    if kind == "elementwise" or name in _POINTWISE:
        shapes = [shape for shape, _ in tensors]
        written = first if name.endswith("_") else [(_broadcast(shapes), tensors[0][1])]
        return 0, _bytes(tensors) + _bytes(written)
    if kind in ("norm", "softmax") and "backward" not in name:
        return 0, 2 * _bytes(first)
    if name == "copy_" and len(tensors) > 1:
        return 0, _bytes(tensors[:2])
    return (0, _bytes(first)) if name in ("fill_", "zero_", "sum", "mean") else None


_POINTWISE = frozenset(["threshold_backward", "gelu_backward", "silu_backward", "tanh_backward", "sigmoid_backward"])


def _broadcast(shapes: Sequence[Shape]) -> Shape:
    rank = max(len(shape) for shape in shapes)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(max(sizes) for sizes in zip(*padded, strict=True))


def _product(tensors: Sequence[tuple[Shape, int]], outputs: Output) -> tuple[int, int] | None:
    """The last two tensors multiplied, by matrix or by batch of them."""
    (left, item), (right, _) = tensors[-2:] if len(tensors) > 1 else ((((), 1),) * 2)
    if len(left) < 2 or len(right) < 2 or left[-1] != right[-2]:
        return None
    result = (*left[:-1], right[-1])
    return 2 * prod(result) * left[-1], _bytes(tensors) + prod(result) * item


def _convolution(tensors: Sequence[tuple[Shape, int]], outputs: Output) -> tuple[int, int] | None:
    result = outputs.get((tensors[0][0], tensors[1][0])) if len(tensors) > 1 else None
    if result is None:
        return None
    return 2 * prod(result) * prod(tensors[1][0][1:]), _bytes(tensors) + prod(result) * tensors[0][1]


def _convolution_backward(tensors: Sequence[tuple[Shape, int]], outputs: Output) -> tuple[int, int] | None:
    if len(tensors) < 3:
        return None
    gradient = outputs.get((tensors[1][0], tensors[2][0])) or outputs.get((tensors[0][0], tensors[2][0]))
    return (2 * prod(gradient) * prod(tensors[2][0][1:]), 2 * _bytes(tensors[:3])) if gradient else None


def _attention(tensors: Sequence[tuple[Shape, int]], outputs: Output) -> tuple[int, int] | None:
    """Query, key and value as (batch, heads, length, width)."""
    if len(tensors) < 3 or any(len(shape) != 4 for shape, _ in tensors[:3]):
        return None
    (batch, heads, length, width), item = tensors[0]
    key, value = tensors[1][0], tensors[2][0]
    flops = 2 * batch * heads * length * key[2] * (width + value[3])
    return flops, _bytes(tensors[:3]) + batch * heads * length * value[3] * item


_PRODUCTS: Mapping[str, Callable[[Any, Output], tuple[int, int] | None]] = {
    **dict.fromkeys(("mm", "addmm", "bmm", "baddbmm"), _product),
    **dict.fromkeys(("cudnn_convolution", "miopen_convolution", "_convolution", "convolution"), _convolution),
    **dict.fromkeys(("convolution_backward", "cudnn_convolution_backward", "miopen_convolution_backward"), _convolution_backward),
    **dict.fromkeys(
        (f"_scaled_dot_product_{name}_attention" for name in ("flash", "efficient", "cudnn")),
        _attention,
    ),
}
