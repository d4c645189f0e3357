"""``hosim compare-policies`` with several machines: which one to book."""

from __future__ import annotations

import typer

from hosim.cli.options import console, print_json, questions_of, say_notes
from hosim.cli.progress import progress
from hosim.errors import HosimError, InfeasibleError, InputError
from hosim.options import Given, Options, refuse_others

FITTING = "workload hardware policies budget runtime devices no_recompute rescale json"
"""The options that several machines can be compared with."""


def compare_on_machines(options: Options, given: Given) -> None:
    """Print one table over machines. ``options`` are those of the command."""
    from hosim.report.listed import machine_comparison
    from hosim.study import NEAR, compare_machines, machine_rows

    names = [name.strip() for name in given.hardware.split(",") if name.strip()]
    if not names:
        raise InputError(
            f"expected machines separated by commas, such as h100,a100; got {given.hardware!r}",
            source="hardware",
        )
    why = "works on one machine: give a single --hardware, or leave it out"
    refuse_others(options, vars(given), FITTING, why, "compare-policies")
    given.policies = given.policies or "hyperoffload"
    asked = questions_of(given, list(dict.fromkeys(names)))
    with progress() as tell:
        found = compare_machines(asked, tell)
    say_notes(found.notes)
    rows, profiles = machine_rows(found), {one.hardware.name: one.hardware for one in asked}
    if given.json:
        print_json({"format": "hosim.machines/1", "rows": rows})
    else:
        console().print(machine_comparison(rows, profiles, NEAR, str(found)))
    if any(line.result.failed for line in found.lines):
        raise typer.Exit(HosimError.exit_code)
    if not any(line.result.feasible for line in found.lines):
        raise typer.Exit(InfeasibleError.exit_code)
