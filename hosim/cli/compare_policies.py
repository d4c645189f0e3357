"""``hosim compare-policies``: one row per policy."""

from __future__ import annotations

from typing import Annotated

import typer

from hosim.cli.options import Budget, HardwareName, Json, Workload, budget_of, console, graph_of, hardware_of, progress
from hosim.errors import InfeasibleError

Policies = Annotated[
    str | None,
    typer.Option(
        "--policies",
        "-p",
        metavar="A,B,...",
        help="Policies to compare, separated by commas; a parameter is set as in lookahead:k=4.  [default: all of 'hosim policies']",
    ),
]


def compare_policies(
    workload: Workload, hardware: HardwareName, policies: Policies = None, budget: Budget = None, json: Json = False
) -> None:
    """Say which policies fit, who waits, and why.

    Plans and replays the workload under each policy, one row each. Exit code 3 if none fits.
    """
    from hosim.study.choice import parse_choices
    from hosim.study.compare import compare

    machine = hardware_of(hardware)
    choices = parse_choices(policies)
    graph = graph_of(workload)
    budget_bytes = budget_of(budget, graph, machine)
    with progress() as tell:
        results = compare(graph, machine, choices, budget_bytes, tell)
    if json:
        from hosim.io import comparison_to_dict, to_json

        typer.echo(to_json(comparison_to_dict(results)))
    else:
        from hosim.analysis.liveness import static_peak
        from hosim.report import tables

        console().print(tables.comparison(graph, machine, static_peak(graph).breakdown, results))
    if not any(result.feasible for result in results):
        raise typer.Exit(InfeasibleError.exit_code)
