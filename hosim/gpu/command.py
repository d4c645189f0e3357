"""The command line of the kit."""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy
import torch

from hosim.errors import HosimError, InputError
from hosim.gpu.captured_step import Work, threads
from hosim.gpu.functional_decoder import CONFIGS
from hosim.gpu.gpu_seam import CpuBackend, CudaBackend, Device
from hosim.gpu.measuring import measure_channels, measure_kernels, measure_schemes, measure_steps
from hosim.gpu.output_files import write_json
from hosim.gpu.running import run_plans
from hosim.gpu.scheme_runs import RecordingRun
from hosim.gpu.summary_table import table, write_summary
from hosim.validate.kit_files import FORMAT, read_json
from hosim.validate.offload_schemes import SCHEMES, SMALLEST_OFFLOAD

_MODES = ("prefill", "train")
_PARTS = ("bandwidth", "kernels", "schemes", "steps")
_DRY = "tiny"


def main(arguments: Sequence[str]) -> int:
    """Parse, do it, and return the exit code: 0 ok, 1 some runs failed (``meta.json`` says why), 2 wrong usage or bad input."""
    options = _parser().parse_args(arguments)
    try:
        with threads(1 if options.dry_run else None):
            return _do(options, list(arguments))
    except HosimError as error:
        print(f"hosim.gpu: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m hosim.gpu",
        description="Measure a GPU and decoders on it, plan for shares of their memory, run the plans: predictions beside measurements.",
        epilog="Steps that are done already are left alone, so an interrupted command goes on where it stopped.",
    )
    parser.add_argument(
        "what", choices=("all", "measure", "plan", "run", "list"), help="one step, or all; list names the runs and does nothing"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the results")
    parser.add_argument("--only", default=",".join(_PARTS), help="what measure does (default: %(default)s)")
    parser.add_argument("--configs", default="1b,3b", help=f"decoders, of {', '.join(CONFIGS)} (default: %(default)s)")
    parser.add_argument("--modes", default=",".join(_MODES), help="default: %(default)s")
    parser.add_argument("--schemes", default=",".join(SCHEMES), help="default: %(default)s")
    parser.add_argument("--lengths", default="1024", help="tokens of a sequence (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=1, help="sequences in a step (default: 1)")
    parser.add_argument("--iterations", type=int, default=10, help="timed steps, after two warm-up steps (default: 10)")
    parser.add_argument("--profiled", type=int, default=2, help="steps of a scheme in the trace and in the history (default: 2)")
    parser.add_argument("--shares", default="90,75,50", help="budgets of plans, in percent of the resident peak (default: %(default)s)")
    parser.add_argument("--policy", default="hyperoffload", help="what plans (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of weights and tokens (default: 1)")
    parser.add_argument("--device", type=int, default=0, help="index of the CUDA device (default: 0)")
    parser.add_argument("--dry-run", action="store_true", help="everything but the GPU: a tiny decoder on the CPU, small copies")
    return parser


def _do(options: argparse.Namespace, arguments: list[str]) -> int:
    runs, work = _runs(options), _work(options)
    parts, shares = _known(options.only, _PARTS, "--only"), [_percent(text) for text in _listed(options.shares, "--shares")]
    if options.what == "list":
        print("\n".join([*(run.name for run in runs), *(f"{one.name}-step" for one in work)]))  # noqa: T201
        return 0
    if options.out is None:
        raise InputError("expected --out DIR: where the results go")
    failed: list[str] = []
    if options.what in ("all", "measure"):
        failed += _measure(options, arguments, parts, runs, work)
    if options.what in ("all", "plan"):
        _plan(options.out, shares, options.policy)
    if options.what in ("all", "run"):
        device = _device(options)
        _check_same(options.out / "meta.json", device)
        failed += run_plans(device, options.out, options.iterations)
    if options.what != "measure":
        print(table(write_summary(options.out)))  # noqa: T201
    return 1 if failed else 0


def _plan(out: Path, shares: Sequence[int], policy: str) -> None:
    try:
        from hosim.gpu.planning import plan_steps
    except ModuleNotFoundError as error:  # a GPU machine with torch and numpy alone
        raise InputError(
            f"planning needs {error.name}, which is not here: copy the folder to where hosim is installed, run "
            f"`python -m hosim.gpu plan --out {out}` there, and copy it back for `python -m hosim.gpu run`"
        ) from error
    plan_steps(out, shares, policy)


def _measure(
    options: argparse.Namespace, arguments: list[str], parts: Sequence[str], runs: Sequence[RecordingRun], work: Sequence[Work]
) -> list[str]:
    device, out, dry = _device(options), options.out, options.dry_run
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot create the folder: {error.strerror}", source=str(out)) from error
    _check_same(out / "meta.json", device)
    failed: list[str] = []
    _write_meta(options, arguments, device, failed)  # an interrupted recording has it, too
    if "bandwidth" in parts:
        measure_channels(device, out, dry)
    if "kernels" in parts:
        measure_kernels(device, out, dry)
    if "schemes" in parts:
        failed += measure_schemes(device, out, runs, _smallest(options))
    if "steps" in parts:
        failed += measure_steps(device, out, work, options.iterations)
    _write_meta(options, arguments, device, failed)
    return failed


def _smallest(options: argparse.Namespace) -> int:
    """Bytes of the smallest storage that is sent to the host: of the tiny decoder any."""
    return 1 if options.dry_run else SMALLEST_OFFLOAD


def _check_same(path: Path, device: Device) -> None:
    """Raise :class:`InputError` unless what the folder holds is of this device."""
    if not path.exists():
        return
    device_then = read_json(path, ["device"])["device"]
    before = device_then.get("name") if isinstance(device_then, dict) else None
    now = device.describe()["name"]
    if before != now:
        raise InputError(f"the folder holds measurements of {before}, this is {now}: give another folder", source=str(path.parent))


def _write_meta(options: argparse.Namespace, arguments: list[str], device: Device, failed: list[str]) -> None:
    models = {
        config.name: {**asdict(config), "parameters": config.parameters, "layer_parameters": config.layer_parameters, "dtype": "bf16"}
        for config in (CONFIGS[name] for name in _configs(options))
    }
    meta = {
        "format": FORMAT,
        "command": ["python", "-m", "hosim.gpu", *arguments],
        "dry_run": options.dry_run,
        "device": device.describe(),
        "software": _software(),
        "models": models,
        "smallest_offload_bytes": _smallest(options),
        "runs": sorted(path.parent.name for path in options.out.glob("[!.]*/run.json")),
        "failed": failed,
    }
    write_json(options.out / "meta.json", meta)


def _configs(options: argparse.Namespace) -> list[str]:
    return [_DRY] if options.dry_run else _known(options.configs, tuple(CONFIGS), "--configs")


def _lengths(options: argparse.Namespace) -> list[int]:
    lengths = [_positive(text, "--lengths") for text in _listed(options.lengths, "--lengths")]
    return [16 * (position + 1) for position in range(len(lengths))] if options.dry_run else lengths


def _runs(options: argparse.Namespace) -> list[RecordingRun]:
    for name, value in (("--batch", options.batch), ("--iterations", options.iterations), ("--profiled", options.profiled)):
        if value < 1:
            raise InputError(f"expected at least 1, got {value}", source=name)
    schemes, modes = _known(options.schemes, tuple(SCHEMES), "--schemes"), _known(options.modes, _MODES, "--modes")
    return [
        RecordingRun(config, mode, length, scheme, options.batch, options.iterations, options.profiled, options.seed)
        for config in _configs(options)
        for mode in modes
        for length in _lengths(options)
        for scheme in schemes
        if (mode, scheme) != ("prefill", "offload-optimizer")  # prefill has no optimizer
    ]


def _work(options: argparse.Namespace) -> list[Work]:
    return [
        Work(config, mode, length, options.batch, options.seed)
        for config in _configs(options)
        for mode in _known(options.modes, _MODES, "--modes")
        for length in _lengths(options)
    ]


def _device(options: argparse.Namespace) -> Device:
    if options.dry_run:
        return CpuBackend()
    if not torch.cuda.is_available():
        raise InputError("expected a CUDA device, torch finds none (--dry-run runs on the CPU)")
    if not 0 <= options.device < torch.cuda.device_count():
        raise InputError(f"expected an index below {torch.cuda.device_count()}, got {options.device}", source="--device")
    return CudaBackend(options.device)


def _software() -> dict[str, Any]:
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def _listed(text: str, option: str) -> list[str]:
    """What is listed between commas."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise InputError("expected at least one, got nothing", source=option)
    return names


def _known(text: str, known: Sequence[str], option: str) -> list[str]:
    names = _listed(text, option)
    for name in names:
        if name not in known:
            raise InputError(f"expected some of {', '.join(known)}, got {name!r}", source=option)
    return names


def _positive(text: str, option: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise InputError(f"expected whole numbers from 1, got {text!r}", source=option)
    return int(text)


def _percent(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 100:
        raise InputError(f"expected whole numbers from 1 to 100, such as 75,50, got {text!r}", source="--shares")
    return int(text)
