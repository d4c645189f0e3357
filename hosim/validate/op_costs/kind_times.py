"""Efficiencies of kinds of ops that a recording does not cover: those of similar kinds, or else
assumed ones.

A kind that only moves bytes is as efficient in one dtype as in another, and contiguous elementwise
ops, copies and fills are alike. Ops that compute an index for each element (kinds that end in
``_strided``) are bound by that: they process about as many elements per second in any dtype. Kinds
that no available recording covers have an assumed efficiency with a wide spread.

A *spread* is the standard deviation of the logarithm of measured over predicted time, as in
:mod:`hosim.analysis.costmodel.spreads.time_spread`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from hosim.hardware import Hardware
from hosim.io.models import ITEM_BYTES
from hosim.validate.op_costs.op_fit import Efficiency
from hosim.validate.op_costs.op_work import STRIDED, UNALIGNED
from hosim.validate.op_costs.operator_counts import POINTWISE_GRADIENTS

Level = Literal["fitted", "alike", "assumed"]
"""The source of an efficiency: ops of this kind and dtype, similar ones, or none."""


@dataclass(frozen=True, slots=True)
class KindEfficiency:
    """The efficiency of a kind in a dtype, its source, and the spread of times."""

    value: float
    level: Level
    spread: float


ASSUMED: Mapping[str, tuple[float, float]] = {
    **dict.fromkeys(("elementwise", "copy", "fill", *sorted(POINTWISE_GRADIENTS)), (0.9, 0.2)),
    **dict.fromkeys((f"elementwise{STRIDED}", f"copy{STRIDED}"), (0.5, 0.4)),
    "layout": (0.85, 0.2),
    "reduction": (0.8, 0.5),
    "norm": (0.5, 0.5),
    "softmax": (0.6, 0.5),
    "pool": (0.7, 0.3),
    "max_pool2d_with_indices_backward": (0.25, 0.4),
    "batch_norm_backward": (0.45, 0.4),
    "native_layer_norm_backward": (0.4, 0.5),
    "embedding": (0.3, 0.5),
    "gather": (0.3, 0.5),
    "random": (0.7, 0.4),
    "matmul": (0.65, 0.4),
    UNALIGNED: (0.33, 0.4),
    "convolution": (0.65, 0.4),
    "convolution_dgrad": (0.6, 0.4),
    "convolution_wgrad": (0.4, 0.4),
    "convolution_backward": (0.5, 0.5),
    "attention": (0.2, 0.7),
}
"""The efficiency of each kind and its spread: about the middle of the values that eager PyTorch
reached in recordings of five GPUs.
"""

_OTHER = (0.4, 0.8)
_STREAMS = ("elementwise", "copy", "fill", *sorted(POINTWISE_GRADIENTS))
_COMPUTING = (
    "matmul",
    UNALIGNED,
    "convolution",
    "convolution_dgrad",
    "convolution_wgrad",
    "convolution_backward",
    "attention",
)
_WRITTEN = ("fp32", "bf16", "fp16")
_ALIKE_SPREAD = 0.25
_LEAST_SPREAD = 0.1
_BEST = 0.95
_ELEMENTS_A_CYCLE = 1.1
"""The elements for which a multiprocessor computes an index in a cycle: 0.5 to 1.5 on the recorded
GPUs.
"""


def efficiency_of(
    kind: str, dtype: str, fitted: Sequence[Efficiency], base: Hardware
) -> KindEfficiency:
    """Return the efficiency of a kind in a dtype, given the fitted ones."""
    known = {(e.kind, e.dtype): e for e in fitted}
    own = known.get((kind, dtype))
    if own is not None:
        return KindEfficiency(own.written, "fitted", max(_LEAST_SPREAD, _residual(own)))
    twin = {"bf16": "fp16", "fp16": "bf16"}.get(dtype)
    alike = [known[kind, twin]] if twin and (kind, twin) in known else []
    if not alike and kind not in _COMPUTING and kind in ASSUMED:
        kinds = {kind}
        if kind in _STREAMS:
            kinds = set(_STREAMS)
        elif kind.endswith(STRIDED):
            kinds = {name + STRIDED for name in _STREAMS}
        alike = [e for e in fitted if e.kind in kinds and e.dtype in ITEM_BYTES]
    if alike:
        best = max(alike, key=lambda e: (e.kind == kind, e.time_ns))
        scale = (
            ITEM_BYTES[dtype] / ITEM_BYTES[best.dtype]
            if kind.endswith(STRIDED) and dtype in ITEM_BYTES
            else 1.0
        )
        return KindEfficiency(
            _rounded(min(_BEST, best.written * scale)), "alike", max(_ALIKE_SPREAD, _residual(best))
        )
    value, spread = ASSUMED.get(kind, _OTHER)
    figures = base.compute.processor
    if (
        kind.endswith(STRIDED) and figures is not None and dtype in ITEM_BYTES
    ):  # an element is read and written
        rate = (
            _ELEMENTS_A_CYCLE * figures.multiprocessors * figures.clock_hz * 2 * ITEM_BYTES[dtype]
        )
        value = min(ASSUMED["copy"][0], rate / base.device.bandwidth_bytes_per_s)
    return KindEfficiency(_rounded(value), "assumed", spread)


def written_kinds(
    fitted: Sequence[Efficiency], base: Hardware
) -> Mapping[tuple[str, str], KindEfficiency]:
    """Return, by kind and dtype, the efficiencies of a calibrated profile beyond the fitted ones;
    the base's own are kept.
    """
    kept = {(kind, dtype) for kind, of in base.compute.efficiency_of.items() for dtype in of}
    dtypes = dict.fromkeys((*_WRITTEN, *(e.dtype for e in fitted if e.dtype in ITEM_BYTES)))
    wanted = [(kind, dtype) for kind in ASSUMED for dtype in dtypes] + [
        (kind, "tf32") for kind in _COMPUTING
    ]
    known = {(e.kind, e.dtype) for e in fitted}
    return {key: efficiency_of(*key, fitted, base) for key in wanted if key not in kept | known}


def _residual(efficiency: Efficiency) -> float:
    """Return 1.5 times the median error of a fit, as a spread."""
    return min(1.0, 1.5 * (efficiency.residuals.median or 0.0))


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
