"""``hosim runtime list``, ``show`` and ``fit``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hosim.cli.options import Json, console, print_json, runtime_names
from hosim.cli.progress import progress
from hosim.cli.targets import DATA, written
from hosim.cli.terminal import say, warn

app = typer.Typer(
    help="List the shipped runtimes, show one, or fit one to logs.", no_args_is_help=True
)

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="A runtime: a path, or a shipped name.", autocompletion=runtime_names
    ),
]

Log = Annotated[
    Path,
    typer.Argument(
        metavar="LOG",
        help="Runs: of each a line 'run WORKLOAD -H HARDWARE [-p POLICY]' and lines of its log.",
    ),
]
Base = Annotated[
    str,
    typer.Option(
        "--base",
        metavar="NAME",
        help="The runtime that supplies what the log lacks: a path, or a shipped name.",
        autocompletion=runtime_names,
    ),
]
Output = Annotated[
    Path | None,
    written("--output", "-o", says="Where to write the runtime: .yaml or .json.", endings=DATA),
]


@app.command("list")
def list_(json: Json = False) -> None:
    """List the shipped runtimes."""
    from hosim import shipped
    from hosim.io.runtimes import runtime_named, runtime_to_dict
    from hosim.report.listed import runtimes

    found = [runtime_named(name) for name in shipped.runtimes()]
    if json:
        print_json({"runtimes": [runtime_to_dict(runtime) for runtime in found]})
    else:
        console().print(runtimes(found))


@app.command()
def show(name: Name, json: Json = False) -> None:
    """Show a runtime: what it sets, and its figures with spread and source."""
    from hosim.io.runtimes import runtime_named, runtime_to_dict
    from hosim.report.listed import runtime

    found = runtime_named(name)
    if json:
        print_json(runtime_to_dict(found))
    else:
        console().print(runtime(found, runtime_to_dict(found)))


@app.command()
def fit(
    log: Log,
    base: Base,
    output: Output = None,
    json: Json = False,
) -> None:
    """Fit a runtime to lines of your own logs."""
    from hosim.api import runtime_fit
    from hosim.files import write
    from hosim.io.runtimes import runtime_to_dict
    from hosim.report.listed import fitted_runtime

    name = "mine" if output is None else output.name.removesuffix(".gz").rpartition(".")[0]
    with progress("replaying runs"):
        found = runtime_fit(log, base, name)
    for warning in found.warnings:
        warn(warning)
    data = runtime_to_dict(found.runtime)
    if output is not None:
        write(output, data)
        say(f"wrote {output}")
    if json:
        print_json({"runtime": data, "left": dict(found.left), "warnings": list(found.warnings)})
    else:
        console().print(fitted_runtime(found.runtime, data, found.left))
