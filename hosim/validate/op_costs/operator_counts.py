"""FLOP and bytes of one operator of a recording, from the shapes and dtypes of its arguments.

Products, convolutions and attention have FLOP and tensors; operators that only move bytes have
tensors. Data that are not recorded are assumed: outputs have the shape that follows from the
inputs. Convolutions have their recorded strides; otherwise a convolution's output has the shape of
the gradient in a backward pass with the same input and weight, and without either it is omitted.
Attention counts without a mask.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from hosim.analysis.costmodel.kernels import NO_WINDOW, UNKNOWN, KernelSizes, product_kernel
from hosim.io.importers import op_kind
from hosim.io.importers.recordings import CpuOp
from hosim.io.importers.torch_programs import DTYPES
from hosim.io.models import ITEM_BYTES

Shape = tuple[int, ...]
Output = Mapping[tuple[Shape, Shape], Shape]
"""Output shapes of convolutions, by the shapes of input and weight."""


def kind_of_operator(name: str) -> str:
    """Return hosim's kind of op for an operator with this bare name, whichever library runs it."""
    for prefix in ("cudnn_", "miopen_", "_cudnn_"):
        name = name.removeprefix(prefix)
    return op_kind(name)


def tensors_of(operator: CpuOp) -> list[tuple[Shape, int]]:
    """Return the shape and the bytes per item of each argument that is a tensor."""
    found = []
    for shape, dtype in zip(operator.shapes, operator.dtypes, strict=False):
        name = DTYPES.get(dtype) if isinstance(dtype, str) else None
        if name is not None and _is_shape(shape):
            found.append((shape, ITEM_BYTES[name]))
    return found


def _is_shape(shape: object) -> bool:
    return isinstance(shape, tuple) and all(type(n) is int and n >= 0 for n in shape)


def _lists(operator: CpuOp) -> list[int]:
    """Return the number of elements of each argument that is a list of tensors."""
    return [
        sum(prod(shape) for shape in shapes)
        for shapes, dtype in zip(operator.shapes, operator.dtypes, strict=False)
        if dtype == "TensorList"
        and isinstance(shapes, tuple)
        and shapes
        and all(_is_shape(shape) for shape in shapes)
    ]


def bytes_of(tensors: Sequence[tuple[Shape, int]]) -> int:
    """Return the bytes of tensors with these shapes and bytes per item."""
    return sum(prod(shape) * item for shape, item in tensors)


def _numbers(operator: CpuOp) -> list[list[int]]:
    """The lists of numbers among an operator's arguments, in order."""
    texts = [
        text
        for text in operator.concrete
        if isinstance(text, str) and re.fullmatch(r"\[\d{1,6}(, ?\d{1,6})*\]", text)
    ]
    return [[int(n) for n in text[1:-1].split(",")] for text in texts]


def convolution_outputs(operators: Sequence[CpuOp]) -> Output:
    """Return the output shape of each convolution whose strides or whose backward pass were
    recorded.
    """
    found: dict[tuple[Shape, Shape], Shape] = {}
    for operator in operators:
        name = operator.bare_name
        if "convolution" not in name:
            continue
        shapes = [shape for shape, _ in tensors_of(operator)[:3]]
        if name == "convolution_backward" and len(shapes) == 3:
            found[shapes[1], shapes[2]] = shapes[0]
        elif (
            name in ("cudnn_convolution_backward", "miopen_convolution_backward")
            and len(shapes) == 3
        ):
            found[shapes[0], shapes[2]] = shapes[1]
        elif (
            name in ("cudnn_convolution", "miopen_convolution", "convolution", "_convolution")
            and len(shapes) > 1
        ):
            made = _convolved(operator, *shapes[:2], vendor=name.startswith(("cudnn", "miopen")))
            if made is not None:
                found.setdefault((shapes[0], shapes[1]), made)
    return found


def _convolved(operator: CpuOp, taken: Shape, weight: Shape, *, vendor: bool) -> Shape | None:
    """Return the output shape of a convolution from its recorded strides, paddings and dilations;
    vendors' operators list them in another order.
    """
    lists, axes = _numbers(operator), len(taken) - 2
    if axes < 1 or len(weight) != len(taken) or ("True" in operator.concrete[6:7] and not vendor):
        return None
    lists = [one * axes if len(one) == 1 else one for one in lists[:3]]
    if (
        len(lists) < 3
        or any(len(one) != axes for one in lists)
        or 0 in (first := lists[1] if vendor else lists[0])
    ):
        return None
    stride, padding, dilation = first, lists[0] if vendor else lists[1], lists[2]
    sides = [
        (n + 2 * padding[i] - dilation[i] * (weight[2 + i] - 1) - 1) // stride[i] + 1
        for i, n in enumerate(taken[2:])
    ]
    return (taken[0], weight[0], *sides) if min(sides) > 0 else None


def flops_and_bytes(operator: CpuOp, outputs: Output) -> tuple[int, int] | None:
    """Return the FLOP and bytes of an operator, if they are known. For a convolution's backward
    pass the FLOP are those of one of its two products.
    """
    name, tensors = operator.bare_name, tensors_of(operator)
    if name in _OF_LISTS or name.startswith(("_foreach_", "_fused_adam")):
        return _of_lists(operator, name)
    if not tensors or not any(prod(shape) for shape, _ in tensors):
        return None
    if name in _PRODUCTS:
        return _PRODUCTS[name](tensors, outputs)
    kind, first = kind_of_operator(name), tensors[:1]
    if kind == "elementwise" or name in POINTWISE_GRADIENTS:
        shapes = [shape for shape, _ in tensors]
        written = first if name.endswith("_") else [(_broadcast(shapes), tensors[0][1])]
        return 0, bytes_of(tensors) + bytes_of(written)
    if kind in ("norm", "softmax") and "backward" not in name:
        return 0, 2 * bytes_of(first)
    if name in _PASSES:
        return 0, _PASSES[name] * bytes_of(first)
    if name == "copy_" and len(tensors) > 1:
        return 0, bytes_of(tensors[:2])
    if name in ("embedding", "index_select") and len(tensors) > 1:
        (table, item), (rows, row_item) = tensors[:2]
        return 0, prod(rows) * (2 * item * prod(table[1:]) + row_item)
    if name in ("max_pool2d_with_indices_backward", "_adaptive_avg_pool2d_backward"):
        return 0, bytes_of(tensors)
    if name == "max_pool2d_with_indices":
        return _pooled(operator, tensors)
    if name == "native_dropout":
        return 0, 2 * bytes_of(first) + prod(first[0][0])
    return (0, bytes_of(first)) if name in ("fill_", "zero_") or kind == "reduction" else None


POINTWISE_GRADIENTS = frozenset(
    f"{name}_backward"
    for name in ("threshold", "gelu", "silu", "tanh", "sigmoid", "hardtanh", "native_dropout")
)
_PASSES = {
    **dict.fromkeys(
        ("native_layer_norm_backward", "_softmax_backward_data", "_log_softmax_backward_data"), 3
    ),
    **dict.fromkeys(
        ("cudnn_batch_norm_backward", "miopen_batch_norm_backward", "native_batch_norm_backward"), 3
    ),
}
"""Operators that read or write this many times the bytes of their first argument."""
_OF_LISTS = ("cat", "_cat")


def _of_lists(operator: CpuOp, name: str) -> tuple[int, int] | None:
    """Return the FLOP and bytes of an operator on lists of tensors. Their type is not recorded:
    single precision is assumed until the kernels tell it.
    """
    lists, own = _lists(operator), tensors_of(operator)
    if not lists:
        return None
    item = own[0][1] if own else ITEM_BYTES["fp32"]
    if name in _OF_LISTS:
        return 0, 2 * lists[0] * item
    written = min(3, len(lists)) if name.startswith("_fused_adam") else 1
    return 0, (sum(lists) + written * lists[0]) * item


def _pooled(operator: CpuOp, tensors: Sequence[tuple[Shape, int]]) -> tuple[int, int] | None:
    """Count input, output and the positions of the largest elements, by the recorded window and
    strides.
    """
    (taken, item), lists = tensors[0], _numbers(operator)
    if (
        len(taken) < 3
        or len(lists) < 3
        or any(len(one) not in (1, 2) or 0 in lists[1] for one in lists[:3])
    ):
        return None
    window, stride, padding = (one * 2 if len(one) == 1 else one for one in lists[:3])
    sides = [
        (n + 2 * p - w) // s + 1
        for n, w, s, p in zip(taken[-2:], window, stride, padding, strict=True)
    ]
    return (
        (0, bytes_of(tensors[:1]) + prod((*taken[:-2], *sides)) * (item + 8))
        if min(sides) > 0
        else None
    )


def _broadcast(shapes: Sequence[Shape]) -> Shape:
    rank = max(len(shape) for shape in shapes)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(max(sizes) for sizes in zip(*padded, strict=True))


def kernel_of(operator: CpuOp, flops: int) -> KernelSizes:
    """Return the class of kernels of a product or an attention, and its sizes; else
    :data:`UNKNOWN`.
    """
    name, tensors = operator.bare_name, tensors_of(operator)
    if name in ("mm", "addmm"):
        (left, _), (right, _) = tensors[-2:]
        return product_kernel((*left[:-1], right[-1]), right, flops)
    if name in _ATTENTION:
        (batch, heads, queries, width), (_, kv_heads, keys, _) = tensors[0][0], tensors[1][0]
        causal = "True" in operator.concrete
        # without a mask each query sees all keys, which a causal one with that many keys before it
        # sees on average
        before = keys - queries if causal else keys - (queries + 1) // 2
        return (
            ("context_attention", (batch, queries, before, heads, kv_heads, width, NO_WINDOW))
            if before >= 0
            else UNKNOWN
        )
    return UNKNOWN


def _product(tensors: Sequence[tuple[Shape, int]], outputs: Output) -> tuple[int, int] | None:
    """Count the product of the last two tensors, matrices or batches of them."""
    (left, item), (right, _) = tensors[-2:] if len(tensors) > 1 else ((((), 1),) * 2)
    if len(left) < 2 or len(right) < 2 or left[-1] != right[-2]:
        return None
    result = (*left[:-1], right[-1])
    return 2 * prod(result) * left[-1], bytes_of(tensors) + prod(result) * item


def _convolution(tensors: Sequence[tuple[Shape, int]], outputs: Output) -> tuple[int, int] | None:
    result = outputs.get((tensors[0][0], tensors[1][0])) if len(tensors) > 1 else None
    if result is None:
        return None
    return 2 * prod(result) * prod(tensors[1][0][1:]), bytes_of(tensors) + prod(result) * tensors[
        0
    ][1]


def _convolution_backward(
    tensors: Sequence[tuple[Shape, int]], outputs: Output
) -> tuple[int, int] | None:
    if len(tensors) < 3:
        return None
    gradient = outputs.get((tensors[1][0], tensors[2][0])) or outputs.get(
        (tensors[0][0], tensors[2][0])
    )
    return (
        (2 * prod(gradient) * prod(tensors[2][0][1:]), 2 * bytes_of(tensors[:3]))
        if gradient
        else None
    )


def _attention(tensors: Sequence[tuple[Shape, int]], outputs: Output) -> tuple[int, int] | None:
    """Count attention of query, key and value as (batch, heads, length, width)."""
    if len(tensors) < 3 or any(len(shape) != 4 for shape, _ in tensors[:3]):
        return None
    (batch, heads, length, width), item = tensors[0]
    key, value = tensors[1][0], tensors[2][0]
    flops = 2 * batch * heads * length * key[2] * (width + value[3])
    return flops, bytes_of(tensors[:3]) + batch * heads * length * value[3] * item


_ATTENTION = tuple(
    f"_scaled_dot_product_{name}_attention" for name in ("flash", "efficient", "cudnn")
)
_PRODUCTS: Mapping[str, Callable[[Any, Output], tuple[int, int] | None]] = {
    **dict.fromkeys(("mm", "addmm", "bmm", "baddbmm"), _product),
    **dict.fromkeys(
        ("cudnn_convolution", "miopen_convolution", "_convolution", "convolution"), _convolution
    ),
    **dict.fromkeys(
        ("convolution_backward", "cudnn_convolution_backward", "miopen_convolution_backward"),
        _convolution_backward,
    ),
    **dict.fromkeys(_ATTENTION, _attention),
}
