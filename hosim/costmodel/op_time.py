"""How long each op takes: its measured duration, or a roofline of compute and device memory.

The roofline (Williams, Waterman and Patterson, CACM 52(4), 2009): an op is bound by its FLOP at the peak of its dtype or
by its bytes at the bandwidth of the device tier, whichever takes longer; ``efficiency`` is the fraction of both that kernels
reach (``efficiency_of`` that of some kinds and dtypes), ``launch_ns`` comes on top. All of it in exact integers, so that a
duration does not depend on the machine that computed it.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from hosim.errors import HardwareError
from hosim.graph import Graph, Op
from hosim.hardware import Hardware
from hosim.units import LARGEST

WIDER_DTYPES: Mapping[str, tuple[str, ...]] = {
    "fp4": ("fp8", "fp16", "bf16", "tf32", "fp32", "fp64"),
    "fp8": ("fp16", "bf16", "tf32", "fp32", "fp64"),
    "fp16": ("bf16", "tf32", "fp32", "fp64"),
    "bf16": ("fp16", "tf32", "fp32", "fp64"),
    "tf32": ("fp32", "fp64"),
    "fp32": ("fp64",),
    "int4": ("int8", "fp8", "fp16", "bf16", "fp32", "fp64"),
    "int8": ("fp16", "bf16", "fp32", "fp64"),
    "uint8": ("int8", "fp16", "bf16", "fp32", "fp64"),
    "bool": ("int8", "fp16", "bf16", "fp32", "fp64"),
    "int16": ("fp32", "fp64"),
    "int32": ("fp32", "fp64"),
    "int64": ("fp64", "fp32"),
}
"""Where a profile lists no peak for a dtype: the dtypes whose peak is taken instead, the first one listed.

Data of a narrow dtype computes in a wider unit; ``fp16`` and ``bf16`` stand in for each other, as tensor cores run both at one
rate. Integers that no matrix unit takes run beside the floating-point ones.
"""

_NS_PER_S = 10**9


def op_durations(graph: Graph, hardware: Hardware) -> tuple[int, ...]:
    """Nanoseconds that each op holds its stream, by op position.

    ``duration_ns`` where the op has it; else ``launch_ns + max(flops / (peak * efficiency), bytes_accessed / (bandwidth *
    efficiency))``, the maximum rounded up to a whole nanosecond, with the peak of the op's dtype (see :data:`WIDER_DTYPES`)
    and the bandwidth of the device tier. Raises :class:`HardwareError` for an op with FLOP in a dtype for which
    the profile has no peak, and for one that would take more than 2^63-1 ns.
    """
    bandwidth = hardware.device.bandwidth_bytes_per_s
    launch = hardware.compute.launch_ns
    peaks: dict[str, int] = {}
    efficiencies: dict[tuple[str, str], Fraction] = {}
    durations: list[int] = []
    for op in graph.ops:
        if op.duration_ns is not None:
            durations.append(op.duration_ns)
            continue
        which = op.kind, op.dtype
        if which not in efficiencies:
            efficiencies[which] = hardware.compute.efficiency_for(*which)
        scale, share = _NS_PER_S * efficiencies[which].denominator, efficiencies[which].numerator
        busy = -(-op.bytes_accessed * scale // (bandwidth * share))
        if op.flops:
            if op.dtype not in peaks:
                peaks[op.dtype] = _peak(op, hardware)
            busy = max(busy, -(-op.flops * scale // (peaks[op.dtype] * share)))
        if busy > LARGEST:
            raise HardwareError(
                f"op {op.name!r} would take more than 2^63-1 ns (292 years) at an efficiency of {float(efficiencies[which]):g}",
                where="compute",
            )
        durations.append(launch + busy)
    return tuple(durations)


def _peak(op: Op, hardware: Hardware) -> int:
    """FLOP per second of ``hardware`` for the dtype of ``op``, or for the first wider one that the profile lists."""
    peaks = hardware.compute.peak_flops
    for dtype in (op.dtype, *WIDER_DTYPES.get(op.dtype, ())):
        if dtype in peaks:
            return peaks[dtype]
    known = ", ".join(sorted(peaks)) or "none"
    raise HardwareError(
        f"op {op.name!r} computes in {op.dtype!r}, for which {hardware.name!r} has no peak (it has: {known}); "
        "add the dtype to the profile, or give the op a duration_ns",
        where="compute.peak",
    )
