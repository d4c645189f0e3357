"""The constants of a machine's kernels: its profile's own, or those of the measured machine most
like it.
"""

from collections.abc import Mapping
from typing import Any

from hosim.analysis.costmodel.kernels.classes import CLASSES, DTYPES, LABELS
from hosim.analysis.costmodel.kernels.fitted_constants import FITTED
from hosim.analysis.costmodel.kernels.op_families import FLASH
from hosim.errors import HardwareError
from hosim.hardware import Hardware

Constants = Mapping[str, Mapping[str, Mapping[str, float]]]
"""By class, dtype and name."""

CONSTANTS_OF = {
    "expert_product": "moe",
    "context_gradient": "context_attention",
    "full_attention": "context_attention",
    "full_gradient": "context_attention",
    **{
        f"{library}_{pass_}": "context_attention"
        for library in FLASH
        for pass_ in ("attention", "gradient")
    },
}
"""Classes that have another one's constants: nobody measures them alone."""


def check_constants(kernels: Constants) -> None:
    """Raise :class:`HardwareError` for a class, a dtype or a constant that there is not, and for
    one that is missing.
    """
    for kernel, dtypes in kernels.items():
        where = f"compute.kernels.{kernel}"
        if kernel not in CLASSES or kernel in CONSTANTS_OF:
            known = ", ".join(name for name in CLASSES if name not in CONSTANTS_OF)
            raise HardwareError(f"unknown class of kernels; expected one of {known}", where=where)
        names = CLASSES[kernel].constant_names
        for dtype, values in dtypes.items():
            if dtype not in DTYPES:
                raise HardwareError(
                    f"unknown dtype; expected one of {', '.join(DTYPES)}", where=f"{where}.{dtype}"
                )
            missing, beyond = (
                [name for name in names if name not in values],
                [name for name in values if name not in names],
            )
            if missing or beyond:
                what = (
                    f"expected the constant {missing[0]!r} too"
                    if missing
                    else f"unknown constant {beyond[0]!r}"
                )
                raise HardwareError(
                    f"{what}; {kernel} has {', '.join(names)}", where=f"{where}.{dtype}"
                )


def constants_for(hardware: Hardware, kernel: str, dtype: str) -> Any:
    """The constants of a class in a dtype (16 bits if that has none), or ``None`` if neither the
    profile nor any machine has them. A runtime may say what its own mixtures take beside products.
    """
    found: Mapping[str, float] | None = None
    for kernels in (hardware.compute.kernels, FITTED[most_like(hardware)]):
        dtypes = kernels.get(CONSTANTS_OF.get(kernel, kernel), {})
        found = found or dtypes.get(dtype) or dtypes.get("fp16")
    runtime, processor = hardware.software, hardware.compute.processor
    if found and kernel == "moe" and runtime and processor and runtime.mixture.value:
        found = {**found, "fixed_cycles": runtime.mixture.value * processor.clock_hz / 1e9}
    return CLASSES[kernel].constants_from(found) if found else None


def has_own_constants(hardware: Hardware, kernel: str, dtype: str) -> bool:
    """Return whether the constants that a class has in an op's dtype were fitted to this machine.

    Either the profile has them, or its processor is one of those that were measured.
    """
    label = LABELS.get(dtype, "fp16")
    if kernel in CONSTANTS_OF:
        return False
    if kernel in hardware.compute.kernels:
        return label in hardware.compute.kernels[kernel]
    figures, machine = hardware.compute.processor, most_like(hardware)
    assert figures is not None
    multiprocessors, clock_hz = _PROCESSORS[machine]
    same = (
        figures.multiprocessors == multiprocessors
        and abs(figures.clock_hz / clock_hz - 1) <= _SAME_CLOCK
    )
    return same and label in FITTED[machine].get(kernel, {})


def most_like(hardware: Hardware) -> str:
    """The measured machine whose multiprocessors do as much in a cycle as those of this one, as
    nearly as any: its generation.
    """
    each = _flop_in_a_cycle(hardware)
    return min(sorted(_EACH), key=lambda name: max(each / _EACH[name], _EACH[name] / each))


def _flop_in_a_cycle(hardware: Hardware) -> float:
    """FLOP of a multiprocessor in a cycle, 16 bits, dense."""
    figures, peaks = hardware.compute.processor, hardware.compute.peak_flops
    assert figures is not None
    peak = next(
        (peaks[dtype] for dtype in ("fp16", "bf16") if dtype in peaks),
        max(peaks.values(), default=1),
    )
    return peak / figures.multiprocessors / figures.clock_hz


def fed_better(hardware: Hardware) -> float:
    """The FLOP of a multiprocessor in a cycle on the measured machine most like this one, as a
    multiple of those here; 1 where it does no more.
    """
    return max(1.0, _EACH[most_like(hardware)] / _flop_in_a_cycle(hardware))


def withheld(hardware: Hardware) -> float:
    """Half the FLOP of its products in int8, which no vendor slows down, as a multiple of those in
    16 bits: 2 on GeForce cards, 1 on others.
    """
    peaks = hardware.compute.peak_flops
    half = peaks.get("int8", 0) / 2
    return max([1.0, *[round(half / peaks[name]) for name in ("fp16", "bf16") if name in peaks]])


def asked_less(hardware: Hardware) -> float:
    """Return the bytes of memory that a multiprocessor has in a cycle, relative to the measured
    machine most like this one; 1 where it has no fewer.
    """
    figures, machine = hardware.compute.processor, most_like(hardware)
    assert figures is not None
    multiprocessors, clock_hz = _PROCESSORS[machine]
    here = hardware.device.bandwidth_bytes_per_s / figures.multiprocessors / figures.clock_hz
    return min(1.0, here / (_BANDWIDTHS[machine] / multiprocessors / clock_hz))


_PROCESSORS = {"a100_sxm": (108, 1.41e9), "h100_sxm": (132, 1.83e9)}
"""Multiprocessors, and the clock of the stated peaks."""
_BANDWIDTHS = {"a100_sxm": 2.039e12, "h100_sxm": 3.35e12}
"""Bytes a second of their memories."""
_SAME_CLOCK = 0.1
"""By so much may the clocks of one processor's profiles differ: vendors state several."""

_EACH = {"a100_sxm": 2048.0, "h100_sxm": 4096.0}
"""FLOP of one multiprocessor in a cycle, 16 bits, dense."""
