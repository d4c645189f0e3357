"""``hosim hardware list`` and ``show``."""

from __future__ import annotations

from typing import Annotated

import typer

from hosim.cli.options import Json, console, hardware_of, print_json

app = typer.Typer(help="List the shipped hardware profiles, or show one.", no_args_is_help=True)

Name = Annotated[
    str, typer.Argument(metavar="HW", help="A hardware profile: a path, or a shipped name.")
]


@app.command("list")
def list_(json: Json = False) -> None:
    """List the shipped hardware profiles."""
    from hosim import shipped
    from hosim.io import hardware_to_dict
    from hosim.report.listed import machines

    profiles = [hardware_of(name) for name in shipped.hardware()]
    if json:
        print_json(
            {
                "hardware": [hardware_to_dict(profile) for profile in profiles],
                "aliases": shipped.ALIASES,
            }
        )
    else:
        console().print(machines(profiles, shipped.ALIASES))


@app.command()
def show(hardware: Name, json: Json = False) -> None:
    """Show a profile: tiers, channels, fabrics and sources."""
    from hosim.io import hardware_to_dict
    from hosim.report.listed import machine

    profile = hardware_of(hardware)
    if json:
        print_json(hardware_to_dict(profile))
    else:
        console().print(machine(profile))
