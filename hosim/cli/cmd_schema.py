"""``hosim schema``: the JSON Schema of a file format."""

from __future__ import annotations

from typing import Annotated

import typer

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="workload, hardware, plan, result, comparison or routing."),
]


def schema(name: Name) -> None:
    """Print the JSON Schema of a format."""
    from hosim import io

    typer.echo(io.to_json(io.schema(name)))
