"""The ``hosim`` program: its commands, and the one place where errors become exit codes."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

import typer

from hosim.cli import (
    cmd_atlas,
    cmd_baseline,
    cmd_blame,
    cmd_calibrate,
    cmd_check,
    cmd_ci,
    cmd_compare_policies,
    cmd_diff,
    cmd_doctor,
    cmd_fit,
    cmd_fits,
    cmd_frontier,
    cmd_hardware,
    cmd_import,
    cmd_import_kernels,
    cmd_notebooks,
    cmd_pipeline,
    cmd_plan,
    cmd_policies,
    cmd_replay,
    cmd_robustness,
    cmd_runtime,
    cmd_schema,
    cmd_sweep,
    cmd_validate,
    cmd_workload,
    terminal,
)
from hosim.cli.commands import (
    SECTIONS,
    Command,
    Commands,
    Quiet,
    Verbose,
    choose_amount,
    with_amount,
)
from hosim.cli.examples import EXAMPLES, epilog
from hosim.errors import LONGEST, HosimError
from hosim.extensions import with_added
from hosim.plain_text import one_line
from hosim.version import __version__

INTERRUPTED, BUG = 130, 70
"""Exit codes beyond those of the errors: the shell's for Ctrl-C, and EX_SOFTWARE of sysexits.h."""

app = typer.Typer(
    name="hosim",
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    epilog="Exit codes: 0 ok, 1 a gate found a regression, 2 wrong usage or bad input, 3 "
    "infeasible (nothing fits), 70 a bug of hosim, "
    "130 interrupted.",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hosim {__version__}")
        raise typer.Exit


@app.callback()
def _hosim(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Does a model fit in hierarchical memory, how long does it take, and what waits for what? No
    hardware needed.
    """
    choose_amount(quiet, verbose)


_PLAN, _SEARCH, _, _GUARD, _BRING, _LOOK_UP = SECTIONS
_COMMANDS: Mapping[str, tuple[Callable[..., None], str, Sequence[str]]] = {
    "fits": (cmd_fits.fits, _PLAN, EXAMPLES["fits"]),
    "compare-policies": (
        cmd_compare_policies.compare_policies,
        _PLAN,
        EXAMPLES["compare-policies"],
    ),
    "plan": (cmd_plan.plan, _PLAN, EXAMPLES["plan"]),
    "replay": (cmd_replay.replay, _PLAN, EXAMPLES["replay"]),
    "blame": (cmd_blame.blame, _PLAN, EXAMPLES["blame"]),
    "diff": (cmd_diff.diff, _PLAN, EXAMPLES["diff"]),
    "robustness": (cmd_robustness.robustness, _PLAN, EXAMPLES["robustness"]),
    "pipeline": (cmd_pipeline.pipeline, _PLAN, EXAMPLES["pipeline"]),
    "sweep": (cmd_sweep.sweep, _SEARCH, EXAMPLES["sweep"]),
    "frontier": (cmd_frontier.frontier, _SEARCH, EXAMPLES["frontier"]),
    "fit": (cmd_fit.fit, _SEARCH, EXAMPLES["fit"]),
    "atlas": (cmd_atlas.atlas, _SEARCH, EXAMPLES["atlas"]),
    "check": (cmd_check.check, _GUARD, EXAMPLES["check"]),
    "import": (cmd_import.import_, _BRING, EXAMPLES["import"]),
    "import-kernels": (cmd_import_kernels.import_kernels, _BRING, EXAMPLES["import-kernels"]),
    "validate": (cmd_validate.validate, _BRING, EXAMPLES["validate"]),
    "calibrate": (cmd_calibrate.calibrate, _BRING, EXAMPLES["calibrate"]),
    "policies": (cmd_policies.policies, _LOOK_UP, EXAMPLES["policies"]),
    "schema": (cmd_schema.schema, _LOOK_UP, EXAMPLES["schema"]),
    "notebooks": (cmd_notebooks.notebooks, _LOOK_UP, EXAMPLES["notebooks"]),
    "doctor": (cmd_doctor.doctor, _LOOK_UP, EXAMPLES["doctor"]),
}
_GROUPS = (
    ("baseline", cmd_baseline.app, _GUARD),
    ("ci", cmd_ci.app, _GUARD),
    ("workload", cmd_workload.app, _LOOK_UP),
    ("hardware", cmd_hardware.app, _LOOK_UP),
    ("runtime", cmd_runtime.app, _LOOK_UP),
)
for _name, (_command, _section, _examples) in with_added(_COMMANDS, "commands").items():
    app.command(_name, cls=Command, rich_help_panel=_section, epilog=epilog(_examples))(
        with_amount(_command)
    )
for _name, _group, _section in _GROUPS:
    for _known in _group.registered_commands:
        _known.cls, _known.callback = (
            Command,
            with_amount(_known.callback) if _known.callback else None,
        )
    app.add_typer(_group, name=_name, rich_help_panel=_section, epilog=epilog(EXAMPLES[_name]))


def main() -> None:
    """Runs the program and ends the process with the command's exit code, never with a traceback.

    What a reader of stdout that has gone, or a full disk, leaves unwritten is an error. After the
    end Ctrl-C is silent; a second one ends the process at once, whatever it still waits for.
    """
    terminal.prepare()
    os.environ["MPLBACKEND"] = (
        "agg"  # pictures are files here; another name, or none that matplotlib knows, is of no use
    )
    atexit.register(
        signal.signal, signal.SIGINT, signal.SIG_IGN
    )  # runs last: when Python takes its own handlers down
    try:
        code = _run()
    except KeyboardInterrupt:
        terminal.warn("interrupted")
        code = INTERRUPTED
    except BrokenPipeError:
        code = HosimError.exit_code
    except OSError as error:
        terminal.silence()
        told = one_line(f"{error.filename or 'stdout'}: {error.strerror or error}", LONGEST)
        terminal.warn(f"error: {told}")
        code = HosimError.exit_code
    except Exception as error:
        if os.environ.get("HOSIM_DEBUG"):
            raise
        why = one_line(f"{type(error).__name__}: {error}", LONGEST)
        terminal.warn(
            f"error: internal error of hosim: {why}; HOSIM_DEBUG=1 shows where, SECURITY.md says "
            "how to report it"
        )
        code = BUG
    signal.signal(signal.SIGINT, lambda *_: signal.signal(signal.SIGINT, lambda *_: os._exit(code)))
    sys.exit(code)


def _run() -> int:
    try:
        app(prog_name="hosim")
    except SystemExit as ended:
        if ended.code == INTERRUPTED:  # typer ended it
            raise KeyboardInterrupt from None
        terminal.flush()
        return ended.code if isinstance(ended.code, int) else 0
    return 0
