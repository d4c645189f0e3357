"""``hosim validate``: replays of a recording's times and memory, and their errors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hosim.errors import InputError
from hosim.importers import read_source
from hosim.importers.kineto import is_kineto, read_kineto
from hosim.importers.kineto_events import KinetoTrace
from hosim.importers.nsys import is_nsys, read_nsys
from hosim.io.recognised import unexpected
from hosim.validate.memory_replay import Curve, MemoryReplay, replay_history, replay_memory
from hosim.validate.recording import read_snapshot
from hosim.validate.structural_replay import ReplayedOp, StructuralReplay, structural_replay

__all__ = ["Validation", "beside", "read_trace", "validate", "validation_to_dict"]

FORMAT = "hosim.validation/1"
_LISTED = 10


@dataclass(frozen=True, eq=False)
class Validation:
    """A recording and its replays: ``times`` of its ops, ``memory`` of its allocations; ``missing`` says why one is None."""

    trace: str
    device: str | None
    times: StructuralReplay | None
    memory: MemoryReplay | None
    missing: tuple[str, ...]

    @property
    def drawn_ops(self) -> list[tuple[str, tuple[int, int], tuple[int, int]]]:
        """Device and stream of each op, and the nanoseconds of its start and end as recorded and as replayed."""
        ops = self.times.ops if self.times else ()
        return [(f"{x.op.device}:{x.op.stream}", (x.op.start_ns, x.op.end_ns), (x.simulated_start_ns, x.simulated_end_ns)) for x in ops]

    @property
    def drawn_memory(self) -> tuple[Curve, Mapping[str, Curve | None]] | None:
        """Nanoseconds of the allocations and frees, and the bytes after each: recorded and replayed."""
        memory = self.memory
        if memory is None:
            return None
        return memory.times_ns, {
            "allocated, recorded": memory.measured_bytes,
            "allocated, replayed": memory.simulated_bytes,
            "reserved, recorded": memory.measured_reserved_bytes,
            "reserved, replayed": memory.simulated_reserved_bytes,
        }


def read_trace(path: str | os.PathLike[str]) -> KinetoTrace:
    """The recording in a trace of the PyTorch profiler, or in an SQLite export of Nsight Systems. Raises :class:`InputError`."""
    return read_nsys(path) if _is_database(Path(path)) else read_kineto(path)


def _is_database(path: Path) -> bool:
    """Whether the file begins as an SQLite database does; those of long recordings are too large to be read for that."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return is_nsys(file.read(16))
    except (OSError, ValueError):  # the reader reports it
        return False


def validate(path: str | os.PathLike[str], device: int | None = None) -> Validation:
    """Replay a recording: a profiler's trace, an Nsight Systems export, or a snapshot of torch's allocator, recognised by its contents.

    ``device`` is the accelerator whose memory is replayed (default: the one with most to replay). Raises :class:`InputError` for a damaged
    file or any other file, and for a recording without device activity and allocations.
    """
    if _is_database(Path(path)):
        return _of_trace(read_nsys(path), device, os.fspath(path))
    head = read_source(Path(path)).head
    if is_kineto(head):
        return _of_trace(read_kineto(path), device, os.fspath(path))
    if head[:1] == b"\x80" or any(key in head for key in _SNAPSHOT_KEYS):
        snapshot = read_snapshot(Path(path))
        try:
            memory = replay_history(snapshot, device)
        except InputError as error:
            raise InputError(error.message, source=error.source or os.fspath(path), where=error.where) from None
        return Validation(Path(path).name.removesuffix(".gz").rpartition(".")[0], None, None, memory, (_NO_TIMES,))
    expected = "a trace of the PyTorch profiler (JSON), an SQLite export of Nsight Systems, or a snapshot of torch.cuda.memory"
    raise unexpected(os.fspath(path), expected) or InputError(f"expected {expected}", source=os.fspath(path))


_SNAPSHOT_KEYS = (b'"segments"', b'"device_traces"')
_NO_TIMES = "times: the history of an allocator has no kernels"
_NO_MEMORY = "memory: the recording has no allocations of a device (profile_memory=True records them)"
_NO_TOTALS = "memory: the recorded allocations come without totals to compare with"


def _of_trace(trace: KinetoTrace, device: int | None, source: str) -> Validation:
    missing = []
    times: StructuralReplay | None = None
    try:
        times = structural_replay(trace)
    except InputError as error:
        missing.append(f"times: {error.message}")
    replayed = replay_memory(trace, device)
    memory = replayed if replayed.events else None
    if memory is None:
        missing.append(_NO_MEMORY)
    elif memory.measured_bytes is None:
        missing.append(_NO_TOTALS)
    if times is None and memory is None:
        raise InputError(f"nothing in it can be replayed ({'; '.join(missing)})", source=source)
    return Validation(trace.name, trace.device_name, times, memory, tuple(missing))


def validation_to_dict(validation: Validation) -> dict[str, Any]:
    """The figures as ``hosim validate --json`` prints them: integers in nanoseconds and bytes, null where the recording does not say."""
    times, memory = validation.times, validation.memory
    return {
        "format": FORMAT,
        "trace": validation.trace,
        "device": validation.device,
        "kernels": len(times.kernels) if times else 0,
        "makespan": beside("ns", times.measured_ns if times else None, times.simulated_ns if times else None),
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
    """A measured figure and the simulated one, in nanoseconds (``ns``) or ``bytes``, and by how much that is off."""
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
        keys = ("measured_peak_bytes", "simulated_peak_bytes", "max_abs_error_bytes", "reserved_peak_bytes")
        return dict.fromkeys(keys)
    return {
        "measured_peak_bytes": memory.measured_peak_bytes,
        "simulated_peak_bytes": memory.simulated_peak_bytes,
        "max_abs_error_bytes": memory.max_abs_error_bytes,
        "measured_reserved_peak_bytes": memory.measured_reserved_peak_bytes,
        "reserved_peak_bytes": memory.reserved_peak_bytes,
        "account": memory.account,
        "device": memory.device,
        "allocations": memory.allocations,
        "addresses_matched": memory.addresses_matched,
        "start_bytes": memory.start_bytes,
        "mismatches": list(memory.mismatches),
    }


def _given(times: StructuralReplay | None) -> Mapping[str, Any] | None:
    """The count of numbers of the recording that the replay was given, and the constants fitted to it."""
    if times is None:
        return None
    given = times.given
    return {
        "device_durations": given.device_durations,
        "host_segments": given.host_segments,
        "overlaps": given.overlaps,
        "starts": given.starts,
        "constants": dict(sorted(times.constants.items())),
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
