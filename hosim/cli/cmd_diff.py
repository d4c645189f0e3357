"""``hosim diff``: two plans, or two results, side by side."""

from __future__ import annotations

from typing import Annotated

import typer

from hosim.cli.options import Budget, Json, budget_of, console, graph_of, hardware_of, print_json
from hosim.cli.progress import progress
from hosim.cli.terminal import note

A = Annotated[
    str,
    typer.Argument(
        metavar="A", help="A plan file, a result file (--json of 'hosim replay'), or a policy."
    ),
]
B = Annotated[str, typer.Argument(metavar="B", help="The other plan file, result file or policy.")]
WorkloadOption = Annotated[
    str | None,
    typer.Option(
        "--workload", "-w", metavar="WORKLOAD", help="The workload that plans and policies are for."
    ),
]
Machine = Annotated[
    str | None,
    typer.Option(
        "--hardware",
        "-H",
        metavar="HW",
        help="Replay plans on this hardware as well, to compare times op by op; required for "
        "policies.",
    ),
]
Top = Annotated[
    int, typer.Option("--top", metavar="N", min=1, help="Show at most N rows of each table.")
]


def diff(
    a: A,
    b: B,
    workload: WorkloadOption = None,
    hardware: Machine = None,
    budget: Budget = None,
    top: Top = 40,
    json: Json = False,
) -> None:
    """Show how two plans or two results differ.

    Compares figure by figure, tensor by tensor and op by op, and shows only differences.
    """
    from hosim.devices_of_graph import on_devices
    from hosim.report.of_studies import diff
    from hosim.study import diff as differ
    from hosim.study import side_of

    graph = None if workload is None else graph_of(workload)
    machine = None if hardware is None else hardware_of(hardware)
    if graph is not None and machine is not None:
        machine = on_devices(graph, machine)
    budget_bytes = None if graph is None or machine is None else budget_of(budget, graph, machine)
    with progress(f"{a} and {b}"):
        found = differ(*(side_of(text, graph, machine, budget_bytes) for text in (a, b)))
    for line in found.notes:
        note(line)
    if json:
        rows = {
            "figures": list(found.figures),
            "tensors": list(found.tensors),
            "ops": list(found.ops),
        }
        print_json({"format": "hosim.diff/1", "a": found.a, "b": found.b, **rows})
    else:
        console().print(
            diff(
                found.figures,
                found.tensors,
                found.ops,
                str(found),
                (found.a, found.b),
                top,
                found.parts,
            )
        )
