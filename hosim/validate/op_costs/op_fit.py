"""The processor's parameters of the cost model, fitted to recordings: the efficiency of ops by kind
and dtype, and the fixed time of an op.

The time of an op is ``fixed + roofline / efficiency``, with the roofline of a base profile at full
efficiency. ``fixed`` is the time of ops that move few bytes, or else of the shortest ones
(:func:`fixed_time`); together with the gap between an op and the next queued one it is the launch
time of the cost model. The efficiency of a kind and dtype is fitted by
:func:`hosim.validate.fits.robust.fit_slope`. It is omitted if the fixed time is more than half of
the kind's time, or if its interval spans a factor of 10.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hosim.analysis.costmodel import op_durations
from hosim.errors import HardwareError
from hosim.hardware import Compute, Hardware, Tier
from hosim.io.importers.recordings import KinetoTrace, program_order, waits
from hosim.validate.fits import (
    ErrorSpread,
    Figure,
    clock_tick,
    fit_slope,
    inverse,
    median_figure,
    spread,
)
from hosim.validate.op_costs.op_work import OpWork, graph_of

_QUEUED_NS = 20_000
"""An op that was issued this long before the previous one ended waited for nothing else."""

_SHORT = 0.05
"""The share of ops that count as the shortest."""

_FEW_BYTES = 1 << 18
"""The most bytes of an op of these kinds that does little beyond its fixed time."""
_MOVING = frozenset(("elementwise", "elementwise_strided", "copy", "copy_strided", "fill"))
_MANY = 4
"""The number of ops from which the step of a clock is visible."""
_MOST_NS = 5000
"""The longest fixed time: if the shortest ops take longer, they do some work."""

_COARSE_NS = 1000
"""The step of an older recording's clock."""

_LEAST_IDEAL_NS = 1000
"""The least time at full efficiency of an op that is used for the fit (it must also exceed the
fixed time): shorter ops are limited by something else.
"""

_TELLING = 2
"""The least mean time of a kind's ops, in multiples of the fixed time."""

_SAMPLES = 3
"""The least number of ops of a kind for a fit."""

_CERTAIN = 10
"""The largest ratio of the ends of an interval."""

_FINER = 1000
"""The machine for rooflines is this much slower, so that whole nanoseconds on it are
picoseconds.
"""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """The fit of a kind and dtype: the fraction of the roofline that it reaches (as fitted; values
    above 1 become 1 in the profile), and the time of its ops in ns.
    """

    kind: str
    dtype: str
    fraction: Figure
    time_ns: int
    residuals: ErrorSpread

    @property
    def written(self) -> float:
        """The efficiency for the profile."""
        return float(f"{min(1.0, self.fraction.value):.4g}")

    def to_dict(self) -> dict[str, Any]:
        """Return the efficiency as in the JSON report."""
        return {
            "kind": self.kind,
            "dtype": self.dtype,
            "efficiency": self.fraction.to_dict(),
            "time_ns": self.time_ns,
            "residuals": self.residuals.to_dict(),
        }


def fit_gap(traces: Sequence[KinetoTrace]) -> Figure | None:
    """Return the nanoseconds between a kernel and the next queued one; ``None`` if none
    was queued.
    """
    gaps = []
    for trace in traces:
        order = program_order(trace)
        awaited = waits(trace, order).of_ops
        for queue in order.streams.values():
            for a, b in pairwise(queue):
                first, second = trace.ops[a], trace.ops[b]
                if (
                    first.kind == second.kind == "kernel"
                    and b not in awaited
                    and second.call is not None
                ):
                    queued = trace.calls[second.call].end_ns + _QUEUED_NS <= first.end_ns
                    if queued and second.start_ns >= first.end_ns:
                        gaps.append(second.start_ns - first.end_ns)
    return median_figure(gaps) if gaps else None


def fit_host_launch(traces: Sequence[KinetoTrace]) -> Figure | None:
    """Return the nanoseconds for which a call that launches kernels occupies the host; ``None``
    without launches.
    """
    times = [call.duration_ns for trace in traces for call in trace.calls if call.role == "launch"]
    return median_figure(times) if times else None


def fixed_time(works: Sequence[OpWork]) -> int:
    """Return the nanoseconds that any op takes: the lower quartile of ops that move few bytes, else
    the time of the shortest ops; 0 without any.

    A clock of whole microseconds cuts off half of one on average, which is added.
    """
    listed = [work for work in works if work.time_ns > 0]
    few = sorted(
        work.time_ns
        for work in listed
        if work.kind in _MOVING and work.bytes_accessed <= _FEW_BYTES
    )
    times = sorted(work.time_ns for work in listed)
    coarse = len(times) >= _MANY and not any(time % _COARSE_NS for time in times)
    shortest = few[len(few) // 4] if few else 0
    if times and not few:
        shortest = min(_MOST_NS, times[int(_SHORT * len(times))])
    return shortest + (_COARSE_NS // 2 if coarse else 0)


def fit_efficiencies(
    works: Sequence[OpWork], base: Hardware, fixed_ns: int
) -> tuple[tuple[Efficiency, ...], tuple[str, ...]]:
    """Return the efficiencies relative to the peaks and the bandwidth of ``base``, and lines on
    those that could not be fitted.
    """
    groups: defaultdict[tuple[str, str], list[OpWork]] = defaultdict(list)
    for work in works:
        if work.time_ns > 0 and (work.flops or work.bytes_accessed):
            groups[work.kind, work.dtype].append(work)
    found, missing, short, few, vague = [], [], [], [], []
    for (kind, dtype), group in sorted(groups.items()):
        if len(group) < _SAMPLES:
            few.append(f"{kind} {dtype}")
            continue
        try:
            every = rooflines(group, base)
        except HardwareError as error:
            missing.append(f"efficiency of {kind} in {dtype}: {error.message}")
            continue
        telling = [
            (work.time_ns, time)
            for work, time in zip(group, every, strict=True)
            if time >= max(_LEAST_IDEAL_NS, fixed_ns)
        ]
        times, ideal = [time for time, _ in telling], [time for _, time in telling]
        if len(telling) < _SAMPLES or sum(times) < _TELLING * fixed_ns * len(telling):
            short.append(f"{kind} {dtype}")
            continue
        fraction = inverse(fit_slope(ideal, times, fixed_ns), 1.0)
        if fraction.high > _CERTAIN * fraction.low:
            vague.append(f"{kind} {dtype}")
            continue
        predicted = [fixed_ns + time / min(1.0, fraction.value) for time in ideal]
        found.append(
            Efficiency(
                kind, dtype, fraction, sum(times), spread(times, predicted, clock_tick(times))
            )
        )
        if fraction.value > 1:
            missing.append(
                f"efficiency of {kind} in {dtype}: {fraction.value:.2f} of the peak of "
                f"{base.name}, written as 1; is it the right profile?"
            )
    if few:
        missing.append(f"efficiency of kinds with fewer than {_SAMPLES} ops: {', '.join(few)}")
    if vague:
        missing.append(f"efficiency of kinds whose times vary too much: {', '.join(vague)}")
    if short:
        missing.append(f"efficiency of kinds whose ops are too short: {', '.join(short)}")
    return tuple(found), tuple(missing)


def rooflines(works: Sequence[OpWork], base: Hardware) -> list[float]:
    """Return the nanoseconds of each work on ``base`` at full efficiency and without launch, by the
    cost model's roofline.
    """
    tier = base.device
    slow = Hardware(
        base.name,
        (
            Tier(
                tier.name,
                tier.capacity_bytes,
                max(1, tier.bandwidth_bytes_per_s // _FINER),
                "device",
            ),
        ),
        (),
        Compute({dtype: max(1, peak // _FINER) for dtype, peak in base.compute.peak_flops.items()}),
        device_tier=tier.name,
    )
    return [time / _FINER for time in op_durations(graph_of(works), slow)]


def by_kind(efficiencies: Sequence[Efficiency]) -> Mapping[str, Mapping[str, float]]:
    """Return the efficiencies in the form of ``compute.efficiency_of`` of a profile."""
    found: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for efficiency in efficiencies:
        found[efficiency.kind][efficiency.dtype] = efficiency.written
    return dict(found)
