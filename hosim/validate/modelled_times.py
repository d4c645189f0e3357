"""Op times of a recording by the cost model of a calibrated profile, beside the recorded ones.

A recorded op lasts from its first instruction to its last. The gap to the next op is not part of
it, although the profile's launch time includes that gap. The recorded times of the ops are not
used, only their operators and kernels.
"""

from dataclasses import asdict, dataclass, replace
from math import exp, sqrt
from typing import Any

from hosim.analysis.costmodel import kernel_times_of, op_durations, peak_for
from hosim.base.groups import summed
from hosim.hardware import Hardware
from hosim.io.importers.recordings import DeviceOp, KinetoTrace
from hosim.units import human_percent
from hosim.validate.calibration import Calibration
from hosim.validate.op_costs import OpWork, efficiency_of, graph_of, is_transfer, work_of

_NINE_IN_TEN = 1.645
_COMMON_SPREAD = 0.12
"""The share by which all ops of another model may be off together."""
MOST_UNKNOWN = 0.2
"""The largest share of the kernels that may be unpredicted if there is to be a total."""
_TOLD = 0.01
"""The least share of the predicted time for which a kind is named."""
MODEL_LEVELS = ("exact", "fitted", "alike", "assumed")
"""The sources of a predicted time: a recording of the same op, one of its class or kind, one of a
similar kind, or none.
"""


@dataclass(frozen=True, slots=True)
class ModelledWork:
    """A work, its predicted time in nanoseconds, the source of that time, and its spread."""

    work: OpWork
    predicted_ns: int
    level: str
    spread: float


@dataclass(frozen=True, slots=True)
class ModelledTotal:
    """The total of all predicted works in nanoseconds: measured, predicted, and the ends of the
    prediction's 90 % interval.
    """

    measured_ns: int
    predicted_ns: int
    low_ns: int
    high_ns: int

    @property
    def error(self) -> float | None:
        """The signed relative error."""
        return self.predicted_ns / self.measured_ns - 1 if self.measured_ns else None

    def to_dict(self) -> dict[str, Any]:
        """Return the total as in the JSON report."""
        return {**asdict(self), "error": self.error}


@dataclass(frozen=True)
class ModelledOps:
    """The works of a recording with predicted times."""

    works: tuple[ModelledWork, ...]

    @property
    def total(self) -> ModelledTotal:
        """The total of all works. Errors are independent between kinds, equal for ops of one kind,
        and partly common to all.
        """
        by_kind = summed(
            ((one.work.kind, one.work.dtype), one.predicted_ns * one.spread) for one in self.works
        )
        measured = sum(one.work.time_ns for one in self.works)
        predicted = sum(one.predicted_ns for one in self.works)
        relative = sqrt(
            sum(part**2 for part in by_kind.values()) / max(predicted, 1) ** 2 + _COMMON_SPREAD**2
        )
        low, high = (round(predicted * exp(sign * _NINE_IN_TEN * relative)) for sign in (-1, 1))
        return ModelledTotal(measured, predicted, low, high)

    @property
    def without_data(self) -> str | None:
        """Name the kinds that the learned recordings do not cover, with their shares of the
        predicted time; None if there are none.
        """
        total = max(1, sum(one.predicted_ns for one in self.works))
        assumed = [
            ((one.work.kind, one.work.dtype), one) for one in self.works if one.level == "assumed"
        ]
        shares = summed((key, one.predicted_ns) for key, one in assumed)
        spreads = {key: one.spread for key, one in assumed}
        listed = []
        for (kind, dtype), ns in sorted(shares.items(), key=lambda item: -item[1]):
            factor = exp(_NINE_IN_TEN * spreads[kind, dtype])
            if ns >= _TOLD * total:
                share = human_percent(ns / total, 0)
                listed.append(
                    f"{kind} {dtype} ({share} of the predicted time, {1 / factor:.2f} to "
                    f"{factor:.2f} times that)"
                )
        return f"from recorded times, but assumed: {', '.join(listed)}" if listed else None


def modelled(trace: KinetoTrace, calibration: Calibration, profile: Hardware) -> ModelledOps:
    """Return the works of a recording, timed by ``profile``, which is that of the calibration
    (:mod:`hosim.validate.calibrated_profile`).
    """
    counted = work_of(trace).works
    placed = {i for work in counted for i in work.ops}
    moved = [
        _moved(i, op)
        for i, op in enumerate(trace.ops)
        if i not in placed and op.size_bytes and not is_transfer(op)
    ]
    works = [
        w
        for w in (*counted, *moved)
        if (w.flops or w.bytes_accessed) and (not w.flops or peak_for(profile, w.dtype) is not None)
    ]
    graph = graph_of(works)
    machine = replace(profile, compute=replace(profile.compute, launch_ns=calibration.fixed_ns))
    kernels = kernel_times_of(graph, machine)
    scales = {scale.kernel: scale for scale in calibration.kernels}
    found = []
    for i, (work, ns) in enumerate(zip(works, op_durations(graph, machine), strict=True)):
        if i in kernels and work.kernel in scales:
            level, spread = (
                ("fitted" if scales[work.kernel].sizes else "assumed"),
                scales[work.kernel].spread,
            )
        else:
            kind = efficiency_of(work.kind, work.dtype, calibration.efficiencies, profile)
            level, spread = kind.level, kind.spread
        found.append(ModelledWork(work, ns, level, spread))
    return ModelledOps(tuple(found))


def _moved(place: int, op: DeviceOp) -> OpWork:
    """Return the work of a copy on the device, or of a fill, that belongs to no operator."""
    kind, passes = ("copy", 2) if op.kind == "copy" else ("fill", 1)
    return OpWork(kind, "uint8", 0, passes * (op.size_bytes or 0), op.duration_ns, ops=(place,))
