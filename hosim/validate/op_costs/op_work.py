"""The works of a recording: its operators with their FLOP and bytes, and the times of their
kernels.

An operator whose kernels do different things is several works: a convolution and the change of its
tensors' layout, and the two gradients of a convolution. Two properties come from the kernels' names
instead of shapes: the use of tensor cores in single precision (tf32), and elementwise kernels that
compute an index for each element instead of running over contiguous memory (kinds that end in
``_strided``). Products in 16 bits whose rows do not begin at multiples of 16 bytes use other
kernels, about half as fast (``matmul_unaligned``).

Kernels that were launched before the recording have the work of those at its end, if these are the
same ones. Other kernels without an operator have the work of those with the same name, grid and
block, if all of these have the same work.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from hosim.analysis.costmodel.kernels import UNKNOWN, KernelSizes
from hosim.graph import Graph, Op
from hosim.io.importers.recordings import CpuOp, DeviceOp, KinetoTrace, ended_before, program_order
from hosim.io.importers.torch_programs import DTYPES
from hosim.io.models import ITEM_BYTES
from hosim.validate.op_costs.operator_counts import (
    Output,
    bytes_of,
    convolution_outputs,
    flops_and_bytes,
    kernel_of,
    kind_of_operator,
    tensors_of,
)

_TF32 = re.compile(r"tf32|s1688|s16816gemm_f32|tensorop_s\d+gemm")
_GRADIENTS = (
    ("convolution_dgrad", re.compile(r"dgrad|bwd_data|backward_data|BwdData")),
    ("convolution_wgrad", re.compile(r"wgrad|bwd_filter|backward_filter|bwd_weight|BwdWeight|WrW")),
)
_TO_CHANNELS_LAST, _FROM_CHANNELS_LAST = re.compile(r"nchwToNhwc"), re.compile(r"nhwcToNchw")
_OPAQUE = re.compile(r"OpaqueType<(\d+)")
_OF_ITEMS = {1: "uint8", 2: "bf16", 4: "fp32", 8: "int64"}


@dataclass(frozen=True, slots=True)
class OpWork:
    """An operator, or one of its works: FLOP, bytes read and written, and the total nanoseconds of
    its kernels.

    ``kernel`` and ``sizes`` are its class of kernels in the cost model, if it has one; ``ops`` are
    the positions of its kernels in the trace.
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
    """The works of a recording's operators, and the number and the nanoseconds of all other
    kernels.

    ``left_out`` are the positions of these kernels.
    """

    works: tuple[OpWork, ...]
    kernels_left_out: int
    time_left_out_ns: int
    left_out: tuple[int, ...] = field(default=(), compare=False)


def work_of(trace: KinetoTrace) -> Counted:
    """Return the work of every operator that launched kernels, if it is known."""
    outputs = convolution_outputs(trace.cpu_ops)
    launched: defaultdict[int, list[int]] = defaultdict(list)
    left: list[int] = []
    known: dict[int, tuple[int, int] | None] = {}
    for i, op in enumerate(trace.ops):
        if op.kind == "copy":
            continue
        for at in trace.operators_around(trace.operator_at(op)):
            if at not in known:
                known[at] = flops_and_bytes(trace.cpu_ops[at], outputs)
            if known[at] is not None:
                launched[at].append(i)
                break
        else:
            left.append(i)
    works: list[OpWork] = []
    for at, places in sorted(launched.items()):
        operator, found = trace.cpu_ops[at], known[at]
        assert found is not None
        works += _works(operator, found, [(i, trace.ops[i]) for i in places], outputs)
    works += _of_iteration_before(trace, works)
    placed = {i for work in works for i in work.ops}
    alike, left = _alike(
        trace, works, [i for i in left if trace.ops[i].kind == "kernel" and i not in placed]
    )
    return Counted(
        (*works, *alike), len(left), sum(trace.ops[i].duration_ns for i in left), tuple(left)
    )


def graph_of(works: Sequence[OpWork]) -> Graph:
    """Return works as a workload of successive ops, which the cost model times."""
    ops = [
        Op(
            f"op{i}",
            work.kind,
            flops=work.flops,
            bytes_accessed=work.bytes_accessed,
            dtype=work.dtype,
            kernel=work.kernel,
            sizes=work.sizes,
        )
        for i, work in enumerate(works)
    ]
    return Graph("works", (), tuple(ops))


def _of_iteration_before(trace: KinetoTrace, works: Sequence[OpWork]) -> list[OpWork]:
    """Return the works of ops launched before the recording, if these end an iteration like the
    recording's last one.
    """
    if all(op.call is not None for op in trace.ops):
        return []
    order = program_order(trace).order
    count = ended_before(trace, order)
    earlier = dict(zip(order[len(order) - count :], order[:count], strict=True))
    again = [
        (work, [earlier[i] for i in work.ops])
        for work in works
        if all(i in earlier for i in work.ops)
    ]
    return [
        replace(work, time_ns=sum(trace.ops[i].duration_ns for i in ops), ops=tuple(ops))
        for work, ops in again
    ]


def _works(
    operator: CpuOp, found: tuple[int, int], launched: list[tuple[int, DeviceOp]], outputs: Output
) -> Iterator[OpWork]:
    """Yield the works of an operator with these FLOP and bytes, and with these kernels."""
    name, (flops, size) = operator.bare_name, found
    if "convolution" not in name:
        kernel = kernel_of(operator, flops)
        kind = kind_of_operator(name)
        if (
            kernel[0] == "gemm"
            and _dtype(operator, ()) in ("bf16", "fp16")
            and any(n % _ALIGNED for n in kernel[1][1:])
        ):
            kind, kernel = UNALIGNED, UNKNOWN
        names = [op.name for _, op in launched if op.kind == "kernel"]
        if not tensors_of(operator):
            size = size // ITEM_BYTES["fp32"] * ITEM_BYTES[_dtype(operator, names)]
        if (
            kind in _STREAMING
            and names
            and all("elementwise_kernel" in n and "vectorized_elementwise" not in n for n in names)
        ):
            kind += STRIDED
        yield _work(kind, operator, flops, size, launched, kernel)
        return
    layouts = [
        part
        for part in launched
        if _TO_CHANNELS_LAST.search(part[1].name) or _FROM_CHANNELS_LAST.search(part[1].name)
    ]
    if layouts and len(layouts) < len(launched):
        yield _work("layout", operator, 0, _relaid(operator, layouts, outputs), layouts, UNKNOWN)
        launched = [part for part in launched if part not in layouts]
    if "backward" not in name:
        yield _work(kind_of_operator(name), operator, flops, size, launched, UNKNOWN)
        return
    parts = [
        (kind, [part for part in launched if pattern.search(part[1].name)])
        for kind, pattern in _GRADIENTS
    ]
    parts = [(kind, part) for kind, part in parts if part]
    if not parts:  # the wanted gradients are not recorded, nor do the kernels show them
        yield _work(
            kind_of_operator(name), operator, len(_GRADIENTS) * flops, size, launched, UNKNOWN
        )
        return
    others = [part for part in launched if not any(part in kernels for _, kernels in parts)]
    for i, (kind, kernels) in enumerate(parts):
        yield _work(
            kind, operator, flops, size // 2, [*kernels, *(others if not i else ())], UNKNOWN
        )


def _work(
    kind: str,
    operator: CpuOp,
    flops: int,
    size: int,
    launched: Sequence[tuple[int, DeviceOp]],
    kernel: KernelSizes,
) -> OpWork:
    dtype = _dtype(operator, [op.name for _, op in launched])
    if dtype == "fp32" and flops and any(_TF32.search(op.name) for _, op in launched):
        dtype = "tf32"
    time = sum(op.duration_ns for _, op in launched)
    return OpWork(kind, dtype, flops, size, time, *kernel, tuple(i for i, _ in launched))


def _alike(
    trace: KinetoTrace, works: Sequence[OpWork], left: Sequence[int]
) -> tuple[list[OpWork], list[int]]:
    """Return the works of those ops in ``left`` that have no operator but are launched like an op
    with a known work, and the other ops in ``left``.
    """
    same: dict[Any, OpWork | None] = {}
    for work in works:
        if len(work.ops) == 1:
            key = _launched_as(trace.ops[work.ops[0]])
            before = same.get(key, work)
            same[key] = (
                work
                if before is not None and replace(before, time_ns=work.time_ns) == work
                else None
            )
    found, rest = [], []
    for i in left:
        op = trace.ops[i]
        known = same.get(_launched_as(op)) if op.grid and trace.operator_at(op) is None else None
        if known is None:
            rest.append(i)
        else:
            found.append(replace(known, time_ns=op.duration_ns, ops=(i,)))
    return found, rest


def _launched_as(op: DeviceOp) -> tuple[object, ...]:
    return op.name, op.grid, op.block


STRIDED, UNALIGNED = "_strided", "matmul_unaligned"
_ALIGNED = 8
"""Elements of 16 bits in 16 bytes."""
_STREAMING = ("elementwise", "copy")


def _dtype(operator: CpuOp, kernels: Sequence[str]) -> str:
    found = next(
        (DTYPES[name] for name in operator.dtypes if isinstance(name, str) and name in DTYPES), None
    )
    if found is None:  # the type of lists of tensors is not recorded
        items = next((int(match[1]) for name in kernels if (match := _OPAQUE.search(name))), 0)
        named = next(
            (
                dtype
                for part, dtype in (("BFloat16", "bf16"), ("Half", "fp16"))
                if any(part in name for name in kernels)
            ),
            "fp32",
        )
        found = _OF_ITEMS.get(items, named)
    return found


def _relaid(operator: CpuOp, layouts: Sequence[tuple[int, DeviceOp]], outputs: Output) -> int:
    """The bytes read and written by these layout changes of a convolution's tensors."""
    tensors = tensors_of(operator)
    to = sum(bool(_TO_CHANNELS_LAST.search(op.name)) for _, op in layouts)
    back = len(layouts) - to
    sizes = [bytes_of([tensor]) for tensor in tensors[:3]]
    if (
        "backward" in operator.name
    ):  # gradient, input and weight, in any order: the gradient is read twice
        gradient, taken, weight = (*sizes, 0, 0, 0)[:3]
        return 2 * ((2 * gradient + taken + weight) * to // 4 + (taken + weight) * back // 2)
    made = outputs.get((tensors[0][0], tensors[1][0]), ())
    return 2 * (sum(sizes[: min(to, 2)]) + (prod(made) * tensors[0][1] if back else 0))
