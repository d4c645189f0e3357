"""``hosim schema``: the JSON Schema of a file format."""

from __future__ import annotations

import typer

from hosim.cli.commands import command
from hosim.io.options import REQUIRED, Given, Option

_NAME = Option(
    "name",
    default=REQUIRED,
    argument=True,
    metavar="NAME",
    help="workload, hardware, plan, result, comparison or routing.",
)


@command(_NAME)
def schema(given: Given) -> None:
    """Print the JSON Schema of a format."""
    from hosim import io

    typer.echo(io.to_json(io.schema(given.name)))
