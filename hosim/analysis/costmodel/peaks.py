"""The peak of a dtype, or of the dtype that stands in for it where a profile does not list it."""

from collections.abc import Mapping
from fractions import Fraction

from hosim.hardware import Compute, Hardware

SIXTEEN_BITS = ("int8_weights", "int4_weights", "fp16_fp8_cache", "fp16_int4_cache")
"""Dtypes of ops that compute in 16 bits, though one of their operands has fewer."""

WIDER_DTYPES: Mapping[str, tuple[str, ...]] = {
    "fp4": ("fp8", "fp16", "bf16", "tf32", "fp32", "fp64"),
    "fp8": ("fp16", "bf16", "tf32", "fp32", "fp64"),
    "fp8_block": ("fp8", "fp16", "bf16", "tf32", "fp32", "fp64"),
    **dict.fromkeys(SIXTEEN_BITS, ("fp16", "bf16", "tf32", "fp32", "fp64")),
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
"""Where a profile lists no peak for a dtype: the dtypes whose peak is taken instead, the first one
listed.

Data of a narrow dtype computes in a wider unit; ``fp16`` and ``bf16`` stand in for each other, as
tensor cores run both at one rate. Integers that no matrix unit takes run beside the floating-point
ones.
"""


def peak_for(hardware: Hardware, dtype: str) -> int | None:
    """FLOP per second of ``hardware`` for a dtype, or for the first wider one that the profile
    lists; ``None`` if it lists none of them.

    At the clock that the processor sustains, if the profile says that this is a lower one.
    """
    peak = peak_listed(hardware.compute.peak_flops, dtype)
    processor = hardware.compute.processor
    if peak is None or processor is None or not processor.sustained_hz:
        return peak
    return max(1, peak * processor.sustained_hz // processor.clock_hz)


def best_for(hardware: Hardware, dtype: str) -> int | None:
    """FLOP per second of the fastest product that was measured in this dtype or in its 16-bit twin;
    ``None`` where the profile has none.
    """
    processor = hardware.compute.processor
    best = processor.best_flops if processor is not None else {}
    twins = ("fp16", "bf16") if dtype in (*SIXTEEN_BITS, "fp16", "bf16") else (dtype,)
    return max([best[name] for name in twins if name in best], default=None)


def efficiency_for(compute: Compute, kind: str, dtype: str) -> Fraction:
    """The fraction of its peak, and of the bandwidth, that an op reaches: of one that computes in
    16 bits, that of such ops.
    """
    if dtype in SIXTEEN_BITS:
        dtype = next(
            (name for name in ("bf16", "fp16") if name in compute.efficiency_of.get(kind, {})),
            dtype,
        )
    return compute.efficiency_for(kind, dtype)


def peak_listed(peaks: Mapping[str, int], dtype: str) -> int | None:
    """The peak listed for a dtype, or for the first wider one that is listed; ``None`` if none of
    them is.
    """
    return next(
        (peaks[name] for name in (dtype, *WIDER_DTYPES.get(dtype, ())) if name in peaks), None
    )
