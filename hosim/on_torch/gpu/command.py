"""The command line of the kit."""

import argparse
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import torch

from hosim.base.new_processes import safe_path
from hosim.errors import HosimError, InputError
from hosim.on_torch.gpu.attempts import Attempts, noted_failures
from hosim.on_torch.gpu.captured_step import Work, threads
from hosim.on_torch.gpu.functional_decoder import CONFIGS
from hosim.on_torch.gpu.gpu_seam import CpuBackend, CudaBackend, Device
from hosim.on_torch.gpu.measuring import measure_channels, measure_kernels, measure_step
from hosim.on_torch.gpu.output_files import say, write_json
from hosim.on_torch.gpu.running import run_plans, table, write_summary
from hosim.on_torch.gpu.scheme_runs import RecordingRun, record_run
from hosim.validate.kit import FORMAT, SCHEMES, SMALLEST_OFFLOAD, read_json

_MODES = ("prefill", "train")
_PARTS = ("bandwidth", "kernels", "schemes", "steps")
_DRY = "tiny"


def main(arguments: Sequence[str]) -> int:
    """Parse, do it, and return the exit code: 0 ok, 1 some work failed (see ``summary.json``), 2
    wrong usage or bad input, 130 Ctrl-C.
    """
    since_s = time.monotonic()
    options = _parser().parse_args(arguments)
    try:
        with safe_path(), threads(1 if options.dry_run else None):
            return _do(options, list(arguments), since_s)
    except HosimError as error:
        print(f"hosim.gpu: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    except KeyboardInterrupt:
        print("hosim.gpu: interrupted; the same command goes on where it stopped", file=sys.stderr)  # noqa: T201
        return 130


_ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "what": {
        "choices": ("all", "measure", "plan", "run", "list"),
        "help": "one step, or all; list names the runs and does nothing",
    },
    "--out": {"type": Path, "metavar": "DIR", "help": "folder of the results"},
    "--only": {"default": ",".join(_PARTS), "help": "what measure does (default: %(default)s)"},
    "--configs": {
        "default": "1b,3b",
        "help": f"decoders, of {', '.join(CONFIGS)} (default: %(default)s)",
    },
    "--modes": {"default": ",".join(_MODES), "help": "default: %(default)s"},
    "--schemes": {"default": ",".join(SCHEMES), "help": "default: %(default)s"},
    "--lengths": {"default": "1024", "help": "tokens of a sequence (default: %(default)s)"},
    "--batch": {"type": int, "default": 1, "help": "sequences in a step (default: 1)"},
    "--iterations": {
        "type": int,
        "default": 10,
        "help": "timed steps, after two warm-up steps (default: 10)",
    },
    "--profiled": {
        "type": int,
        "default": 2,
        "help": "steps of a scheme in the trace and in the history (default: 2)",
    },
    "--shares": {
        "default": "90,75,50",
        "help": "budgets of plans, in percent of the resident peak (default: %(default)s)",
    },
    "--policy": {"default": "hyperoffload", "help": "what plans (default: %(default)s)"},
    "--effort": {
        "type": float,
        "help": "the policy's parameter effort: 0 plans in seconds, the policy's own in minutes "
        "(default: 0 with all, its own with plan)",
    },
    "--seed": {"type": int, "default": 1, "help": "seed of weights and tokens (default: 1)"},
    "--minutes": {
        "type": float,
        "metavar": "N",
        "help": "begin nothing after so many minutes; the same command goes on",
    },
    "--device": {"type": int, "default": 0, "help": "index of the CUDA device (default: 0)"},
    "--dry-run": {
        "action": "store_true",
        "help": "everything but the GPU: a tiny decoder on the CPU, small copies",
    },
}
"""The arguments of the command, with what argparse is told of each."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m hosim.gpu",
        description="Measure a GPU and decoders on it, plan for shares of their memory, run the "
        "plans: predictions beside measurements.",
        epilog="Steps that are done already are left alone, so an interrupted command goes on "
        "where it stopped.",
    )
    for name, told in _ARGUMENTS.items():
        parser.add_argument(name, **told)
    return parser


def _do(options: argparse.Namespace, arguments: list[str], since_s: float) -> int:
    runs, work = _runs(options), _work(options)
    parts, shares = (
        _known(options.only, _PARTS, "--only"),
        [_percent(text) for text in _listed(options.shares, "--shares")],
    )
    if options.what == "list":
        print("\n".join([*(run.name for run in runs), *(f"{one.name}-step" for one in work)]))  # noqa: T201
        return 0
    if options.out is None:
        raise InputError("expected --out DIR: where the results go")
    if options.minutes is not None and not options.minutes > 0:
        raise InputError(f"expected more than 0, got {options.minutes}", source="--minutes")
    attempts = Attempts(options.out, since_s, options.minutes)
    try:
        if options.what in ("all", "measure"):
            _measure(options, arguments, parts, runs, work, attempts)
        if options.what in ("all", "plan") and attempts.may_begin("plan"):
            _plan(
                options.out,
                shares,
                options.policy,
                options.effort,
                attempts,
                quick=options.what == "all",
            )
        if options.what in ("all", "run") and attempts.may_begin("run"):
            device = _device(options)
            _check_same(options.out / "meta.json", device)
            run_plans(device, options.out, options.iterations, attempts)
    finally:
        _summarize(options)
    return 1 if attempts.failed else 0


def _summarize(options: argparse.Namespace) -> None:
    """Write and print the summary of what there is, also after an error, which is the one to
    tell.
    """
    is_failing = sys.exc_info()[0] is not None
    try:
        if (options.out / "meta.json").exists():
            rows, failed = write_summary(options.out), noted_failures(options.out)
            if options.what != "measure" or failed:
                print(table(rows, failed))  # noqa: T201
    except HosimError:
        if not is_failing:
            raise


def _plan(
    out: Path,
    shares: Sequence[int],
    policy: str,
    effort: float | None,
    attempts: Attempts,
    *,
    quick: bool,
) -> None:
    """Plan; ``quick`` is without effort unless some is asked for, while a GPU waits."""
    try:
        from hosim.on_torch.gpu.planning import plan_steps
        from hosim.policies import policy_named
    except ModuleNotFoundError as error:  # a GPU machine with torch and numpy alone
        raise InputError(
            f"planning needs {error.name}, which is not here: copy the folder to where hosim is "
            "installed, run "
            f"`python -m hosim.gpu plan --out {out}` there, and copy it back for `python -m "
            "hosim.gpu run`"
        ) from error
    if effort is None and quick and "effort" in policy_named(policy).settings:
        effort = 0.0
    plan_steps(out, shares, policy, {} if effort is None else {"effort": effort}, attempts)


def _measure(
    options: argparse.Namespace,
    arguments: list[str],
    parts: Sequence[str],
    runs: Sequence[RecordingRun],
    work: Sequence[Work],
    attempts: Attempts,
) -> None:
    device, out, dry = _device(options), options.out, options.dry_run
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot create the folder: {error.strerror}", source=str(out)) from error
    _check_same(out / "meta.json", device)
    _write_meta(options, arguments, device)  # an interrupted recording has it, too

    def unless_there(name: str, path: Path, measure: Callable[[], None]) -> None:
        if path.exists():
            say(f"{name}: there already")
        else:
            attempts.do(name, measure, device)

    if "bandwidth" in parts:
        unless_there(
            "bandwidth", out / "bandwidth.json", partial(measure_channels, device, out, dry)
        )
    if "kernels" in parts:
        unless_there("kernels", out / "kernels.csv", partial(measure_kernels, device, out, dry))
    for run in runs if "schemes" in parts else ():
        record = partial(
            record_run, device, CONFIGS[run.config], run, out, smallest_offload=_smallest(options)
        )
        unless_there(run.name, out / run.name / "run.json", record)
    for one in work if "steps" in parts else ():
        name = f"{one.name}-step"
        unless_there(
            name,
            out / name / "run.json",
            partial(measure_step, device, out / name, one, options.iterations),
        )
    _write_meta(options, arguments, device)


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
        raise InputError(
            f"the folder holds measurements of {before}, this is {now}: give another folder",
            source=str(path.parent),
        )


def _write_meta(options: argparse.Namespace, arguments: list[str], device: Device) -> None:
    models = {
        config.name: {
            **asdict(config),
            "parameters": config.parameters,
            "layer_parameters": config.layer_parameters,
            "dtype": "bf16",
        }
        for config in (CONFIGS[name] for name in _configs(options))
    }
    meta = {
        "format": FORMAT,
        "command": ["python", "-m", "hosim.gpu", *arguments],
        "dry_run": options.dry_run,
        "device": device.describe(),
        "software": {
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "hip": torch.version.hip,
            "numpy": numpy.__version__,
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.machine()}",
        },
        "models": models,
        "smallest_offload_bytes": _smallest(options),
        "runs": sorted(path.parent.name for path in options.out.glob("[!.]*/run.json")),
    }
    write_json(options.out / "meta.json", meta)


def _configs(options: argparse.Namespace) -> list[str]:
    return [_DRY] if options.dry_run else _known(options.configs, tuple(CONFIGS), "--configs")


def _lengths(options: argparse.Namespace) -> list[int]:
    lengths = [_positive(text, "--lengths") for text in _listed(options.lengths, "--lengths")]
    return [16 * (position + 1) for position in range(len(lengths))] if options.dry_run else lengths


def _runs(options: argparse.Namespace) -> list[RecordingRun]:
    for name, value in (
        ("--batch", options.batch),
        ("--iterations", options.iterations),
        ("--profiled", options.profiled),
    ):
        if value < 1:
            raise InputError(f"expected at least 1, got {value}", source=name)
    schemes, modes = (
        _known(options.schemes, tuple(SCHEMES), "--schemes"),
        _known(options.modes, _MODES, "--modes"),
    )
    return [
        RecordingRun(
            config,
            mode,
            length,
            scheme,
            options.batch,
            options.iterations,
            options.profiled,
            options.seed,
        )
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
        raise InputError(
            f"expected an index below {torch.cuda.device_count()}, got {options.device}",
            source="--device",
        )
    return CudaBackend(options.device)


def _listed(text: str, option: str) -> list[str]:
    """Return the items listed between commas."""
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
        raise InputError(
            f"expected whole numbers from 1 to 100, such as 75,50, got {text!r}", source="--shares"
        )
    return int(text)
