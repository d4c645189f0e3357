"""``hosim serve-fit``: the largest or smallest value at which latencies keep their limits."""

from __future__ import annotations

from typing import Annotated

import typer

from hosim.cli.options import HardwareName, Json, console, print_json
from hosim.cli.progress import progress
from hosim.cli.terminal import note
from hosim.errors import InfeasibleError
from hosim.serving.commands.cmd_serve import Model, Requests, options_of
from hosim.serving.commands.cmd_serve_sweep import Set

Within = Annotated[
    str,
    typer.Option(
        "--within",
        metavar="LIMITS",
        help="Limits of statistics of latencies: ttft.p95=2s,tpot.mean=50ms.",
    ),
]
Largest = Annotated[
    str | None,
    typer.Option(
        "--largest", metavar="FIELD=A..B[:N]", help="Find the largest value: requests.rate=1..50."
    ),
]
Smallest = Annotated[
    str | None,
    typer.Option(
        "--smallest", metavar="FIELD=A..B[:N]", help="Find the smallest value: blocks=500..20000."
    ),
]


def serve_fit(
    model: Model,
    hardware: HardwareName,
    requests: Requests,
    within: Within,
    largest: Largest = None,
    smallest: Smallest = None,
    set_: Set = None,
    json: Json = False,
) -> None:
    """Find the highest rate that keeps latencies in limits.

    Or the smallest cache, or another value. It bisects over runs, tries further values on both
    sides, and reports any that contradicts the rest. Exit code 3 if no value keeps the limits.
    """
    from hosim.serving.api import serve_fit as fitted
    from hosim.serving.report import serving_fit

    with progress("serving"):
        found = fitted(
            model,
            hardware,
            requests,
            largest=largest,
            smallest=smallest,
            within=within,
            **options_of(set_),
        )
    for line in found.notes:
        note(line)
    if json:
        head = {
            "format": "hosim.serving-fit/1",
            "wanted": found.wanted,
            "fields": list(found.axis.fields),
            "within_ns": found.limits_ns,
        }
        answer = {"value": found.value, "beyond": found.beyond.value if found.beyond else None}
        print_json(
            {**head, **answer, "contradictions": list(found.contradictions), "rows": found.rows}
        )
    else:
        console().print(
            serving_fit(found.rows, list(found.limits_ns), str(found), found.answer is not None)
        )
    if found.answer is None:
        raise typer.Exit(InfeasibleError.exit_code)
