"""Steps timed by the host's clock, under torch's profiler, and under the history of its
allocator.
"""

import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from hosim.on_torch.gpu import trim
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
        write_json(folder / "trace.json.gz", trim.trim_trace(json.loads(raw.read_bytes())))
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
        write_json(folder / "memory.json.gz", trim.trim_snapshot(snapshot))


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
