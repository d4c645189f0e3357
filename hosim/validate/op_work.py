"""FLOP and bytes of a recording's operators, from the shapes and dtypes of their arguments, with the times of their kernels.

Products, convolutions and attention have FLOP and tensors; what only moves bytes has tensors. An operator whose kernels do different things
is several works: a convolution and the change of its tensors' layout, and the two gradients of a convolution. What does not follow from
shapes follows from the kernels' names: whether single precision used tensor cores (tf32), and whether an elementwise kernel goes over
contiguous memory or computes an index for each element (kinds that end in ``_strided``). Products in 16 bits whose rows do not begin at
multiples of 16 bytes take other kernels, about half as fast (``matmul_unaligned``).

Assumptions about what is not recorded: outputs have the shape that follows from the inputs; strides of convolutions are those recorded
(else a convolution's output has the shape of the gradient that a backward pass with the same input and weight takes; without either it is
left out); attention counts without a mask. Kernels that were launched before the recording have the work of those at its end, if they are
the same ones; else kernels without an operator have that of those with the same name, grid and block, if all of these have the same.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from hosim.costmodel.kernels.sizes_of_ops import NO_WINDOW, UNKNOWN, KernelSizes, product_kernel
from hosim.importers.kineto_before import ended_before
from hosim.importers.kineto_events import CpuOp, DeviceOp, KinetoTrace
from hosim.importers.kineto_waits import program_order
from hosim.importers.op_kinds import op_kind
from hosim.importers.traced_tensors import DTYPES
from hosim.models.tape import ITEM_BYTES

_TF32 = re.compile(r"tf32|s1688|s16816gemm_f32|tensorop_s\d+gemm")
_GRADIENTS = (
    ("convolution_dgrad", re.compile(r"dgrad|bwd_data|backward_data|BwdData")),
    ("convolution_wgrad", re.compile(r"wgrad|bwd_filter|backward_filter|bwd_weight|BwdWeight|WrW")),
)
_TO_CHANNELS_LAST, _FROM_CHANNELS_LAST = re.compile(r"nchwToNhwc"), re.compile(r"nhwcToNchw")
_OPAQUE = re.compile(r"OpaqueType<(\d+)")
_OF_ITEMS = {1: "uint8", 2: "bf16", 4: "fp32", 8: "int64"}

Shape = tuple[int, ...]
Output = Mapping[tuple[Shape, Shape], Shape]
"""Output shapes of convolutions, by the shapes of input and weight."""


@dataclass(frozen=True, slots=True)
class OpWork:
    """An operator, or one of its works: FLOP, bytes read and written, and the nanoseconds of its kernels together.

    ``kernel`` and ``sizes`` are its class of kernels in the cost model, if it has one; ``ops`` the positions of its kernels in the trace.
    """

    kind: str
    dtype: str
    flops: int
    bytes_accessed: int
    time_ns: int
    kernel: str = field(default="", compare=False)
    sizes: tuple[int, ...] = field(default=(), compare=False)
    ops: tuple[int, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class Counted:
    """The operators of a recording whose work is known, and the number and the nanoseconds of the kernels of all others.

    ``left_out`` are the positions of these kernels.
    """

    works: tuple[OpWork, ...]
    kernels_left_out: int
    time_left_out_ns: int
    left_out: tuple[int, ...] = field(default=(), compare=False)


def work_of(trace: KinetoTrace) -> Counted:
    """The work of every operator that launched kernels, if known."""
    outputs = _outputs(trace.cpu_ops)
    launched: defaultdict[int, list[int]] = defaultdict(list)
    left: list[int] = []
    known: dict[int, tuple[int, int] | None] = {}
    for i, op in enumerate(trace.ops):
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
            left.append(i)
        else:
            launched[at].append(i)
    works: list[OpWork] = []
    for at, places in sorted(launched.items()):
        operator, found = trace.cpu_ops[at], known[at]
        assert found is not None
        works += _works(operator, found, [(i, trace.ops[i]) for i in places], outputs)
    works += _of_iteration_before(trace, works)
    placed = {i for work in works for i in work.ops}
    alike, left = _alike(trace, works, [i for i in left if trace.ops[i].kind == "kernel" and i not in placed])
    return Counted((*works, *alike), len(left), sum(trace.ops[i].duration_ns for i in left), tuple(left))


def _of_iteration_before(trace: KinetoTrace, works: Sequence[OpWork]) -> list[OpWork]:
    """The works of ops launched before the recording, if they are the end of an iteration like the one that ends it."""
    if all(op.call is not None for op in trace.ops):
        return []
    order = program_order(trace).order
    count = ended_before(trace, order)
    earlier = dict(zip(order[len(order) - count :], order[:count], strict=True))
    again = [(work, [earlier[i] for i in work.ops]) for work in works if all(i in earlier for i in work.ops)]
    return [replace(work, time_ns=sum(trace.ops[i].duration_ns for i in ops), ops=tuple(ops)) for work, ops in again]


def _works(operator: CpuOp, found: tuple[int, int], launched: list[tuple[int, DeviceOp]], outputs: Output) -> Iterator[OpWork]:
    """The works of an operator with that FLOP and bytes, and with these kernels."""
    name, (flops, size) = operator.bare_name, found
    if "convolution" not in name:
        kernel = _kernel(operator, flops)
        kind = _kind(name)
        if kernel[0] == "gemm" and _dtype(operator, ()) in ("bf16", "fp16") and any(n % _ALIGNED for n in kernel[1][1:]):
            kind, kernel = UNALIGNED, UNKNOWN
        names = [op.name for _, op in launched if op.kind == "kernel"]
        if not _tensors(operator):
            size = size // ITEM_BYTES["fp32"] * ITEM_BYTES[_dtype(operator, names)]
        if kind in _STREAMING and names and all("elementwise_kernel" in n and "vectorized_elementwise" not in n for n in names):
            kind += STRIDED
        yield _work(kind, operator, flops, size, launched, kernel)
        return
    layouts = [part for part in launched if _TO_CHANNELS_LAST.search(part[1].name) or _FROM_CHANNELS_LAST.search(part[1].name)]
    if layouts and len(layouts) < len(launched):
        yield _work("layout", operator, 0, _relaid(operator, layouts, outputs), layouts, UNKNOWN)
        launched = [part for part in launched if part not in layouts]
    if "backward" not in name:
        yield _work(_kind(name), operator, flops, size, launched, UNKNOWN)
        return
    parts = [(kind, [part for part in launched if pattern.search(part[1].name)]) for kind, pattern in _GRADIENTS]
    parts = [(kind, part) for kind, part in parts if part]
    if not parts:  # the wanted gradients are not recorded, nor do the kernels show them
        yield _work(_kind(name), operator, len(_GRADIENTS) * flops, size, launched, UNKNOWN)
        return
    others = [part for part in launched if not any(part in kernels for _, kernels in parts)]
    for i, (kind, kernels) in enumerate(parts):
        yield _work(kind, operator, flops, size // 2, [*kernels, *(others if not i else ())], UNKNOWN)


def _work(kind: str, operator: CpuOp, flops: int, size: int, launched: Sequence[tuple[int, DeviceOp]], kernel: KernelSizes) -> OpWork:
    dtype = _dtype(operator, [op.name for _, op in launched])
    if dtype == "fp32" and flops and any(_TF32.search(op.name) for _, op in launched):
        dtype = "tf32"
    time = sum(op.duration_ns for _, op in launched)
    return OpWork(kind, dtype, flops, size, time, *kernel, tuple(i for i, _ in launched))


def _alike(trace: KinetoTrace, works: Sequence[OpWork], left: Sequence[int]) -> tuple[list[OpWork], list[int]]:
    """Works of kernels without an operator, and those of which nothing is known still."""
    same: dict[Any, OpWork | None] = {}
    for work in works:
        if len(work.ops) == 1:
            key = _launched_as(trace.ops[work.ops[0]])
            before = same.get(key, work)
            same[key] = work if before is not None and replace(before, time_ns=work.time_ns) == work else None
    found, rest = [], []
    for i in left:
        op = trace.ops[i]
        known = same.get(_launched_as(op)) if op.grid and _without_operator(trace, op) else None
        if known is None:
            rest.append(i)
        else:
            found.append(replace(known, time_ns=op.duration_ns, ops=(i,)))
    return found, rest


def _without_operator(trace: KinetoTrace, op: DeviceOp) -> bool:
    return op.call is None or trace.calls[op.call].cpu_op is None


def _launched_as(op: DeviceOp) -> tuple[object, ...]:
    return op.name, op.grid, op.block


STRIDED, UNALIGNED = "_strided", "matmul_unaligned"
_ALIGNED = 8
"""Elements of 16 bits in 16 bytes."""
_STREAMING = ("elementwise", "copy")


def _kind(name: str) -> str:
    for prefix in ("cudnn_", "miopen_", "_cudnn_"):
        name = name.removeprefix(prefix)
    return op_kind(name)


def _dtype(operator: CpuOp, kernels: Sequence[str]) -> str:
    found = next((DTYPES[name] for name in operator.dtypes if isinstance(name, str) and name in DTYPES), None)
    if found is None:  # of lists of tensors the type is not recorded
        items = next((int(match[1]) for name in kernels if (match := _OPAQUE.search(name))), 0)
        named = next((dtype for part, dtype in (("BFloat16", "bf16"), ("Half", "fp16")) if any(part in name for name in kernels)), "fp32")
        found = _OF_ITEMS.get(items, named)
    return found


def _tensors(operator: CpuOp) -> list[tuple[Shape, int]]:
    """Shape and bytes of an item of each argument that is a tensor."""
    found = []
    for shape, dtype in zip(operator.shapes, operator.dtypes, strict=False):
        name = DTYPES.get(dtype) if isinstance(dtype, str) else None
        if name is not None and _is_shape(shape):
            found.append((shape, ITEM_BYTES[name]))
    return found


def _is_shape(shape: object) -> bool:
    return isinstance(shape, tuple) and all(type(n) is int and n >= 0 for n in shape)


def _lists(operator: CpuOp) -> list[int]:
    """The elements of each argument that is a list of tensors."""
    return [
        sum(prod(shape) for shape in shapes)
        for shapes, dtype in zip(operator.shapes, operator.dtypes, strict=False)
        if dtype == "TensorList" and isinstance(shapes, tuple) and shapes and all(_is_shape(shape) for shape in shapes)
    ]


def _bytes(tensors: Sequence[tuple[Shape, int]]) -> int:
    return sum(prod(shape) * item for shape, item in tensors)


def _numbers(operator: CpuOp) -> list[list[int]]:
    """The lists of numbers among an operator's arguments, in order."""
    texts = [text for text in operator.concrete if isinstance(text, str) and re.fullmatch(r"\[\d{1,6}(, ?\d{1,6})*\]", text)]
    return [[int(n) for n in text[1:-1].split(",")] for text in texts]


def _outputs(operators: Sequence[CpuOp]) -> Output:
    """The output of each convolution whose strides or whose backward pass were recorded."""
    found: dict[tuple[Shape, Shape], Shape] = {}
    for operator in operators:
        name = operator.bare_name
        if "convolution" not in name:
            continue
        shapes = [shape for shape, _ in _tensors(operator)[:3]]
        if name == "convolution_backward" and len(shapes) == 3:
            found[shapes[1], shapes[2]] = shapes[0]
        elif name in ("cudnn_convolution_backward", "miopen_convolution_backward") and len(shapes) == 3:
            found[shapes[0], shapes[2]] = shapes[1]
        elif name in ("cudnn_convolution", "miopen_convolution", "convolution", "_convolution") and len(shapes) > 1:
            made = _convolved(operator, *shapes[:2], vendor=name.startswith(("cudnn", "miopen")))
            if made is not None:
                found.setdefault((shapes[0], shapes[1]), made)
    return found


def _convolved(operator: CpuOp, taken: Shape, weight: Shape, *, vendor: bool) -> Shape | None:
    """The output of a convolution by its recorded strides, paddings and dilations, which the vendors' have in another order."""
    lists, axes = _numbers(operator), len(taken) - 2
    if axes < 1 or len(weight) != len(taken) or ("True" in operator.concrete[6:7] and not vendor):
        return None
    lists = [one * axes if len(one) == 1 else one for one in lists[:3]]
    if len(lists) < 3 or any(len(one) != axes for one in lists) or 0 in (first := lists[1] if vendor else lists[0]):
        return None
    stride, padding, dilation = first, lists[0] if vendor else lists[1], lists[2]
    sides = [(n + 2 * padding[i] - dilation[i] * (weight[2 + i] - 1) - 1) // stride[i] + 1 for i, n in enumerate(taken[2:])]
    return (taken[0], weight[0], *sides) if min(sides) > 0 else None


def _relaid(operator: CpuOp, layouts: Sequence[tuple[int, DeviceOp]], outputs: Output) -> int:
    """Bytes read and written by so many changes of layout of a convolution's tensors."""
    tensors = _tensors(operator)
    to = sum(bool(_TO_CHANNELS_LAST.search(op.name)) for _, op in layouts)
    back = len(layouts) - to
    sizes = [_bytes([tensor]) for tensor in tensors[:3]]
    if "backward" in operator.name:  # gradient, input and weight, in either order: the gradient is read twice
        gradient, taken, weight = (*sizes, 0, 0, 0)[:3]
        return 2 * ((2 * gradient + taken + weight) * to // 4 + (taken + weight) * back // 2)
    made = outputs.get((tensors[0][0], tensors[1][0]), ())
    return 2 * (sum(sizes[: min(to, 2)]) + (prod(made) * tensors[0][1] if back else 0))


def _counted(operator: CpuOp, outputs: Output) -> tuple[int, int] | None:
    """FLOP and bytes of an operator, if they are known; of a convolution's backward pass the FLOP of one of its two products."""
    name, tensors = operator.bare_name, _tensors(operator)
    if name in _OF_LISTS or name.startswith(("_foreach_", "_fused_adam")):
        return _of_lists(operator, name)
    if not tensors or not any(prod(shape) for shape, _ in tensors):
        return None
    if name in _PRODUCTS:
        return _PRODUCTS[name](tensors, outputs)
    kind, first = _kind(name), tensors[:1]
    if kind == "elementwise" or name in POINTWISE_GRADIENTS:
        shapes = [shape for shape, _ in tensors]
        written = first if name.endswith("_") else [(_broadcast(shapes), tensors[0][1])]
        return 0, _bytes(tensors) + _bytes(written)
    if kind in ("norm", "softmax") and "backward" not in name:
        return 0, 2 * _bytes(first)
    if name in _PASSES:
        return 0, _PASSES[name] * _bytes(first)
    if name == "copy_" and len(tensors) > 1:
        return 0, _bytes(tensors[:2])
    if name in ("embedding", "index_select") and len(tensors) > 1:
        (table, item), (rows, row_item) = tensors[:2]
        return 0, prod(rows) * (2 * item * prod(table[1:]) + row_item)
    if name in ("max_pool2d_with_indices_backward", "_adaptive_avg_pool2d_backward"):
        return 0, _bytes(tensors)
    if name == "max_pool2d_with_indices":
        return _pooled(operator, tensors)
    if name == "native_dropout":
        return 0, 2 * _bytes(first) + prod(first[0][0])
    return (0, _bytes(first)) if name in ("fill_", "zero_") or kind == "reduction" else None


POINTWISE_GRADIENTS = frozenset(
    f"{name}_backward" for name in ("threshold", "gelu", "silu", "tanh", "sigmoid", "hardtanh", "native_dropout")
)
_PASSES = {
    **dict.fromkeys(("native_layer_norm_backward", "_softmax_backward_data", "_log_softmax_backward_data"), 3),
    **dict.fromkeys(("cudnn_batch_norm_backward", "miopen_batch_norm_backward", "native_batch_norm_backward"), 3),
}
"""How often operators read or write as many bytes as their first argument has."""
_OF_LISTS = ("cat", "_cat")


def _of_lists(operator: CpuOp, name: str) -> tuple[int, int] | None:
    """Of an operator on lists of tensors, whose type is not recorded: in single precision, until the kernels say which it is."""
    lists, own = _lists(operator), _tensors(operator)
    if not lists:
        return None
    item = own[0][1] if own else ITEM_BYTES["fp32"]
    if name in _OF_LISTS:
        return 0, 2 * lists[0] * item
    written = min(3, len(lists)) if name.startswith("_fused_adam") else 1
    return 0, (sum(lists) + written * lists[0]) * item


def _pooled(operator: CpuOp, tensors: Sequence[tuple[Shape, int]]) -> tuple[int, int] | None:
    """Input, output and the places of the largest elements, by the recorded window and strides."""
    (taken, item), lists = tensors[0], _numbers(operator)
    if len(taken) < 3 or len(lists) < 3 or any(len(one) not in (1, 2) or 0 in lists[1] for one in lists[:3]):
        return None
    window, stride, padding = (one * 2 if len(one) == 1 else one for one in lists[:3])
    sides = [(n + 2 * p - w) // s + 1 for n, w, s, p in zip(taken[-2:], window, stride, padding, strict=True)]
    return (0, _bytes(tensors[:1]) + prod((*taken[:-2], *sides)) * (item + 8)) if min(sides) > 0 else None


def _broadcast(shapes: Sequence[Shape]) -> Shape:
    rank = max(len(shape) for shape in shapes)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(max(sizes) for sizes in zip(*padded, strict=True))


def _kernel(operator: CpuOp, flops: int) -> KernelSizes:
    """The class of kernels of a product or an attention, and its sizes."""
    name, tensors = operator.bare_name, _tensors(operator)
    if name in ("mm", "addmm"):
        (left, _), (right, _) = tensors[-2:]
        return product_kernel((*left[:-1], right[-1]), right, flops)
    if name in _ATTENTION:
        (batch, heads, queries, width), (_, kv_heads, keys, _) = tensors[0][0], tensors[1][0]
        causal = "True" in operator.concrete
        # without a mask each query sees all keys: as many as the mean of a causal one has with half of its queries before
        before = keys - queries if causal else keys - (queries + 1) // 2
        return ("context_attention", (batch, queries, before, heads, kv_heads, width, NO_WINDOW)) if before >= 0 else UNKNOWN
    return UNKNOWN


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


_ATTENTION = tuple(f"_scaled_dot_product_{name}_attention" for name in ("flash", "efficient", "cudnn"))
_PRODUCTS: Mapping[str, Callable[[Any, Output], tuple[int, int] | None]] = {
    **dict.fromkeys(("mm", "addmm", "bmm", "baddbmm"), _product),
    **dict.fromkeys(("cudnn_convolution", "miopen_convolution", "_convolution", "convolution"), _convolution),
    **dict.fromkeys(("convolution_backward", "cudnn_convolution_backward", "miopen_convolution_backward"), _convolution_backward),
    **dict.fromkeys(_ATTENTION, _attention),
}
