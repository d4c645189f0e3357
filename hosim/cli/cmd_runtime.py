"""``hosim runtime list``, ``show`` and ``fit``."""

from __future__ import annotations

from pathlib import Path

import typer

from hosim.cli.answers import show_answer
from hosim.cli.commands import NAMES, command
from hosim.cli.progress import progress
from hosim.cli.targets import DATA
from hosim.cli.terminal import say, warn
from hosim.io.options import REQUIRED, Given, Option, declared

app = typer.Typer(
    help="List the shipped runtimes, show one, or fit one to logs.", no_args_is_help=True
)

_NAME = Option(
    "name",
    default=REQUIRED,
    argument=True,
    metavar="NAME",
    help="A runtime: a path, or a shipped name.",
    completes=NAMES["runtime"],
)

_FIT = (
    Option(
        "log",
        of=Path,
        default=REQUIRED,
        argument=True,
        metavar="LOG",
        help="Runs: of each a line 'run WORKLOAD -H HARDWARE [-p POLICY]' and lines of its log, or "
        "of a page of a server's metrics.",
    ),
    Option(
        "base",
        default=REQUIRED,
        metavar="NAME",
        help="The runtime that supplies what the log lacks: a path, or a shipped name.",
        completes=NAMES["runtime"],
    ),
    Option(
        "output",
        of=Path,
        flags=("--output", "-o"),
        endings=DATA,
        help="Where to write the runtime: .yaml or .json.",
    ),
)


@app.command("list")
@command(*declared("detail json"))
def list_(given: Given) -> None:
    """List the shipped runtimes."""
    from hosim import shipped
    from hosim.io.runtimes import runtime_named, runtime_to_dict
    from hosim.report.listed import runtimes, runtimes_in_short

    found = [runtime_named(name) for name in shipped.runtimes()]
    answer = runtimes_in_short(found, (("hosim runtime show vllm", "its figures"),))
    data = {"runtimes": [runtime_to_dict(each) for each in found]}
    show_answer(answer, given, lambda: data, lambda: [runtimes(found)])


@app.command()
@command(*declared("name detail json", _NAME))
def show(given: Given) -> None:
    """Show a runtime: what it sets, and its figures.

    --detail shows the source of each.
    """
    from hosim.io.runtimes import runtime_named, runtime_to_dict
    from hosim.report.listed import runtime, runtime_in_short

    found = runtime_named(given.name)
    data = runtime_to_dict(found)
    answer = runtime_in_short(found, data)
    show_answer(answer, given, lambda: data, lambda: [runtime(found, data)])


@app.command()
@command(*declared("log base output detail json", *_FIT))
def fit(given: Given) -> None:
    """Fit a runtime to lines of your own logs."""
    from hosim.api import runtime_fit
    from hosim.base.files import write
    from hosim.io.runtimes import runtime_to_dict
    from hosim.report.listed import runtime, runtime_in_short

    output = given.output
    name = "mine" if output is None else output.name.removesuffix(".gz").rpartition(".")[0]
    with progress("replaying runs"):
        found = runtime_fit(given.log, given.base, name)
    for warning in found.warnings:
        warn(warning)
    data = runtime_to_dict(found.runtime)
    if output is not None:
        write(output, data)
        say(f"wrote {output}")
    fitted = found.runtime, data, found.left, found.moved
    said = {
        "runtime": data,
        "left": dict(found.left),
        "moved": {key: list(values) for key, values in found.moved.items()},
        "warnings": list(found.warnings),
    }
    show_answer(runtime_in_short(*fitted), given, lambda: said, lambda: [runtime(*fitted)])
