"""``hosim calibrate``: fit a hardware profile to recordings, and test it on recordings it has not
seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hosim.cli.commands import command
from hosim.cli.options import console, print_json
from hosim.cli.progress import progress
from hosim.cli.targets import DATA
from hosim.cli.terminal import say
from hosim.io.options import OPTIONS, Given, Option, declared

if TYPE_CHECKING:
    from hosim.io.importers.recordings import KinetoTrace
    from hosim.validate import Calibration, HeldOut, Measurements

_ALONE = "it fits tables alone"
_OPTIONS = declared(
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
        help="With --kernels: the machine in tables of several.",
    ),
)


@command(*_OPTIONS)
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
    from hosim.io import load_hardware
    from hosim.io.importers.recordings import of_machine, read_kernel_tables
    from hosim.report import of_studies
    from hosim.shipped import find_hardware
    from hosim.validate.fits import fit_kernels, kernels_report, profile_with_kernels

    files, base, output = given.kernels, given.base, given.output
    path = find_hardware(base)
    tables = of_machine(
        [table for file in files for table in read_kernel_tables(file)], given.machine, "--machine"
    )
    fits = fit_kernels(tables, load_hardware(path))
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
    from hosim.errors import InputError
    from hosim.io import load_hardware
    from hosim.report import of_studies
    from hosim.shipped import find_hardware
    from hosim.validate import Measurements, calibrated_profile, learned_part, read_measurements
    from hosim.validate import calibrate as fitted
    from hosim.validate import hold_out as held

    output, hold_out = given.output, given.hold_out
    with progress("reading recordings"):
        recorded = read_measurements(given.traces)
        others = read_measurements(given.predict or []).traces
    base = _base_of(given, recorded)
    machine = load_hardware(find_hardware(base)) if base is not None else None
    for option, asked, lacks in (
        ("--hold-out", hold_out is not None, "a trace: a bandwidth sweep has no iterations"),
        ("--predict", bool(given.predict), "a trace to fit: a bandwidth sweep has no ops"),
    ):
        if asked and not recorded.traces:
            raise InputError(f"{option} needs {lacks}", source=option)
    seen, predictions = recorded, []
    try:
        if hold_out is not None:
            predictions = [held(trace, hold_out) for trace in recorded.traces]
            learned = tuple(learned_part(trace, hold_out) for trace in recorded.traces)
            seen = Measurements(learned, recorded.sweeps)
        calibration = fitted(seen, machine)
    except InputError as error:  # of a recording, by its name
        raise InputError(
            error.message,
            source=recorded.files.get(error.source or "", error.source),
            where=error.where,
        ) from None
    predictions += _predicted(others, seen, calibration, base)
    if output is not None and base is not None:
        name = output.name.removesuffix(".gz").rpartition(".")[0] or output.name
        write(output, calibrated_profile(calibration, read(find_hardware(base), "hardware"), name))
        say(f"wrote {output}")
    data = {**calibration.to_dict(), "held_out": [each.to_dict() for each in predictions]}
    if given.json:
        print_json(data)
    else:
        console().print(of_studies.calibration(data))


def _base_of(given: Given, recorded: Measurements) -> str | None:
    """The profile that is given, or that of the recorded device; ``None`` where none is known and
    none is to be written.
    """
    from hosim.errors import InputError
    from hosim.io import load_hardware
    from hosim.shipped import find_hardware, hardware
    from hosim.validate import base_with_figures, likely_base

    if given.base is not None:
        return str(given.base)
    try:
        chosen = likely_base(recorded.device, hardware())
        say(f"base: {chosen}, the profile of the recorded device")
        return chosen
    except InputError:
        devices = [info for trace in recorded.traces for info in trace.devices.values()]
        found = None
        if devices and not recorded.device:
            profiles = (load_hardware(find_hardware(name)) for name in hardware())
            found = base_with_figures(devices[0], profiles)
        if found is None and given.output is not None:
            raise
    if found is not None:
        say(
            f"base: {found}, the profile with as many multiprocessors as the recorded device and "
            "its memory"
        )
    return found


def _predicted(
    others: Sequence[KinetoTrace], seen: Measurements, calibration: Calibration, base: str | None
) -> list[HeldOut]:
    """Predictions of other recordings. Raises :class:`InputError` without a base."""
    from hosim.base.files import read
    from hosim.errors import InputError
    from hosim.io import hardware_from_dict
    from hosim.shipped import find_hardware
    from hosim.validate import calibrated_profile, learn_from, modelled, predict_trace

    if not others:
        return []
    if base is None:
        raise InputError(
            "needs a profile of the recorded device: name it with --base", source="--predict"
        )
    learned = learn_from(seen.traces, calibration.ways)
    profile = hardware_from_dict(
        calibrated_profile(calibration, read(find_hardware(base), "hardware"), base)
    )
    return [predict_trace(each, learned, modelled(each, calibration, profile)) for each in others]
