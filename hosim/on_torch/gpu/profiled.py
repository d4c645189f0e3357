"""Steps timed by the host's clock, under torch's profiler, and under the history of its allocator;
traces and snapshots are reduced to what hosim reads.
"""

import contextlib
import json
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from hosim.io.importers.recordings import MODULE
from hosim.on_torch.gpu.gpu_seam import Device
from hosim.on_torch.gpu.output_files import write_json

Run = Callable[[], object]


def timed(device: Device, run: Run, count: int) -> list[int]:
    """Nanoseconds of each of ``count`` steps, from the host's first launch to the end of the
    device's last work.
    """
    device.synchronize()
    took = []
    for _ in range(count):
        start = time.perf_counter_ns()
        run()
        device.synchronize()
        took.append(time.perf_counter_ns() - start)
    return took


def write_trace(device: Device, run: Run, count: int, folder: Path) -> list[int]:
    """Write ``trace.json.gz`` of ``count`` steps; returns the nanoseconds of each."""
    with profiler(device) as recorded:
        took = timed(device, run, count)
    save_trace(recorded, folder)
    return took


def save_trace(recorded: Any, folder: Path) -> None:
    """Write what a profiler recorded, trimmed, as ``trace.json.gz``."""
    raw = folder / ".raw.json"
    try:
        recorded.export_chrome_trace(str(raw))
        write_json(folder / "trace.json.gz", trim_trace(json.loads(raw.read_bytes())))
    finally:
        raw.unlink(missing_ok=True)


def write_history(device: Device, run: Run, count: int, folder: Path) -> bool:
    """Write ``memory.json.gz``, the allocator's history of ``count`` steps; whether there is one
    (not on a CPU).
    """
    snapshots: list[Any] = []
    with device.history(snapshots):
        for _ in range(count):
            run()
    save_history(snapshots, folder)
    return bool(snapshots)


def save_history(snapshots: list[Any], folder: Path) -> None:
    """Write the allocator's history, trimmed, as ``memory.json.gz``, if there is one."""
    for snapshot in snapshots:
        write_json(folder / "memory.json.gz", trim_snapshot(snapshot))


def profiler(device: Device, *, modules: bool = False) -> Any:
    """A profiler with memory and shapes, and with the waits of streams where torch can record them.

    ``modules`` says whether calls of modules are recorded, which torch does by tracing Python:
    ``with_modules`` is for TorchScript alone.
    """
    settings: dict[str, Any] = {"with_stack": True} if modules else {}
    config = getattr(torch._C._profiler, "_ExperimentalConfig", None)
    if config is not None and device.kind == "cuda":
        with contextlib.suppress(TypeError):  # older releases do not know it
            settings["experimental_config"] = config(enable_cuda_sync_events=True)
    return torch.profiler.profile(
        activities=device.activities(), record_shapes=True, profile_memory=True, **settings
    )


# -- clocks of an NVIDIA GPU while something runs, as nvidia-smi says them -------------------------


FIELDS = (
    "clocks.sm",
    "clocks.mem",
    "temperature.gpu",
    "power.draw",
    "clocks_throttle_reasons.active",
)
"""MHz, MHz, degrees Celsius, watts, and a mask of reasons for lower clocks."""

_COMMAND = (
    "nvidia-smi",
    f"--query-gpu={','.join(FIELDS)}",
    "--format=csv,noheader,nounits",
    "--loop-ms=100",
)


@contextlib.contextmanager
def sampled(
    kind: str, index: int, samples: list[dict[str, str]], command: Sequence[str] = _COMMAND
) -> Iterator[None]:
    """Append a sample for each 100 ms inside to ``samples``; none where there is no ``nvidia-smi``,
    or no CUDA device (``kind``).
    """
    watcher = None
    if kind == "cuda":
        with contextlib.suppress(OSError):
            watcher = subprocess.Popen(
                [*command, f"--id={index}"],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
    try:
        yield
    finally:
        if watcher is not None:
            watcher.terminate()
            text, _ = watcher.communicate()
            samples += [row for line in text.splitlines() if (row := _row(line)) is not None]


def _row(line: str) -> dict[str, str] | None:
    """One line; ``None`` for one that was cut off."""
    values = [value.strip() for value in line.split(",")]
    return dict(zip(FIELDS, values, strict=True)) if len(values) == len(FIELDS) else None


# -- what is kept of traces and snapshots ----------------------------------------------------------


_CATEGORIES = frozenset(
    (
        *("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver", "cuda_sync"),
        *("cpu_op", "user_annotation", "cpu_instant_event"),
    )
)
_ARGUMENTS = frozenset(
    (
        *(
            "device",
            "stream",
            "context",
            "correlation",
            "External id",
            "cbid",
            "bytes",
            "kind",
            "Ev Idx",
            "Addr",
            "Bytes",
        ),
        *(
            "Device Id",
            "Device Type",
            "Total Allocated",
            "Total Reserved",
            "Input Dims",
            "Input type",
            "grid",
            "block",
        ),
        *(
            "Concrete Inputs",
            "Sequence number",
            "Collective name",
            "Process Group Name",
            "Process Group Ranks",
            "Seq",
        ),
        *("registers per thread", "shared memory"),
        *(
            "cuda_sync_kind",
            "wait_on_stream",
            "wait_on_cuda_event_id",
            "wait_on_cuda_event_record_corr_id",
            "event_id",
        ),
    )
)
_TOP = (
    "schemaVersion",
    "deviceProperties",
    "cuda_runtime_version",
    "cuda_driver_version",
    "cupti_version",
    "baseTimeNanoseconds",
)
_ENTRY = ("action", "addr", "size", "stream", "time_us", "pool_id", "device_free", "user_metadata")
_SEGMENT = (
    "device",
    "address",
    "total_size",
    "allocated_size",
    "active_size",
    "stream",
    "segment_type",
    "segment_pool_id",
    "is_expandable",
)
_BLOCK = ("address", "size", "requested_size", "state")


def trim_trace(trace: Mapping[str, Any]) -> dict[str, Any]:
    """A Kineto trace without stacks, Python functions but calls of modules, and arguments that
    hosim does not read.
    """
    events = []
    for event in trace["traceEvents"]:
        if event.get("ph") == "M" or event.get("cat") in _CATEGORIES or _is_module(event):
            arguments = {
                key: value
                for key, value in event.get("args", {}).items()
                if key in _ARGUMENTS or event["ph"] == "M"
            }
            kept = {key: value for key, value in event.items() if key != "args"}
            events.append({**kept, "args": arguments} if arguments else kept)
    return {**{key: trace[key] for key in _TOP if key in trace}, "traceEvents": events}


def _is_module(event: Mapping[str, Any]) -> bool:
    return event.get("cat") == "python_function" and str(event.get("name", "")).startswith(MODULE)


def trim_snapshot(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """A snapshot of the allocator without stack frames."""
    return {
        "segments": [
            {**_only(segment, _SEGMENT), "blocks": _each(segment["blocks"], _BLOCK)}
            for segment in snapshot["segments"]
        ],
        "device_traces": [_each(trace, _ENTRY) for trace in snapshot["device_traces"]],
        "allocator_settings": dict(snapshot.get("allocator_settings", {})),
    }


def _each(rows: Iterable[Mapping[str, Any]], keys: Iterable[str]) -> list[dict[str, Any]]:
    return [_only(row, keys) for row in rows]


def _only(row: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    return {key: row[key] for key in keys if key in row}
