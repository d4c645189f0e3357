"""``hosim validate``: replay a recording's times and memory, and report the replays' errors."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hosim.base.files.formats import is_kineto, read_source, unexpected
from hosim.errors import InputError
from hosim.extensions import added
from hosim.io.importers.recordings import KinetoTrace, read_kineto
from hosim.validate.damage import refuse_damage
from hosim.validate.recorded_steps import Latencies, ReplayedOp, StructuralReplay
from hosim.validate.replay_verdicts import (
    UnexplainedSpan,
    Verdict,
    replay_and_judge,
    verdict_to_dict,
)
from hosim.validate.snapshots import (
    Curve,
    MemoryReplay,
    read_snapshot,
    replay_history,
    replay_memory,
)

FORMAT = "hosim.validation/1"
_LISTED = 10


@dataclass(frozen=True, eq=False)
class Validation:
    """A recording and its replays: ``times`` of its ops and ``memory`` of its allocations.
    ``missing`` says why one of them is None.
    """

    trace: str
    device: str | None
    times: StructuralReplay | None
    memory: MemoryReplay | None
    missing: tuple[str, ...]
    verdict: Verdict | None = None

    @property
    def explained(self) -> bool | None:
        """Return whether the replay of times explains the recording; None without such a replay."""
        return self.verdict.explained if self.verdict else None

    @property
    def unexplained(self) -> tuple[UnexplainedSpan, ...]:
        """The parts of the recording that the replay does not explain, in order of time."""
        return self.verdict.spans if self.verdict else ()

    @property
    def drawn_ops(self) -> list[tuple[str, str, int, int, tuple[int, int], tuple[int, int]]]:
        """The name, kind, device and stream of each op, and its start and end in nanoseconds: as
        recorded, then as replayed.
        """
        return [
            (
                x.op.name,
                x.op.kind,
                x.op.device,
                x.op.stream,
                (x.op.start_ns, x.op.end_ns),
                (x.simulated_start_ns, x.simulated_end_ns),
            )
            for x in (self.times.ops if self.times else ())
        ]

    @property
    def drawn_spans(self) -> list[tuple[int, int, str]]:
        """Start and end in nanoseconds of each part that the replay does not explain, and why."""
        return [(span.start_ns, span.end_ns, span.cause) for span in self.unexplained]

    @property
    def drawn_memory(self) -> tuple[Curve, Mapping[str, Curve | None]] | None:
        """The times of allocations and frees in nanoseconds, and the bytes after each, recorded and
        replayed; None without a replay of memory.
        """
        memory = self.memory
        if memory is None:
            return None
        return memory.times_ns, {
            "allocated, recorded": memory.measured_bytes,
            "allocated, simulated": memory.simulated_bytes,
            "reserved, recorded": memory.measured_reserved_bytes,
            "reserved, simulated": memory.simulated_reserved_bytes,
        }


def read_trace(path: str | os.PathLike[str]) -> KinetoTrace:
    """Read the recording in a trace of the PyTorch profiler, or in an SQLite export of Nsight
    Systems. Raises :class:`InputError`.
    """
    return (_reader(Path(path)) or read_kineto)(path)


def _reader(path: Path) -> Callable[[str | os.PathLike[str]], KinetoTrace] | None:
    """Return the reader for another program's recording, chosen by the file's first 16 bytes;
    ``None`` for other files.
    """
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            begin = file.read(16)
    except (OSError, ValueError):  # the reader reports it
        return None
    return next(
        (
            reads
            for recordings in added("recordings")
            for recognises, reads in recordings
            if recognises(begin)
        ),
        None,
    )


def validate(path: str | os.PathLike[str], device: int | None = None) -> Validation:
    """Replay a recording: a profiler's trace, an Nsight Systems export, or a snapshot of torch's
    allocator, recognised by its contents.

    ``device`` is the accelerator whose memory is replayed (default: the one with most to replay).
    Raises :class:`InputError` for a damaged file or any other file, and for a recording without
    device activity and allocations.
    """
    other = _reader(Path(path))
    if other is not None:
        return _of_trace(other(path), device, os.fspath(path))
    head = read_source(Path(path)).head
    if is_kineto(head):
        return _of_trace(read_kineto(path), device, os.fspath(path))
    if head[:1] == b"\x80" or any(key in head for key in _SNAPSHOT_KEYS):
        snapshot = read_snapshot(Path(path))
        try:
            memory = replay_history(snapshot, device)
        except InputError as error:
            raise InputError(
                error.message, source=error.source or os.fspath(path), where=error.where
            ) from None
        missing = (_NO_TIMES,) if memory.measured_bytes is not None else (_NO_TIMES, _OTHER_CHOICES)
        return Validation(
            Path(path).name.removesuffix(".gz").rpartition(".")[0], None, None, memory, missing
        )
    expected = (
        "a trace of the PyTorch profiler (JSON), an SQLite export of Nsight Systems, or a "
        "snapshot of torch.cuda.memory"
    )
    raise unexpected(os.fspath(path), expected) or InputError(
        f"expected {expected}", source=os.fspath(path)
    )


_SNAPSHOT_KEYS = (b'"segments"', b'"device_traces"')
_NO_TIMES = "times: the history of an allocator has no kernels"
_OTHER_CHOICES = (
    "memory: hosim's allocator chose otherwise than the recorded one, so that what "
    "its blocks took is not known"
)
_NO_MEMORY = (
    "memory: the recording has no allocations of a device (profile_memory=True records them)"
)
_NO_TOTALS = "memory: the recorded allocations come without totals to compare with"


def _of_trace(trace: KinetoTrace, device: int | None, source: str) -> Validation:
    refuse_damage(trace, source)
    missing = []
    times: StructuralReplay | None = None
    verdict: Verdict | None = None
    try:
        times, verdict = replay_and_judge(trace)
    except InputError as error:
        missing.append(f"times: {error.message}")
    replayed = replay_memory(trace, device)
    memory = replayed if replayed.events else None
    if memory is None:
        missing.append(_NO_MEMORY)
    elif memory.measured_bytes is None:
        missing.append(_NO_TOTALS)
    elif memory.reserved_unknown is not None and memory.measured_reserved_bytes is not None:
        missing.append(f"reserved peak: {memory.reserved_unknown}")
    if times is None and memory is None:
        raise InputError(f"nothing in it can be replayed ({'; '.join(missing)})", source=source)
    return Validation(trace.name, trace.device_name, times, memory, tuple(missing), verdict)


def validation_to_dict(validation: Validation) -> dict[str, Any]:
    """Return the figures as ``hosim validate --json`` prints them: integers in nanoseconds and
    bytes, null if the recording does not say.
    """
    times, memory = validation.times, validation.memory
    return {
        "format": FORMAT,
        "trace": validation.trace,
        "device": validation.device,
        "kernels": len(times.kernels) if times else 0,
        **verdict_to_dict(validation.verdict, times),
        "makespan": beside(
            "ns", times.measured_ns if times else None, times.simulated_ns if times else None
        ),
        "kernel_start": {
            "mean_error_ns": times.mean_start_error_ns if times else None,
            "p95_error_ns": times.p95_start_error_ns if times else None,
        },
        "copies": _copies(times),
        "stream_waits": {
            "count": times.stream_waits if times else 0,
            "inferred": times.inferred_waits if times else 0,
            "contradicted": times.contradicted_waits if times else 0,
            "measured_ns": times.measured_wait_ns if times else None,
            "simulated_ns": times.simulated_wait_ns if times else None,
        },
        "memory": _memory(memory),
        "given": _given(times),
        "worst": [_op(op) for op in times.worst(_LISTED)] if times else [],
        "missing": list(validation.missing),
    }


def beside(unit: str, measured: int | None, simulated: int | None) -> dict[str, Any]:
    """Return a measured and a simulated figure, in nanoseconds (``ns``) or ``bytes``, and the
    relative error of the simulated one.
    """
    error = simulated / measured - 1 if measured and simulated is not None else None
    return {f"measured_{unit}": measured, f"simulated_{unit}": simulated, "error": error}


def _copies(times: StructuralReplay | None) -> dict[str, Any]:
    copies = [op.op for op in times.ops if op.op.kind == "copy"] if times else []
    return {
        "count": len(copies),
        "bytes": sum(op.size_bytes or 0 for op in copies),
        "total_ns": times.copy_ns if times else None,
        "measured_overlap_ns": times.measured_overlap_ns if times else None,
        "simulated_overlap_ns": times.simulated_overlap_ns if times else None,
    }


def _memory(memory: MemoryReplay | None) -> dict[str, Any]:
    if memory is None:
        return dict.fromkeys(
            (
                *(
                    "measured_peak_bytes",
                    "simulated_peak_bytes",
                    "max_abs_error_bytes",
                    "requested_peak_bytes",
                ),
                *("reserved_peak_bytes", "reserved_low_bytes", "reserved_high_bytes"),
            )
        )
    return {
        "measured_peak_bytes": memory.measured_peak_bytes,
        "simulated_peak_bytes": memory.simulated_peak_bytes,
        "max_abs_error_bytes": memory.max_abs_error_bytes,
        "requested_peak_bytes": memory.requested_peak_bytes,
        "measured_reserved_peak_bytes": memory.measured_reserved_peak_bytes,
        "reserved_peak_bytes": memory.reserved_peak_bytes,
        "reserved_low_bytes": memory.reserved_low_bytes,
        "reserved_high_bytes": memory.reserved_high_bytes,
        "account": memory.account,
        "device": memory.device,
        "allocations": memory.allocations,
        "addresses_matched": memory.addresses_matched,
        "start_bytes": memory.start_bytes,
        "mismatches": list(memory.mismatches),
    }


def _given(times: StructuralReplay | None) -> Mapping[str, Any] | None:
    """Return how many numbers of the recording the replay was given, and the constants fitted to
    it.
    """
    if times is None:
        return None
    given = times.given
    return {
        "device_durations": given.device_durations,
        "host_segments": given.host_segments,
        "overlaps": given.overlaps,
        "starts": given.starts,
        "constants": {
            name: _constant(times.constants, name) for name in sorted(times.constants.listed)
        },
        "recurring": [
            {
                "name": one.name,
                "stream": one.stream,
                "ns": one.delay_ns,
                "samples": one.samples,
                "low_ns": one.low_ns,
                "high_ns": one.high_ns,
            }
            for one in times.recurring
        ],
    }


def _constant(constants: Latencies, name: str) -> dict[str, Any]:
    """Return a fitted constant, its number of samples, and the range of the middle nine tenths of
    these.
    """
    low, high = constants.spreads.get(name, (None, None))
    return {
        "ns": constants.listed[name],
        "samples": constants.samples.get(name, 0),
        "low_ns": low,
        "high_ns": high,
    }


def _op(replayed: ReplayedOp) -> dict[str, Any]:
    return {
        "name": replayed.op.name,
        "kind": replayed.op.kind,
        "stream": replayed.op.stream,
        "measured_start_ns": replayed.op.start_ns,
        "simulated_start_ns": replayed.simulated_start_ns,
        "start_error_ns": replayed.start_error_ns,
    }
