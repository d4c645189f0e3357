"""The commands that bring models and measurements: ``hosim import`` and ``import-kernels`` convert
files of other programs, ``validate`` compares a replay with a recording, and ``calibrate`` fits a
hardware profile to recordings and tests it on recordings it has not seen.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import typer

from hosim import io, report
from hosim import validate as validating
from hosim.cli.answers import show_answer
from hosim.cli.commands import command
from hosim.cli.options import console, print_json, write_page
from hosim.cli.progress import progress
from hosim.cli.targets import DATA
from hosim.cli.terminal import say
from hosim.errors import InputError
from hosim.io.importers import recordings
from hosim.io.options import OPTIONS, REQUIRED, Given, Option, declared, refuse_others
from hosim.report import answers, listed, of_studies

_SOURCES = (
    "A workload or its spec, the name of one or of a model, or another tool's file: torch.export "
    "(.pt2), ONNX, MindIR, PyTorch trace or "
    "profile, Chakra, inductor graph, hyper-parallel trace, G10."
)
_WORKLOAD = declared(
    "source output dim execution_trace",
    Option("source", of=Path, default=REQUIRED, argument=True, metavar="SOURCE", help=_SOURCES),
    Option(
        "output",
        of=Path,
        default=REQUIRED,
        flags=("--output", "-o"),
        endings=DATA,
        help="Where to write the workload: .json, .json.gz or .yaml.",
    ),
    Option(
        "dim",
        of=list[str],
        metavar="NAME=SIZE",
        excludes={"execution_trace": "they are of different formats"},
        help="Size of a free dimension of a torch.export program or an ONNX model; may be "
        "repeated.",
    ),
)


@command(*_WORKLOAD)
def import_(given: Given) -> None:
    """Convert a model's graph to a workload file."""
    from hosim.notes import notes

    source, output, execution_trace = given.source, given.output, given.execution_trace
    sizes = dict(map(_size, given.dim or ()))
    with progress(f"reading {source}"):
        if execution_trace is not None:
            graph = recordings.import_kineto(source, execution_trace)
        elif sizes or source.exists():
            graph = io.load_any(source, sizes)
        else:
            graph = io.load_named(str(source))
    io.save_workload(graph, output)
    say(f"wrote {output}: {listed.workload_line(graph)}")
    for each in notes(graph):
        say(str(each))


def _size(text: str) -> tuple[str, int]:
    """``batch=4`` as a name and a size."""
    name, _, size = text.rpartition("=")
    if not name or not size.isdecimal() or not size.isascii() or len(size) > 18:
        raise InputError(
            f"expected a name and a whole number of at least 0, such as batch=4, got {text!r}",
            source="--dim",
        )
    return name, int(size)


_KERNELS = (
    Option(
        "sources",
        of=list[Path],
        default=REQUIRED,
        argument=True,
        metavar="TABLE...",
        help="CSV or Parquet files: those of aiconfigurator or LLMServingSim, or hosim's own.",
    ),
    Option(
        "output",
        of=Path,
        default=REQUIRED,
        flags=("--output", "-o"),
        endings=(".csv",),
        help="Where to write the table: .csv or .csv.gz.",
    ),
    Option("machine", metavar="NAME", help="Keep the times of this machine alone."),
    Option(
        "model",
        metavar="MODEL",
        help="The model whose layers files of LLMServingSim have: llama-3.1-70b:tensor=4.",
    ),
)


def _reader(model: str | None) -> Callable[[Path], list[recordings.KernelTable]]:
    """The function that reads a file: a table of kernels, or of the layers of a model."""
    if model is None:
        return lambda source: recordings.read_kernel_tables(source, say)
    recipe = io.load_named(model).meta.get("builder")
    if not isinstance(recipe, Mapping):
        raise InputError(f"expected a model of a builder, got {model}", source="--model")
    return lambda source: recordings.read_kernel_tables(source, say, recipe)


@command(*_KERNELS)
def import_kernels(given: Given) -> None:
    """Convert measured kernel times to a table of a profile."""
    from hosim.base.files import compressed, write_bytes

    sources, output, machine = given.sources, given.output, given.machine
    read = _reader(given.model)
    tables = recordings.of_machine(
        [table for source in sources for table in read(source)], machine, "--machine"
    )
    text = recordings.tables_text(tables).encode()
    write_bytes(output, compressed(text) if output.name.endswith(".gz") else text)
    for table in tables:
        named = ", ".join(
            part
            for part in (table.machine, table.kernel, table.dtype, table.distribution)
            if part not in ("", "uniform")
        )
        say(f"{named}: {len(table):,} times")
    say(f"wrote {output}")


_VALIDATE_OPTIONS = declared(
    "traces html device max_error detail json",
    Option(
        "traces",
        of=list[Path],
        default=REQUIRED,
        argument=True,
        metavar="TRACE...",
        help="A trace of PyTorch's profiler, an SQLite export of Nsight Systems, a "
        "torch.cuda.memory snapshot, or a folder that "
        "hosim.record or python -m hosim.gpu wrote. Several traces are ranks of one program.",
    ),
    replace(OPTIONS["html"], help="Write a report with pictures, in one file."),
    Option(
        "device",
        of=int,
        metavar="N",
        least=0,
        help="The device whose memory to replay.  [default: the busiest]",
    ),
    Option(
        "max_error",
        metavar="SHARE",
        help="Exit with 1 if the recording is not validated, or if makespan or starts are off by "
        "more than this share of it (1%).",
    ),
)
_SINGLE = "works for a single recording, not for {}: leave it out"


@command(*_VALIDATE_OPTIONS)
def validate(given: Given) -> None:
    """Compare a replay with a recording of a real GPU.

    Times: from the recorded durations of launches, kernels, copies, waits and synchronisations,
    hosim predicts when each kernel and copy starts, and says whether the recording is validated, or
    which spans differ and why. Memory: it replays allocations and frees in its
    ledger and its caching allocator, in the host's program order. For a folder that 'python -m
    hosim.gpu' wrote, it predicts each offload scheme from the resident run and the bandwidth sweep,
    and compares hosim's plans with their runs. Several recordings are ranks of one program:
    their collectives wait for each other. --detail prints every figure.
    """
    from hosim.units import parse_share

    bound = parse_share(given.max_error) if given.max_error is not None else None
    traces, html = given.traces, given.html
    if len(traces) > 1:
        refuse_others(
            _VALIDATE_OPTIONS,
            vars(given),
            "traces max_error json",
            _SINGLE.format("ranks"),
            "validate",
        )
        _ranks(traces, bound, given.json)
        return
    (trace,) = traces
    if os.path.isdir(trace):
        if not (trace / "trace.json.gz").is_file():
            refuse_others(
                _VALIDATE_OPTIONS,
                vars(given),
                "traces json",
                _SINGLE.format("a folder"),
                str(trace),
            )
            _schemes(trace, given.json)
            return
        trace /= "trace.json.gz"  # what hosim.record writes
    from hosim.validate.replay_verdicts import complaint

    with progress(f"replaying {trace}"):
        validation = validating.validate(trace, given.device)
    data = validating.validation_to_dict(validation)
    if html is not None:
        write_page(
            html,
            report.validation_page(
                data, validation.drawn_ops, validation.drawn_memory, validation.drawn_spans
            ),
        )
    tables = of_studies.validation
    show_answer(answers.validation_answer(data), given, lambda: data, lambda: [tables(data)])
    if bound is not None and (said := complaint(validation.verdict, bound)):
        say(f"{trace}: {said}")
        raise typer.Exit(1)


def _ranks(traces: list[Path], bound: float | None, json: bool) -> None:

    with progress(f"replaying {len(traces)} ranks"):
        read = [validating.read_trace(trace) for trace in traces]
        for path, recorded in zip(traces, read, strict=True):
            validating.refuse_damage(recorded, str(path))
        ranks = validating.replay_ranks(read)
    data = validating.ranks_to_dict(ranks)
    if json:
        print_json(data)
    else:
        console().print(of_studies.ranks_table(data))
    said = []
    if bound is not None:
        complaints = (
            (trace, validating.rank_complaint(rank, bound))
            for trace, rank in zip(traces, ranks, strict=True)
        )
        said = [f"{trace}: {line}" for trace, line in complaints if line]
    for line in said:
        say(line)
    if said:
        raise typer.Exit(1)


_NAMED = 3
"""The number of files of a folder that are named."""


def _holds(folder: Path) -> str:
    from hosim.plain_text import counted

    names = sorted(path.name for path in folder.iterdir())
    if not names:
        return "this one is empty"
    more = f" and {counted(len(names) - _NAMED, 'other file')}" if len(names) > _NAMED else ""
    return f"this one has {', '.join(names[:_NAMED])}{more}: name a recording in it"


def _schemes(folder: Path, json: bool) -> None:
    from hosim.base.files.formats import unexpected

    expected = "a folder that python -m hosim.gpu has written, with its meta.json"
    if not (folder / "meta.json").is_file():
        raise unexpected(str(folder), expected) or InputError(
            f"expected {expected}; {_holds(folder)}", source=str(folder)
        )
    with progress(f"replaying {folder}"):
        data = validating.validate_schemes(folder)
    if json:
        print_json(data)
    else:
        console().print(of_studies.schemes(data))


_ALONE = "it fits tables alone"
_CALIBRATE_OPTIONS = declared(
    "traces output base hold_out predict kernels machine json",
    Option(
        "traces",
        of=list[Path],
        unless=("kernels",),
        argument=True,
        metavar="TRACE...",
        help="Traces of the PyTorch profiler, SQLite exports of Nsight Systems, or what python -m "
        "hosim.gpu wrote (a folder, or its "
        "bandwidth.json); all from one device.",
    ),
    replace(OPTIONS["output"], endings=DATA, help="Where to write the profile: .yaml or .json."),
    Option(
        "base",
        metavar="HW",
        help="The profile that supplies what recordings lack: capacities and peaks.  [default: "
        "the shipped profile of the recorded "
        "device]",
    ),
    Option(
        "hold_out",
        of=float,
        metavar="SHARE",
        help="Fit only the first iterations of each trace, and predict the last ones: this share "
        "of them, such as 0.5.",
    ),
    Option(
        "predict",
        of=list[Path],
        metavar="TRACE",
        help="Predict this trace, of another model on the same device, by the fitted profile.",
    ),
    Option(
        "kernels",
        of=list[Path],
        metavar="TABLE",
        needs=("base",),
        excludes={"traces": _ALONE, "predict": _ALONE, "hold_out": _ALONE},
        help="Fit the constants of kernels to this table of measured times instead; may be "
        "repeated.",
    ),
    Option(
        "machine",
        metavar="NAME",
        needs=("kernels",),
        help="The machine to fit, if the tables of --kernels have several.",
    ),
)


@command(*_CALIBRATE_OPTIONS)
def calibrate(given: Given) -> None:
    """Fit a hardware profile to recordings of a real device.

    It fits channels by direction, size and kind of host memory; the launch time; and the efficiency
    of ops by kind and dtype, if shapes were recorded. Every figure comes with its interval, its
    number of samples and its residuals. With --kernels it fits the constants of the base profile's
    kernels to tables of measured times.
    """
    if given.kernels:
        _fit_kernels(given)
    else:
        _fit_traces(given)


def _fit_kernels(given: Given) -> None:
    from hosim.base.files import read, write
    from hosim.shipped import find_hardware
    from hosim.validate.fits import fit_kernels, kernels_report, profile_with_kernels

    files, base, output = given.kernels, given.base, given.output
    path = find_hardware(base)
    fits = fit_kernels(
        recordings.of_machine(
            [table for file in files for table in recordings.read_kernel_tables(file)],
            given.machine,
            "--machine",
        ),
        io.load_hardware(path),
    )
    if output is not None:
        stem = output.name.removesuffix(".gz").rpartition(".")[0] or output.name
        write(
            output,
            profile_with_kernels(fits, read(path, "hardware"), stem, [file.name for file in files]),
        )
        say(f"wrote {output}")
    data = kernels_report(fits, [file.name for file in files], base)
    if given.json:
        print_json(data)
    else:
        console().print(of_studies.kernels(data))


def _fit_traces(given: Given) -> None:
    from hosim.base.files import read, write
    from hosim.shipped import find_hardware

    output, hold_out = given.output, given.hold_out
    with progress("reading recordings"):
        recorded = validating.read_measurements(given.traces)
        others = validating.read_measurements(given.predict or []).traces
    base = _base_of(given, recorded)
    machine = io.load_hardware(find_hardware(base)) if base is not None else None
    for option, asked, lacks in (
        ("--hold-out", hold_out is not None, "a trace: a bandwidth sweep has no iterations"),
        ("--predict", bool(given.predict), "a trace to fit: a bandwidth sweep has no ops"),
    ):
        if asked and not recorded.traces:
            raise InputError(f"{option} needs {lacks}", source=option)
    seen, predictions = recorded, []
    try:
        if hold_out is not None:
            predictions = [validating.hold_out(trace, hold_out) for trace in recorded.traces]
            seen = validating.Measurements(
                tuple(validating.learned_part(trace, hold_out) for trace in recorded.traces),
                recorded.sweeps,
            )
        calibration = validating.calibrate(seen, machine)
    except InputError as error:  # of a recording, by its name
        raise InputError(
            error.message,
            source=recorded.files.get(error.source or "", error.source),
            where=error.where,
        ) from None
    predictions += _predicted(others, seen, calibration, base)
    if output is not None and base is not None:
        name = output.name.removesuffix(".gz").rpartition(".")[0] or output.name
        write(
            output,
            validating.calibrated_profile(calibration, read(find_hardware(base), "hardware"), name),
        )
        say(f"wrote {output}")
    data = {**calibration.to_dict(), "held_out": [each.to_dict() for each in predictions]}
    if given.json:
        print_json(data)
    else:
        console().print(of_studies.calibration(data))


def _base_of(given: Given, recorded: validating.Measurements) -> str | None:
    """The profile that is given, or that of the recorded device; ``None`` where none is known and
    none is to be written.
    """
    from hosim.shipped import find_hardware, hardware

    if given.base is not None:
        return str(given.base)
    try:
        chosen = validating.likely_base(recorded.device, hardware())
        say(f"base: {chosen}, the profile of the recorded device")
        return chosen
    except InputError:
        devices = [info for trace in recorded.traces for info in trace.devices.values()]
        found = None
        if devices and not recorded.device:
            profiles = (io.load_hardware(find_hardware(name)) for name in hardware())
            found = validating.base_with_figures(devices[0], profiles)
        if found is None and given.output is not None:
            raise
    if found is not None:
        say(
            f"base: {found}, the profile with as many multiprocessors as the recorded device and "
            "its memory"
        )
    return found


def _predicted(
    others: Sequence[recordings.KinetoTrace],
    seen: validating.Measurements,
    calibration: validating.Calibration,
    base: str | None,
) -> list[validating.HeldOut]:
    """Predictions of other recordings. Raises :class:`InputError` without a base."""
    from hosim.base.files import read
    from hosim.shipped import find_hardware

    if not others:
        return []
    if base is None:
        raise InputError(
            "needs a profile of the recorded device: name it with --base", source="--predict"
        )
    learned = validating.learn_from(seen.traces, calibration.ways)
    profile = io.hardware_from_dict(
        validating.calibrated_profile(calibration, read(find_hardware(base), "hardware"), base)
    )
    return [
        validating.predict_trace(each, learned, validating.modelled(each, calibration, profile))
        for each in others
    ]
