"""The data for a calibration: traces, and the bandwidth sweeps of the kit for GPU machines
(:mod:`hosim.gpu`).
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hosim.errors import InputError
from hosim.io.importers.recordings import KinetoTrace
from hosim.validate.fits import MeasuredCopy
from hosim.validate.kit import bandwidth_sweep
from hosim.validate.validation import read_trace


@dataclass(frozen=True)
class Sweep:
    """Copies that were measured one at a time. ``both`` has pairs of copies that run at once in
    opposite directions: the bytes of each, and the nanoseconds until both have ended.
    """

    name: str
    device: str | None
    copies: tuple[MeasuredCopy, ...]
    both: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Measurements:
    """Traces and sweeps of one device. ``files`` has, by their names, the paths that they were read
    from.
    """

    traces: tuple[KinetoTrace, ...]
    sweeps: tuple[Sweep, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all traces and sweeps."""
        return (*(trace.name for trace in self.traces), *(sweep.name for sweep in self.sweeps))

    @property
    def device(self) -> str | None:
        """The name of the device; None if no recording has it."""
        names = [
            *(trace.device_name for trace in self.traces),
            *(sweep.device for sweep in self.sweeps),
        ]
        return next((name for name in names if name), None)


def read_measurements(paths: Sequence[Path]) -> Measurements:
    """Read traces (a profiler's, or Nsight Systems exports), sweeps (the kit's ``bandwidth.json``)
    and folders of the kit, which have both.

    Raises :class:`InputError` for anything else, for a damaged file, and for recordings of devices
    of different names.
    """
    traces: list[KinetoTrace] = []
    sweeps: list[Sweep] = []
    files: dict[str, str] = {}
    for path in paths:
        known = len(traces), len(sweeps)
        if os.path.isdir(path):
            inside = sorted([*path.glob("trace.json.gz"), *path.glob("*/trace.json.gz")])
            if (path / "bandwidth.json").is_file():
                sweeps.append(_sweep(path / "bandwidth.json", path.name))
            elif not inside:
                raise InputError(
                    "expected bandwidth.json, trace.json.gz or */trace.json.gz in it, as python "
                    "-m hosim.gpu and hosim.record write them",
                    source=str(path),
                )
            traces += [
                replace(
                    read_trace(trace),
                    name="/".join((path.name, *trace.parent.relative_to(path).parts)),
                )
                for trace in inside
            ]
        elif path.name.endswith("bandwidth.json"):
            sweeps.append(_sweep(path, path.parent.name or path.name))
        else:
            traces.append(read_trace(path))
        files |= dict.fromkeys(
            [
                *(trace.name for trace in traces[known[0] :]),
                *(sweep.name for sweep in sweeps[known[1] :]),
            ],
            str(path),
        )
    found = Measurements(tuple(traces), tuple(sweeps), files)
    names = {
        name for name in [*(t.device_name for t in traces), *(s.device for s in sweeps)] if name
    }
    if len(names) > 1:
        listed = ", ".join(map(str, paths[:3])) + (
            f" and {len(paths) - 3} more" if len(paths) > 3 else ""
        )
        raise InputError(
            f"expected recordings of one device, got {' and '.join(sorted(names))}; calibrate "
            "each separately",
            source=listed,
        )
    return found


def _sweep(path: Path, name: str) -> Sweep:
    swept = bandwidth_sweep(path)
    copies = [
        MeasuredCopy(row.direction, "pinned" if row.pinned else "pageable", row.size_bytes, time)
        for row in swept.copies
        if row.direction != "both"
        for time in row.times_ns
    ]
    both = [
        (row.size_bytes, time)
        for row in swept.copies
        if row.direction == "both"
        for time in row.times_ns
    ]
    return Sweep(name, swept.device, tuple(copies), tuple(both))
