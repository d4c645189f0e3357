"""Calibration: a hardware profile from recordings, completed from a base profile. Every fitted
figure names its source.

Channels are fitted to copies (:mod:`hosim.validate.fits.channel_fit`), and ops to the work that
follows from their operators' shapes (:mod:`hosim.validate.op_costs.op_fit`). A bandwidth sweep
replaces the copies of traces, which contend with each other and with kernels.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from hosim.errors import InputError
from hosim.hardware import Hardware
from hosim.io.importers.recordings import DeviceInfo
from hosim.measured_on import named_profiles
from hosim.plain_text import counted
from hosim.units import human_percent
from hosim.validate.fits import ChannelFit, Figure, copies_of, fit_ways
from hosim.validate.measurements import Measurements
from hosim.validate.op_costs import (
    Efficiency,
    KernelScale,
    fit_efficiencies,
    fit_gap,
    fit_host_launch,
    fixed_time,
    scale_kernels,
    work_of,
)

FORMAT = "hosim.calibration/1"


@dataclass(frozen=True)
class Calibration:
    """The fitted figures, in nanoseconds and bytes per second; ``None`` or empty if the recordings
    lack them, with the reasons in ``missing``.

    ``fixed_ns`` is the time of the shortest ops, ``gap`` the time between queued ops; their sum is
    the launch time of the profile. ``host_launch`` is the time for which a launch occupies the
    host. ``both`` is (bytes of each copy, bytes per second of both together) for the largest copies
    that ran both ways at once.
    """

    sources: tuple[str, ...]
    device: str | None
    base: str | None
    ways: Mapping[tuple[str, str], ChannelFit]
    gap: Figure | None
    fixed_ns: int
    host_launch: Figure | None
    efficiencies: tuple[Efficiency, ...]
    both: tuple[int, Figure] | None
    missing: tuple[str, ...]
    kernels: tuple[KernelScale, ...] = ()

    @property
    def launch_ns(self) -> int | None:
        """The launch time of the profile."""
        return None if self.gap is None else round(self.gap.value) + self.fixed_ns

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON report, without held-out predictions."""
        return {
            "format": FORMAT,
            "sources": list(self.sources),
            "device": self.device,
            "base": self.base,
            "channels": [way.to_dict() for way in self.ways.values()],
            "both_ways": {"bytes": self.both[0], "bandwidth_bytes_per_s": self.both[1].to_dict()}
            if self.both
            else None,
            "launch": {
                "launch_ns": self.launch_ns,
                "gap_ns": self.gap.to_dict() if self.gap else None,
                "fixed_ns": self.fixed_ns if self.gap else None,
                "host_ns": self.host_launch.to_dict() if self.host_launch else None,
            },
            "efficiency": [efficiency.to_dict() for efficiency in self.efficiencies],
            "kernels": [scale.to_dict() for scale in self.kernels],
            "missing": list(self.missing),
        }


def calibrate(measured: Measurements, base: Hardware | None = None) -> Calibration:
    """Fit everything that the recordings allow. Efficiencies need the peaks and the bandwidth of a
    ``base``.

    Raises :class:`InputError` if there is nothing to fit: no copy to or from the host, no launches,
    no shapes.
    """
    missing: list[str] = []
    ways = _ways(measured, missing)
    each = [work_of(trace) for trace in measured.traces]
    works = [work for one in each for work in one.works]
    left = sum(one.kernels_left_out for one in each)
    time_left = sum(one.time_left_out_ns for one in each)
    gap, host = fit_gap(measured.traces), fit_host_launch(measured.traces)
    fixed = fixed_time(works)
    efficiencies: tuple[Efficiency, ...] = ()
    kernels: tuple[KernelScale, ...] = ()
    if measured.traces and gap is None:
        missing.append("launch time: no kernel was queued behind another")
    if measured.traces and not works:
        missing.append(
            "efficiency: shapes of operators were not recorded; record with record_shapes=True"
        )
    elif works and base is None:
        missing.append(
            "efficiency: it is relative to the peaks of a profile; give a profile with --base"
        )
    elif base is not None:
        efficiencies, unknown = fit_efficiencies(works, base, fixed)
        kernels = scale_kernels(works, base, fixed) if works else ()
        missing += unknown
        if left:
            share = time_left / max(1, time_left + sum(work.time_ns for work in works))
            missing.append(
                f"efficiency of {counted(left, 'kernel')}, {human_percent(share, 0)} of the time: "
                "their work does not follow from recorded "
                "shapes"
            )
    if not ways and gap is None and not works:
        why = "".join(f"; {line}" for line in missing if line.startswith("channels: "))
        raise InputError(
            "nothing to calibrate from: no copy to or from the host, no queued launches, no "
            f"shapes{why}",
            source=measured.names[0],
        )
    both = _both(measured)
    return Calibration(
        measured.names,
        measured.device,
        base.name if base else None,
        ways,
        gap,
        fixed,
        host,
        efficiencies,
        both,
        tuple(missing),
        kernels,
    )


def _ways(measured: Measurements, missing: list[str]) -> Mapping[tuple[str, str], ChannelFit]:
    swept = [copy for sweep in measured.sweeps for copy in sweep.copies]
    if swept:
        return fit_ways(swept, [sweep.name for sweep in measured.sweeps])
    ways = fit_ways(
        [copy for trace in measured.traces for copy in copies_of(trace.ops)],
        [trace.name for trace in measured.traces if copies_of(trace.ops)],
    )
    ends = [
        (direction, memory) for direction in ("h2d", "d2h") for memory in ("pinned", "pageable")
    ]
    moved = sum(op.migration for trace in measured.traces for op in trace.ops)
    if moved:
        missing.append(
            f"channels: {counted(moved, 'migration')} of managed memory by page faults, which are "
            "no copies that a plan asks for"
        )
    missing += [
        f"channel {end[0]}, {end[1]} memory: no such copy was recorded"
        for end in ends
        if end not in ways
    ]
    for way in ways.values():
        what = f"{way.direction}, {way.memory} memory"
        missing += (
            [f"latency of {what}: all copies have {way.sizes[0]:,} B"]
            if way.latency is None
            else []
        )
        missing += (
            [f"bandwidth of {what}: no copy is larger than {way.sizes[1]:,} B"]
            if not way.tells_bandwidth
            else []
        )
    return ways


def _both(measured: Measurements) -> tuple[int, Figure] | None:
    pairs = [pair for sweep in measured.sweeps for pair in sweep.both]
    if not pairs:
        return None
    largest = max(size for size, _ in pairs)
    rates = sorted(2 * size * 1e9 / time for size, time in pairs if size == largest and time)
    return (largest, Figure(median(rates), rates[0], rates[-1], len(rates))) if rates else None


def likely_base(device: str | None, known: Sequence[str]) -> str:
    """Return the shipped profile that has the most words of a device's name. Raises
    :class:`InputError` unless there is exactly one.
    """
    shared = named_profiles(device, known)
    fitting = [name for name, count in shared.items() if count == max(shared.values())]
    if len(fitting) != 1:
        seen = f"a recording of {device}" if device else "the recording does not name its device"
        choice = f" (shipped: {', '.join(known)})" if not fitting else f": {' or '.join(fitting)}"
        raise InputError(f"{seen}: name the profile to start from{choice}", source="--base")
    return fitting[0]


def base_with_figures(device: DeviceInfo, profiles: Iterable[Hardware]) -> str | None:
    """Return the profile with the same number of multiprocessors and about as much memory as a
    device whose name was not recorded; None unless there is exactly one.
    """
    if not device.multiprocessors or not device.memory_bytes:
        return None
    fitting = [
        machine.name
        for machine in profiles
        if machine.compute.processor is not None
        and machine.compute.processor.multiprocessors == device.multiprocessors
        and abs(machine.device.capacity_bytes / device.memory_bytes - 1) <= _SAME_MEMORY
    ]
    return fitting[0] if len(fitting) == 1 else None


_SAME_MEMORY = 0.1
