"""``hosim serve-frontier``: what a larger cache, or more devices, are worth in throughput."""

from __future__ import annotations

from typing import Annotated

import typer

from hosim.cli.cmd_sweep import Jobs, Output, Scheduler
from hosim.cli.options import HardwareName, Json, console, print_json
from hosim.cli.progress import bar
from hosim.cli.terminal import note, say
from hosim.errors import InputError
from hosim.serving.commands.cmd_serve import Limit, Model, Requests, options_of
from hosim.serving.commands.cmd_serve_sweep import Seeds, Set, Vary

Of = Annotated[
    str,
    typer.Option(
        "--of", metavar="FIGURE", help="What is wanted: throughput, or goodput (with --limit)."
    ),
]
Against = Annotated[
    str,
    typer.Option(
        "--against", metavar="FIGURE", help="What it costs: cache (bytes in all tiers) or devices."
    ),
]


def serve_frontier(
    model: Model,
    hardware: HardwareName,
    requests: Requests,
    vary: Vary = None,
    of: Of = "throughput",
    against: Against = "cache",
    limit: Limit = None,
    seeds: Seeds = None,
    set_: Set = None,
    output: Output = None,
    jobs: Jobs = -1,
    scheduler: Scheduler = None,
    json: Json = False,
) -> None:
    """Trade cache or devices against throughput.

    It serves once for each combination of values, like serve-sweep, and marks the points on the
    Pareto frontier.
    """
    from hosim.serving.api import COSTS, RATES
    from hosim.serving.api import serve_frontier as traced
    from hosim.serving.report import serving_frontier
    from hosim.study.asked import read_vary
    from hosim.study.rows_of_answers import records, varied_columns

    if not vary:
        raise InputError(
            "nothing to vary: give --vary FIELD=VALUES, such as blocks=1000..8000:5",
            source="serve-frontier",
        )
    given = {
        "vary": vary,
        "of": of,
        "against": against,
        "limit": limit,
        "seeds": seeds,
        "output": output,
        "jobs": jobs,
    }
    with bar() as tell:
        frame = traced(
            model,
            hardware,
            requests,
            **given,  # type: ignore[arg-type]
            scheduler=scheduler,
            progress=tell,
            **options_of(set_),  # type: ignore[arg-type]
        )
    rows = records(frame)
    if output is not None:
        say(f"wrote {output}: {len(rows):,} points")
    for line in frame.attrs["notes"]:
        note(line)
    if json:
        print_json(
            {"format": "hosim.serving-frontier/1", "of": of, "against": against, "rows": rows}
        )
    else:
        console().print(
            serving_frontier(
                rows, list(varied_columns(read_vary(vary)).values()), RATES[of], COSTS[against]
            )
        )
