"""``hosim fit``: the largest or smallest value that still fits."""

from __future__ import annotations

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
    RuntimeName,
    Workload,
    console,
    print_json,
    question_of,
)
from hosim.cli.progress import progress
from hosim.errors import InfeasibleError

Largest = Annotated[
    str | None,
    typer.Option(
        "--largest",
        metavar="FIELD=A..B[:N]",
        help="Find the largest value of a field: workload.batch=1..64, workload.layers=1..80.",
    ),
]
Smallest = Annotated[
    str | None,
    typer.Option(
        "--smallest",
        metavar="FIELD=A..B[:N]",
        help="Find the smallest value of a field: channels.h2d.bandwidth=5..200GB/s:40, "
        "tiers.hbm.capacity=8..80GiB:73. "
        "A range without a count has about 100 round values.",
    ),
]
Slowdown = Annotated[
    float | None,
    typer.Option(
        "--slowdown",
        metavar="X",
        help="Allow at most X times the makespan with everything resident, such as 1.05.  "
        "[default: any]",
    ),
]


def fit(
    workload: Workload,
    hardware: HardwareName,
    largest: Largest = None,
    smallest: Smallest = None,
    slowdown: Slowdown = None,
    policy: Policy = "hyperoffload",
    budget: Budget = None,
    runtime: RuntimeName = None,
    devices: Devices = None,
    no_recompute: NoRecompute = False,
    rescale: Rescale = False,
    json: Json = False,
) -> None:
    """Find the largest or the smallest value that still fits.

    It bisects over replays, and shows the values probed on both sides of the answer. It does not
    assume monotonicity: it reports any probe that contradicts the rest. Exit code 3 if no value is
    within the limits.
    """
    from hosim.report.of_studies import fit
    from hosim.study.asked import parse_axis
    from hosim.study.searches import STEPS, fit_rows, sought
    from hosim.study.searches import fit as fitted

    wanted, text = sought(
        largest, smallest, "fit", "--largest FIELD=A..B and --smallest FIELD=A..B"
    )
    axis = parse_axis(text, STEPS)
    question = question_of(
        workload, hardware, policy, budget, devices, no_recompute, rescale, runtime
    )
    with progress() as tell:
        found = fitted(question, wanted, axis, slowdown, tell, bounds=json)
    if json:
        head = {
            "format": "hosim.fit/1",
            "policy": question.choice.label,
            "wanted": found.wanted,
            "fields": list(axis.fields),
        }
        limits = {"slowdown": slowdown, "value": found.value, "exact": found.exact}
        beyond = {
            "beyond": found.beyond.value if found.beyond else None,
            "contradictions": list(found.contradictions),
            "notes": list(found.notes),
        }
        print_json({**head, **limits, **beyond, "rows": fit_rows(found)})
    else:
        console().print(fit(fit_rows(found), str(found), found.answer is not None))
    if found.answer is None:
        raise typer.Exit(InfeasibleError.exit_code)
