"""``hosim hardware list`` and ``show``."""

from __future__ import annotations

from typing import Annotated

import typer

from hosim.cli.options import console, hardware_of

app = typer.Typer(help="List the shipped hardware profiles, or show one.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="HW", help="A hardware profile: a path, or a shipped name.")]


@app.command("list")
def list_() -> None:
    """List the shipped hardware profiles."""
    from hosim.io import shipped
    from hosim.report import listings

    console().print(listings.machines([hardware_of(name) for name in shipped.hardware()]))


@app.command()
def show(hardware: Name) -> None:
    """Show a profile: tiers, channels, fabrics and sources."""
    from hosim.report import listings

    console().print(listings.machine(hardware_of(hardware)))
