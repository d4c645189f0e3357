"""Recorded products and attention compared with the fitted kernels of their class: their relative
times, for the profile.

The constants of a class are fitted to kernels that ran repeatedly, and PyTorch's libraries are not
those of the tables. A recorded kernel also takes the time of the shortest recorded ops. The rest of
the difference is split into a further fixed time, which shows in small sizes, and a factor for all
times of the class, which shows in large ones. A few sizes say little of others, so both are drawn
towards their values without a recording: a fixed time of 0.7 us for products, as small ones took in
a recording of an A100, else 0, and a factor of 1.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import median
from typing import Any

from hosim.analysis.costmodel.kernels import (
    CLASSES,
    LABELS,
    constants_for,
    kernel_us,
    processor_for,
)
from hosim.hardware import Hardware
from hosim.validate.op_costs.op_work import OpWork

SCALED = ("gemm", "context_attention")
_SIZE_SPREAD = 0.15
"""The relative error of one size, ..."""
_FACTOR_SPREAD = 0.15
"""... the deviation of the factor from 1, ..."""
_FIXED_US = {"gemm": 0.7}
_FIXED_SPREAD_US = 1.0
"""... and that of the fixed time from :data:`_FIXED_US`, as priors for the fit."""
_ROUNDS = 20
_SPREAD = 0.25
"""The spread of the times of a class without a recording; with many recorded sizes, it is half of
this.
"""


@dataclass(frozen=True, slots=True)
class KernelScale:
    """The factor of a class in one dtype (:data:`hosim.analysis.costmodel.kernels.classes.LABELS`),
    fitted to ``sizes`` sizes, and its spread.

    ``fixed_ns`` is the least time of a kernel of the class.
    """

    kernel: str
    dtype: str
    factor: float
    fixed_ns: int
    sizes: int
    spread: float

    def to_dict(self) -> dict[str, Any]:
        """Return the scale as in the JSON report."""
        return {
            "kernel": self.kernel,
            "dtype": self.dtype,
            "factor": self.factor,
            "fixed_ns": self.fixed_ns,
            "sizes": self.sizes,
        }


def scale_kernels(
    works: Sequence[OpWork], base: Hardware, fixed_ns: int
) -> tuple[KernelScale, ...]:
    """Return the factor and the fixed time of each class for which ``base`` has constants; empty if
    it has no processor.
    """
    if base.compute.processor is None:
        return ()
    times: defaultdict[tuple[str, str], defaultdict[tuple[int, ...], list[int]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for work in works:
        if work.kernel in SCALED and work.dtype in LABELS and work.time_ns > 0:
            times[work.kernel, LABELS[work.dtype]][work.sizes].append(work.time_ns)
    found = []
    for kernel in SCALED:
        by_size = times[kernel, "fp16"]
        if constants_for(base, kernel, "fp16") is None:
            continue
        modelled = (
            kernel_us(base, kernel, "fp16", "uniform", list(by_size)) if by_size else None
        ) or []
        own = _own_fixed_us(kernel, base)
        pairs = [
            (us - own, (median(ns) - fixed_ns) / 1000)
            for ns, (us, _) in zip(by_size.values(), modelled, strict=True)
            if us > own
        ]
        further, factor = _fitted(pairs, _FIXED_US.get(kernel, 0.0))
        found.append(
            KernelScale(
                kernel,
                "fp16",
                float(f"{factor:.4g}"),
                fixed_ns + round(1000 * further),
                len(pairs),
                max(_SPREAD / 2, _SPREAD / sqrt(1 + len(pairs))),
            )
        )
    return tuple(found)


def _own_fixed_us(kernel: str, base: Hardware) -> float:
    """The fixed time in a class's constants that a recorded kernel does not have: that of the
    kernel for rotary positions before attention.
    """
    if kernel != "context_attention":
        return 0.0
    return (
        float(constants_for(base, kernel, "fp16").fixed_cycles)
        * processor_for(base, "fp16").cycle_us
    )


def _fitted(pairs: Sequence[tuple[float, float]], fixed_us: float) -> tuple[float, float]:
    """Return the fixed microseconds and the factor with which modelled times come closest to the
    recorded ones; outliers have little weight.
    """
    import numpy as np

    prior = (
        np.array([[1 / _FIXED_SPREAD_US, 0.0], [0.0, 1 / _FACTOR_SPREAD]]),
        np.array([fixed_us / _FIXED_SPREAD_US, 1 / _FACTOR_SPREAD]),
    )
    if not pairs:
        return fixed_us, 1.0
    modelled, recorded = np.array(pairs).T
    scale = _SIZE_SPREAD * np.maximum(recorded, modelled / 4)
    rows, wanted = (
        np.stack([np.ones_like(modelled), modelled], axis=1) / scale[:, None],
        recorded / scale,
    )
    weight = np.ones_like(wanted)
    found = np.array([0.0, 1.0])
    for _ in range(_ROUNDS):
        a = np.concatenate([rows * np.sqrt(weight)[:, None], prior[0]])
        found = np.linalg.lstsq(
            a, np.concatenate([wanted * np.sqrt(weight), prior[1]]), rcond=None
        )[0]
        weight = 1 / np.sqrt(1 + (rows @ found - wanted) ** 2)
    return max(0.0, float(found[0])), min(5.0, max(0.2, float(found[1])))


_LONGER = {"fixed_cycles", "tile_cycles", "sum_cycles", "block_cycles"}
_FASTER = {"bandwidth_share", "largest_share", "cache_ratio", "peak_share", "move_share"}


def scaled_constants(scale: KernelScale, base: Hardware) -> Mapping[str, float]:
    """Return the constants with which all times of a class are multiplied by ``factor`` and
    increased by ``fixed_ns``.
    """
    constants = constants_for(base, scale.kernel, scale.dtype)
    values = {
        name: float(getattr(constants, name)) for name in CLASSES[scale.kernel].constant_names
    }
    if scale.kernel == "context_attention":
        values["fixed_cycles"] = 0.0
    for name in values:
        if name in _LONGER:
            values[name] *= scale.factor
        elif name in _FASTER:
            values[name] /= scale.factor
    values["fixed_cycles"] += scale.fixed_ns / 1000 / processor_for(base, scale.dtype).cycle_us
    return {name: float(f"{value:.6g}") for name, value in values.items()}
