"""The command: it records each run into a folder of its own, and the machine beside them."""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy
import torch

from . import trim
from .bandwidth_sweep import SIZES, sweep
from .functional_decoder import CONFIGS, Config
from .gpu_seam import CpuBackend, CudaBackend, Device
from .output_files import write_json
from .schemes import SCHEMES, SMALLEST_OFFLOAD, Workload

FORMAT = "hosim.recording/1"
_MODES = ("prefill", "train")


class RecordError(Exception):
    """An error that the user can fix, in one line."""


@dataclass(frozen=True)
class RecordingRun:
    """One thing to record."""

    mode: str
    length: int
    scheme: str
    batch: int
    iterations: int
    profiled: int
    seed: int

    @property
    def name(self) -> str:
        """The folder's."""
        return f"{self.mode}-{self.length}-{self.scheme}"


def main(arguments: Sequence[str]) -> int:
    """Parse, record, and return the exit code: 0 ok, 1 some runs failed (their ``run.json`` says why), 2 wrong usage."""
    options = _parser().parse_args(arguments)
    try:
        return _record(options, list(arguments))
    except RecordError as error:
        print(f"record: {error}", file=sys.stderr)  # noqa: T201
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m hosim.record", description="Record a decoder under offload schemes on a CUDA device, and the device's channels."
    )
    parser.add_argument(
        "what", choices=("all", "runs", "bandwidth", "list"), help="record runs and bandwidth, or one of them; or only list the runs"
    )
    parser.add_argument("--out", type=Path, help="folder of the recording; existing runs are kept")
    parser.add_argument("--config", choices=sorted(CONFIGS), default="1b", help="sizes of the decoder (default: 1b)")
    parser.add_argument("--modes", default=",".join(_MODES), help="default: %(default)s")
    parser.add_argument("--schemes", default=",".join(SCHEMES), help="default: %(default)s")
    parser.add_argument("--lengths", default="1024,4096", help="sequence lengths (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=1, help="sequences in a step (default: 1)")
    parser.add_argument("--iterations", type=int, default=10, help="timed steps, after two warm-up steps (default: 10)")
    parser.add_argument("--profiled", type=int, default=2, help="steps in the trace and in the memory history (default: 2)")
    parser.add_argument("--seed", type=int, default=1, help="seed of weights and tokens (default: 1)")
    parser.add_argument("--device", type=int, default=0, help="index of the CUDA device (default: 0)")
    parser.add_argument("--dry-run", action="store_true", help="everything but the GPU: the tiny decoder on the CPU, small copies")
    return parser


def _record(options: argparse.Namespace, arguments: list[str]) -> int:
    runs = _runs(options)
    if options.what == "list":
        print("\n".join(run.name for run in runs))  # noqa: T201
        return 0
    if options.out is None:
        raise RecordError("expected --out DIR: where the recording goes")
    device, config = _device(options)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecordError(f"cannot create the folder {options.out}: {error.strerror}") from error
    _check_same(options.out / "meta.json", device, config)
    if options.what != "runs" and not (options.out / "bandwidth.json").exists():
        sizes, repeats = (SIZES[:5], 2) if options.dry_run else (SIZES, 10)
        _say("bandwidth")
        write_json(options.out / "bandwidth.json", {"format": FORMAT, "device": device.describe(), **sweep(device, sizes, repeats)})
    failed: list[str] = []
    _write_meta(options, arguments, device, config, failed)
    for run in runs if options.what != "bandwidth" else ():
        if (options.out / run.name / "run.json").exists():
            _say(f"{run.name}: there already")
            continue
        _say(run.name)
        problem = record_run(device, config, run, options.out, smallest_offload=_smallest(options))
        if problem is not None:
            failed.append(run.name)
            _say(f"{run.name}: {problem}")
    _write_meta(options, arguments, device, config, failed)
    return 1 if failed else 0


def _smallest(options: argparse.Namespace) -> int:
    """Bytes of the smallest storage that is sent to the host: of the tiny decoder any."""
    return 1 if options.dry_run else SMALLEST_OFFLOAD


def _check_same(path: Path, device: Device, config: Config) -> None:
    """Raise :class:`RecordError` unless the folder's recordings are of this model and this device."""
    if not path.exists():
        return
    try:
        meta = json.loads(path.read_bytes())
        before = meta["model"]["name"], meta["device"]["name"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecordError(f"{path} is not a recording: {error}; give another folder") from error
    now = config.name, device.describe()["name"]
    if before != now:
        raise RecordError(
            f"{path.parent} holds a recording of {before[0]} on {before[1]}, this is {now[0]} on {now[1]}: give another folder"
        )


def _write_meta(options: argparse.Namespace, arguments: list[str], device: Device, config: Config, failed: list[str]) -> None:
    """What made the recording. It is also written before the first run, so that an interrupted recording has it."""
    meta = {
        "format": FORMAT,
        "command": ["python", "-m", "hosim.record", *arguments],
        "dry_run": options.dry_run,
        "device": device.describe(),
        "software": _software(),
        "model": {**asdict(config), "parameters": config.parameters, "layer_parameters": config.layer_parameters, "dtype": "bf16"},
        "smallest_offload_bytes": _smallest(options),
        "runs": sorted(path.parent.name for path in options.out.glob("[!.]*/run.json")),
        "failed": failed,
    }
    write_json(options.out / "meta.json", meta)


def record_run(device: Device, config: Config, run: RecordingRun, out: Path, *, smallest_offload: int) -> str | None:
    """Record one run into its folder, as a whole or not at all; returns the error if memory did not suffice."""
    folder = Path(tempfile.mkdtemp(prefix=f".{run.name}.", dir=out))
    try:
        try:
            content = _measure(device, config, run, folder, smallest_offload)
        except torch.cuda.OutOfMemoryError as problem:
            return str(problem).splitlines()[0]
        write_json(folder / "run.json", {"format": FORMAT, "run": asdict(run), **content})
        folder.chmod(0o755)
        os.replace(folder, out / run.name)
        return None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        gc.collect()
        device.empty_caches()


def _measure(device: Device, config: Config, run: RecordingRun, folder: Path, smallest_offload: int) -> dict[str, Any]:
    """Two steps to warm up, timed steps without a profiler, steps under the profiler, steps under the allocator's history."""
    work = Workload(
        device,
        config,
        SCHEMES[run.scheme],
        train=run.mode == "train",
        length=run.length,
        batch=run.batch,
        seed=run.seed,
        smallest_offload=smallest_offload,
    )
    losses = [work.step() for _ in range(2)]
    work.mover.take_moves()
    moves: list[dict[str, Any]] = []
    device.synchronize()
    device.reset_peaks()
    wall_ns = []
    for _ in range(run.iterations):
        start = time.perf_counter_ns()
        losses.append(work.step())
        device.synchronize()
        wall_ns.append(time.perf_counter_ns() - start)
        moves = work.mover.take_moves()
    peaks = device.peaks()
    profiled_ns = []
    with _profiler(device) as profiler:
        for _ in range(run.profiled):
            start = time.perf_counter_ns()
            losses.append(work.step())
            device.synchronize()
            profiled_ns.append(time.perf_counter_ns() - start)
    raw = folder / "raw.json"
    profiler.export_chrome_trace(str(raw))
    write_json(folder / "trace.json.gz", trim.trim_trace(json.loads(raw.read_bytes())))
    raw.unlink()
    del profiler
    snapshots: list[Any] = []
    with device.history(snapshots):
        losses += [work.step() for _ in range(run.profiled)]
    for snapshot in snapshots:
        write_json(folder / "memory.json.gz", trim.trim_snapshot(snapshot))
    return {
        "wall_ns": wall_ns,
        "profiled_wall_ns": profiled_ns,
        "losses": losses,
        "memory": peaks,
        "memory_history": bool(snapshots),
        "moves": moves,
    }


def _profiler(device: Device) -> Any:
    """A profiler with memory and shapes, and with the waits of streams where torch can record them."""
    settings: dict[str, Any] = {}
    config = getattr(torch._C._profiler, "_ExperimentalConfig", None)
    if config is not None and device.kind == "cuda":
        with contextlib.suppress(TypeError):  # older releases do not know it
            settings["experimental_config"] = config(enable_cuda_sync_events=True)
    return torch.profiler.profile(activities=device.activities(), record_shapes=True, profile_memory=True, **settings)


def _runs(options: argparse.Namespace) -> list[RecordingRun]:
    lengths = [_positive(text, "--lengths") for text in _names(options.lengths)]
    if options.dry_run:
        lengths = [16 * (position + 1) for position in range(len(lengths))]
    for name, value in (("--batch", options.batch), ("--iterations", options.iterations), ("--profiled", options.profiled)):
        if value < 1:
            raise RecordError(f"{name}: expected at least 1, got {value}")
    runs = []
    for mode in _known(options.modes, _MODES, "--modes"):
        for length in lengths:
            for scheme in _known(options.schemes, tuple(SCHEMES), "--schemes"):
                if mode == "prefill" and scheme == "offload-optimizer":
                    continue  # prefill has no optimizer
                runs.append(RecordingRun(mode, length, scheme, options.batch, options.iterations, options.profiled, options.seed))
    return runs


def _device(options: argparse.Namespace) -> tuple[Device, Config]:
    if options.dry_run:
        torch.set_num_threads(1)
        return CpuBackend(), CONFIGS["tiny"]
    if not torch.cuda.is_available():
        raise RecordError("expected a CUDA device, torch finds none (--dry-run runs on the CPU)")
    if not 0 <= options.device < torch.cuda.device_count():
        raise RecordError(f"--device: expected an index below {torch.cuda.device_count()}, got {options.device}")
    return CudaBackend(options.device), CONFIGS[options.config]


def _software() -> dict[str, str | None]:
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _known(text: str, known: Sequence[str], option: str) -> list[str]:
    names = _names(text)
    for name in names:
        if name not in known:
            raise RecordError(f"{option}: expected some of {', '.join(known)}, got {name!r}")
    return names


def _positive(text: str, option: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise RecordError(f"{option}: expected whole numbers from 1, got {text!r}")
    return int(text)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201
