"""``hosim runtime list`` and ``show``."""

from __future__ import annotations

import typer

from hosim.cli.commands import NAMES, command
from hosim.cli.options import console, print_json
from hosim.options import REQUIRED, Given, Option, declared

app = typer.Typer(help="List the shipped runtimes, or show one.", no_args_is_help=True)

_NAME = Option(
    "name",
    default=REQUIRED,
    argument=True,
    metavar="NAME",
    help="A runtime: a path, or a shipped name.",
    completes=NAMES["runtime"],
)


@app.command("list")
@command(*declared("json"))
def list_(given: Given) -> None:
    """List the shipped runtimes."""
    from hosim import shipped
    from hosim.io.runtimes import runtime_named, runtime_to_dict
    from hosim.report.listed import runtimes

    found = [runtime_named(name) for name in shipped.runtimes()]
    if given.json:
        print_json({"runtimes": [runtime_to_dict(runtime) for runtime in found]})
    else:
        console().print(runtimes(found))


@app.command()
@command(*declared("name json", _NAME))
def show(given: Given) -> None:
    """Show a runtime: what it sets, and its figures with spread and source."""
    from hosim.io.runtimes import runtime_named, runtime_to_dict
    from hosim.report.listed import runtime

    found = runtime_named(given.name)
    if given.json:
        print_json(runtime_to_dict(found))
    else:
        console().print(runtime(found, runtime_to_dict(found)))
