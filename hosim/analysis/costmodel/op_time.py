"""The time of each op and its source: measured, a table of measured times, a model fitted to such
times, or a guess.

The guess is a roofline of compute and device memory, for ops that do not say which kernel they are,
and on profiles without a processor.

The roofline (Williams, Waterman and Patterson, CACM 52(4), 2009): an op is bound by its FLOP at the
peak of its dtype or by its bytes at the bandwidth of the device tier, whichever takes longer;
``efficiency`` is the fraction of both that kernels reach (``efficiency_of`` that of some kinds and
dtypes), ``launch_ns`` comes on top. All of it in exact integers, so that a duration does not depend
on the machine that computed it. Kernels are timed by :mod:`hosim.analysis.costmodel.kernels.op_kernels`.
"""

from collections.abc import Mapping
from fractions import Fraction
from math import ceil

from hosim.analysis.costmodel.origins import GUESS, MEASURED
from hosim.analysis.costmodel.peaks import efficiency_for, peak_for, peak_listed
from hosim.analysis.costmodel.runtime_times import durations_under
from hosim.analysis.costmodel.transfers import (
    NS_PER_S,
    bytes_per_s_over_links,
    sent_bytes,
    transfer_ns,
)
from hosim.errors import HardwareError
from hosim.graph import Graph, Op
from hosim.hardware import Compute, Hardware
from hosim.processors import compute_of
from hosim.units import LARGEST

_WIDE = ("fp32", "fp64")
"""Dtypes in which no kernel of attention was measured."""


def op_durations(graph: Graph, hardware: Hardware) -> tuple[int, ...]:
    """Nanoseconds that each op holds its stream, by op position.

    ``duration_ns`` where the op has it; what its kernel takes, if it says which one it is and the
    profile has a processor; else ``launch_ns + max(flops / (peak * efficiency), bytes_accessed /
    (bandwidth * efficiency))``, the maximum rounded up to a whole nanosecond, with the peak of the
    op's dtype (see :data:`hosim.analysis.costmodel.peaks.WIDER_DTYPES`) and the bandwidth of the device
    tier. A collective takes at least what its bytes take over the fabrics that it crosses
    (docs/contract.md, rule 19). Under a runtime ops on the device take what
    :mod:`hosim.analysis.costmodel.runtime_times` says. For an op that runs on another processor these are
    one device's part of the processor and of its tier (docs/contract.md, rule 20). Raises
    :class:`HardwareError` for an op with FLOP in a dtype for which the profile has no peak. They are
    kept with the graph.
    """
    return graph.derived_on(hardware, _durations)


def _durations(graph: Graph, hardware: Hardware) -> tuple[int, ...]:
    ops, kernels = graph.ops, kernel_times_of(graph, hardware)
    by_code = {ops.codes[i]: ns for i, (ns, _) in kernels.items()}
    guessed = set[int]()
    for code, op in enumerate(ops.alike):  # all that are alike take the same
        if op.duration_ns is not None:
            by_code[code] = op.duration_ns
        elif code not in by_code and op.processor:
            by_code[code] = _elsewhere_ns(op, hardware)
        elif code not in by_code:
            by_code[code] = _launched_ns(op, _busy_ns(op, hardware), hardware)
            guessed.add(code)
    durations = [by_code[code] for code in ops.codes]
    sent, over_links = graph.derived_on(hardware, sent_bytes), bytes_per_s_over_links(hardware)
    for i, size in sent.items():
        if over_links is not None and ops.codes[i] in guessed:
            durations[i] = max(
                durations[i], _launched_ns(ops[i], transfer_ns(size, over_links), hardware)
            )
    return (
        tuple(durations)
        if hardware.software is None
        else durations_under(graph, hardware, hardware.software, durations)
    )


def _launched_ns(op: Op, busy: int, hardware: Hardware) -> int:
    """Nanoseconds of an op that is busy for so many, with its launch."""
    if busy > LARGEST:
        efficiency = efficiency_for(hardware.compute, op.kind, op.dtype)
        raise HardwareError(
            f"op {op.name!r} would take more than 2^63-1 ns (292 years) at an efficiency of "
            f"{float(efficiency):g}",
            where="compute",
        )
    return hardware.compute.launch_ns + busy


def _busy_ns(op: Op, hardware: Hardware) -> int:
    """Nanoseconds of an op on the device by the roofline, without its launch."""
    efficiency = efficiency_for(hardware.compute, op.kind, op.dtype)
    scale, share = NS_PER_S * efficiency.denominator, efficiency.numerator
    busy = -(-op.bytes_accessed * scale // (hardware.device.bandwidth_bytes_per_s * share))
    return (
        max(busy, -(-_computed(op) * scale // (_peak(op, hardware) * share))) if op.flops else busy
    )


def _computed(op: Op) -> int:
    """The FLOP of an op that a kernel computes.

    By custom those of causal attention count all keys for each query; a kernel leaves out what the
    mask hides. In other dtypes its time is measured, or guessed with all of them.
    """
    if op.kernel not in ("context_attention", "context_gradient") or op.dtype not in _WIDE:
        return op.flops
    _, queries, before, *_, window = op.sizes
    seen = min(before + queries, window)
    full = max(before + queries - window, 0)  # the last queries, whose window is full
    growing = max(queries - full, 0)
    hidden = growing * (2 * seen - 2 * before - growing - 1) // 2 if growing else 0
    return op.flops - op.flops * hidden // (queries * seen)


def _elsewhere_ns(op: Op, hardware: Hardware) -> int:
    """Nanoseconds of an op on the processor of another tier: the roofline of one device's part of
    that processor and that memory.
    """
    compute, tier = (
        compute_of(op, hardware.fair_share),
        hardware.fair_share.tiers[hardware.tier_index[op.processor]],
    )
    efficiency = efficiency_for(compute, op.kind, op.dtype)
    busy = ceil(Fraction(op.bytes_accessed * NS_PER_S, tier.bandwidth_bytes_per_s) / efficiency)
    if op.flops:
        peak = peak_listed(compute.peak_flops, op.dtype)
        if peak is None:
            raise _no_peak(
                op,
                f"tier {tier.name!r} of {hardware.name!r}",
                compute,
                f"tiers.{tier.name}.compute.peak",
            )
        busy = max(busy, ceil(Fraction(op.flops * NS_PER_S, peak) / efficiency))
    if busy > LARGEST:
        raise HardwareError(
            f"op {op.name!r} would take more than 2^63-1 ns (292 years) at an efficiency of "
            f"{float(efficiency):g}",
            where=f"tiers.{tier.name}.compute",
        )
    return compute.launch_ns + busy


def time_origins(graph: Graph, hardware: Hardware) -> tuple[str, ...]:
    """Return the origin of each op's time, one of :data:`hosim.analysis.costmodel.origins.ORIGINS`, by op
    position.
    """
    kernels = kernel_times_of(graph, hardware)
    return tuple(
        [
            MEASURED if op.duration_ns is not None else kernels[i][1] if i in kernels else GUESS
            for i, op in enumerate(graph.ops.each())
        ]
    )


def kernel_times_of(graph: Graph, hardware: Hardware) -> Mapping[int, tuple[int, str]]:
    """Nanoseconds and origin of the ops, by position, that are timed as kernels; kept with the
    graph.
    """
    if hardware.compute.processor is None or not any([op.kernel for op in graph.ops.alike]):
        return {}
    from hosim.analysis.costmodel.kernels import (
        kernel_times,
    )  # here, as numpy takes longer to import than most replays take

    return graph.derived_on(hardware, kernel_times)


def _peak(op: Op, hardware: Hardware) -> int:
    peak = peak_for(hardware, op.dtype)
    if peak is not None:
        return peak
    raise _no_peak(op, repr(hardware.name), hardware.compute, "compute.peak")


def _no_peak(op: Op, which: str, compute: Compute, where: str) -> HardwareError:
    known = ", ".join(sorted(compute.peak_flops)) or "none"
    return HardwareError(
        f"op {op.name!r} computes in {op.dtype!r}, for which {which} has no peak (it has: "
        f"{known}); "
        "add the dtype to the profile, or give the op a duration_ns",
        where=where,
    )
