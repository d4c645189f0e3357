"""``hosim compare-policies`` with several machines: which one to book."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import typer

from hosim.cli.options import choices_of, console, graph_of, hardware_of, print_json
from hosim.cli.progress import progress
from hosim.cli.terminal import note
from hosim.errors import HosimError, InfeasibleError, InputError


def compare_on_machines(
    workload: str,
    names: Sequence[str],
    policies: str | None,
    budget: str | None,
    *,
    devices: int | None,
    no_recompute: bool,
    rescale: bool,
    json: bool,
    others: Mapping[str, bool],
    runtime: str | None = None,
) -> None:
    """Print one table over machines. ``others`` are the options that compare policies on one
    machine, and whether they are given.
    """
    from hosim.devices_of_graph import on_devices
    from hosim.report.listed import machine_comparison
    from hosim.report.of_replays import in_draws
    from hosim.study import NEAR, compare_machines, machine_rows

    if given := next((option for option, is_given in others.items() if is_given), None):
        raise InputError(
            f"{given} works on one machine: give a single --hardware, or leave it out",
            source="compare-policies",
        )
    profiles = [hardware_of(name) for name in dict.fromkeys(names)]
    choices = choices_of(policies or "hyperoffload", no_recompute)
    graph = graph_of(workload, runtime=runtime)
    profiles = [on_devices(graph, profile, devices) for profile in profiles]
    with progress() as tell:
        found = compare_machines(graph, profiles, choices, budget, tell, devices, rescale=rescale)
    for each in found.notes:
        note(str(each))
    if json:
        paired = [each.row for each in found.paired]
        print_json(
            {
                "format": "hosim.machines/1",
                "rows": machine_rows(found),
                **({"paired": paired} if paired else {}),
            }
        )
    else:
        console().print(
            machine_comparison(
                machine_rows(found),
                {profile.name: profile for profile in profiles},
                NEAR,
                str(found),
            )
        )
        if found.paired:
            console().print(in_draws([line.result for line in found.lines], found.names))
    if any(line.result.failed for line in found.lines):
        raise typer.Exit(HosimError.exit_code)
    if not any(line.result.feasible for line in found.lines):
        raise typer.Exit(InfeasibleError.exit_code)
