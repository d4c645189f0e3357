"""``hosim plan``: write the plan of one policy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hosim.cli.options import Budget, HardwareName, Workload, budget_of, graph_of, hardware_of

Policy = Annotated[
    str, typer.Option("--policy", "-p", metavar="P", help="A policy (see 'hosim policies'); parameters as in layerwise:k=2.")
]
Output = Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write the plan: .json, .json.gz or .yaml.")]


def plan(workload: Workload, hardware: HardwareName, policy: Policy, output: Output, budget: Budget = None) -> None:
    """Write the plan that one policy makes."""
    from hosim.io import save_plan
    from hosim.study.choice import parse_choice
    from hosim.study.compare import check, make_plan

    machine = hardware_of(hardware)
    choice = parse_choice(policy)
    graph = graph_of(workload)
    budget_bytes = budget_of(budget, graph, machine)
    made = make_plan(graph, machine, choice, budget_bytes)
    check(made, machine, budget_bytes)
    save_plan(made, output)
    counts = ", ".join(
        f"{made.count(op):,} {label}" for op, label in (("prefetch", "prefetches"), ("store", "stores"), ("detach", "detaches"))
    )
    typer.echo(f"wrote {output}: {counts}", err=True)
