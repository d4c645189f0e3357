"""``hosim runtime list`` and ``show``."""

from __future__ import annotations

from typing import Annotated

import typer

from hosim.cli.options import Json, console, print_json, runtime_names

app = typer.Typer(help="List the shipped runtimes, or show one.", no_args_is_help=True)

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="A runtime: a path, or a shipped name.", autocompletion=runtime_names
    ),
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
