"""``hosim frontier``: peak memory against makespan."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from hosim.cli.options import (
    Budget,
    Devices,
    HardwareName,
    Json,
    NoRecompute,
    Policy,
    Rescale,
    Workload,
    console,
    print_json,
    question_of,
)
from hosim.cli.progress import progress
from hosim.errors import InfeasibleError

Points = Annotated[
    int,
    typer.Option(
        "--points", "-n", metavar="N", min=2, help="How many evenly spaced budgets to replay."
    ),
]
Refine = Annotated[
    int,
    typer.Option(
        "--refine",
        metavar="N",
        min=0,
        help="How many more budgets to replay where the curve has its largest steps.",
    ),
]
Price = Annotated[
    float | None,
    typer.Option(
        "--price",
        metavar="P",
        help="The price of a device per hour; adds the cost of a million tokens (or of a step).",
    ),
]


def frontier(
    workload: Workload,
    hardware: HardwareName,
    policy: Policy = "hyperoffload",
    budget: Budget = None,
    points: Points = 9,
    refine: Refine = 4,
    devices: Devices = None,
    no_recompute: NoRecompute = False,
    rescale: Rescale = False,
    price: Price = None,
    json: Json = False,
) -> None:
    """Trade peak memory against makespan.

    The curve goes from the smallest budget for which the policy finds a plan to the budget given.
    Exit code 3 if it finds none.
    """
    from hosim.report.of_studies import frontier
    from hosim.study.searches import frontier as traced
    from hosim.study.searches import frontier_rows, priced

    question = question_of(workload, hardware, policy, budget, devices, no_recompute, rescale)
    question = replace(question, profile=priced(question.profile, price))
    with progress() as tell:
        found = traced(question, points, refine, tell, bounds=json)
    if json:
        head = {"format": "hosim.frontier/1", "policy": question.choice.label}
        bounds = {"smallest_bytes": found.smallest_bytes, "too_small_bytes": found.too_small_bytes}
        print_json(
            {
                **head,
                **bounds,
                "contradictions": list(found.contradictions),
                "rows": frontier_rows(found),
            }
        )
    else:
        console().print(frontier(frontier_rows(found), question.hardware, str(found)))
    if found.smallest_bytes is None:
        raise typer.Exit(InfeasibleError.exit_code)
