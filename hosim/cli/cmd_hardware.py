"""``hosim hardware list`` and ``show``."""

from __future__ import annotations

from dataclasses import replace

import typer

from hosim.cli.answers import show_answer
from hosim.cli.commands import command
from hosim.cli.options import hardware_of
from hosim.io.options import OPTIONS, Given, declared

app = typer.Typer(help="List the shipped hardware profiles, or show one.", no_args_is_help=True)

_NAME = replace(
    OPTIONS["hardware"], argument=True, help="A hardware profile: a path, or a shipped name."
)


@app.command("list")
@command(*declared("detail json"))
def list_(given: Given) -> None:
    """List the shipped hardware profiles."""
    from hosim import shipped
    from hosim.io import hardware_to_dict
    from hosim.report.listed import machines, machines_in_short

    profiles = [hardware_of(name) for name in shipped.hardware()]
    asked_on = (("hosim hardware list --detail", "compute, memory and links of each"),)
    answer = machines_in_short(profiles, shipped.ALIASES, asked_on)
    data = {"hardware": [hardware_to_dict(each) for each in profiles], "aliases": shipped.ALIASES}
    show_answer(answer, given, lambda: data, lambda: [machines(profiles, shipped.ALIASES)])


@app.command()
@command(*declared("hardware detail json", _NAME))
def show(given: Given) -> None:
    """Show a profile: tiers, channels, fabrics and sources.

    --detail shows all.
    """
    from hosim.io import hardware_to_dict
    from hosim.report.listed import machine, machine_in_short

    profile = hardware_of(given.hardware)
    data = hardware_to_dict(profile)
    show_answer(machine_in_short(profile), given, lambda: data, lambda: [machine(profile)])
