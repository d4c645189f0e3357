"""``hosim hardware list`` and ``show``."""

from __future__ import annotations

from dataclasses import replace

import typer

from hosim.cli.commands import command
from hosim.cli.options import console, hardware_of, print_json
from hosim.options import OPTIONS, Given, declared

app = typer.Typer(help="List the shipped hardware profiles, or show one.", no_args_is_help=True)

_NAME = replace(
    OPTIONS["hardware"], argument=True, help="A hardware profile: a path, or a shipped name."
)


@app.command("list")
@command(*declared("json"))
def list_(given: Given) -> None:
    """List the shipped hardware profiles."""
    from hosim import shipped
    from hosim.io import hardware_to_dict
    from hosim.report.listed import machines

    profiles = [hardware_of(name) for name in shipped.hardware()]
    if given.json:
        print_json(
            {
                "hardware": [hardware_to_dict(profile) for profile in profiles],
                "aliases": shipped.ALIASES,
            }
        )
    else:
        console().print(machines(profiles, shipped.ALIASES))


@app.command()
@command(*declared("hardware json", _NAME))
def show(given: Given) -> None:
    """Show a profile: tiers, channels, fabrics and sources."""
    from hosim.io import hardware_to_dict
    from hosim.report.listed import machine

    profile = hardware_of(given.hardware)
    if given.json:
        print_json(hardware_to_dict(profile))
    else:
        console().print(machine(profile))
