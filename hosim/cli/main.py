"""The ``hosim`` program: its commands, and the one place where errors become exit codes."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from hosim.cli import (
    cmd_baseline,
    cmd_blame,
    cmd_calibrate,
    cmd_check,
    cmd_compare_policies,
    cmd_diff,
    cmd_export,
    cmd_fit,
    cmd_frontier,
    cmd_hardware,
    cmd_import,
    cmd_import_kernels,
    cmd_plan,
    cmd_policies,
    cmd_replay,
    cmd_robustness,
    cmd_schema,
    cmd_sweep,
    cmd_validate,
    cmd_workload,
    terminal,
)
from hosim.errors import LONGEST, HosimError
from hosim.plain_text import one_line
from hosim.version import __version__

INTERRUPTED, BUG = 130, 70
"""Exit codes beyond those of the errors: the shell's for Ctrl-C, and EX_SOFTWARE of sysexits.h."""

_WrongUsage: type[Exception] = typer.BadParameter.__bases__[0]  # typer does not name it


def _in_one_line(error: Any) -> Any:
    """An error of wrong usage whose message is one line, however long or odd the argument that it quotes."""
    if error.ctx is None or error.message != error.ctx.get_help():  # without any argument, it is the help
        error.message = one_line(error.message, LONGEST - len("Error: "))
    return error


class _Commands(TyperGroup):
    """The commands; an error of hosim becomes one line on stderr and an exit code."""

    def make_context(self, *args: Any, **extra: Any) -> Any:
        """Read the arguments; a message about wrong usage is one line."""
        try:
            return super().make_context(*args, **extra)
        except _WrongUsage as error:
            raise _in_one_line(error) from None

    def invoke(self, ctx: Any) -> Any:
        """Run the command; :class:`HosimError` ends it with a line and an exit code."""
        try:
            return super().invoke(ctx)
        except _WrongUsage as error:
            raise _in_one_line(error) from None
        except HosimError as error:
            terminal.say(f"error: {error}")
            raise typer.Exit(error.exit_code) from None
        except BrokenPipeError:  # nobody reads on; typer would end with 1, which stands for a gate
            terminal.silence()
            raise typer.Exit(HosimError.exit_code) from None


app = typer.Typer(
    name="hosim",
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    epilog="Exit codes: 0 ok, 1 a gate found a regression, 2 wrong usage or bad input, 3 infeasible (nothing fits), 70 a bug of hosim, "
    "130 interrupted.",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hosim {__version__}")
        raise typer.Exit


@app.callback()
def _hosim(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Does a model fit in hierarchical memory, how long does it take, and what waits for what? No hardware needed."""


app.command("compare-policies")(cmd_compare_policies.compare_policies)
app.command("plan")(cmd_plan.plan)
app.command("replay")(cmd_replay.replay)
app.command("robustness")(cmd_robustness.robustness)
app.command("sweep", epilog=cmd_sweep.EXAMPLES)(cmd_sweep.sweep)
app.command("frontier", epilog=cmd_frontier.EXAMPLES)(cmd_frontier.frontier)
app.command("fit", epilog=cmd_fit.EXAMPLES)(cmd_fit.fit)
app.command("blame", epilog=cmd_blame.EXAMPLES)(cmd_blame.blame)
app.command("diff", epilog=cmd_diff.EXAMPLES)(cmd_diff.diff)
app.command("check")(cmd_check.check)
app.add_typer(cmd_baseline.app, name="baseline")
app.command("import")(cmd_import.import_)
app.command("import-kernels")(cmd_import_kernels.import_kernels)
app.command("export", epilog=cmd_export.EXAMPLES)(cmd_export.export)
app.command("validate")(cmd_validate.validate)
app.command("calibrate")(cmd_calibrate.calibrate)
app.add_typer(cmd_workload.app, name="workload")
app.add_typer(cmd_hardware.app, name="hardware")
app.command("policies")(cmd_policies.policies)
app.command("schema")(cmd_schema.schema)


def main() -> None:
    """Runs the program and ends the process with the command's exit code, never with a traceback.

    What a reader of stdout that has gone, or a full disk, leaves unwritten is an error. After the end Ctrl-C is silent; a second one ends
    the process at once, whatever it still waits for.
    """
    terminal.prepare()
    os.environ["MPLBACKEND"] = "agg"  # pictures are files here; another name, or none that matplotlib knows, is of no use
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)  # runs last: when Python takes its own handlers down
    try:
        code = _run()
    except KeyboardInterrupt:
        terminal.say("interrupted")
        code = INTERRUPTED
    except BrokenPipeError:
        code = HosimError.exit_code
    except OSError as error:
        terminal.silence()
        told = one_line(f"{error.filename or 'stdout'}: {error.strerror or error}", LONGEST)
        terminal.say(f"error: {told}")
        code = HosimError.exit_code
    except Exception as error:
        if os.environ.get("HOSIM_DEBUG"):
            raise
        why = one_line(f"{type(error).__name__}: {error}", LONGEST)
        terminal.say(f"error: internal error of hosim: {why}; HOSIM_DEBUG=1 shows where, SECURITY.md says how to report it")
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
