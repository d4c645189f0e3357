"""``hosim serve-sweep``: serve requests once for each combination of values."""

from __future__ import annotations

from typing import Annotated

import typer

from hosim.cli.cmd_sweep import Jobs, Output, Scheduler
from hosim.cli.options import HardwareName, Json, console, print_json
from hosim.cli.progress import bar
from hosim.cli.terminal import note, say
from hosim.errors import InputError
from hosim.serving.commands.cmd_serve import Limit, Model, Requests, options_of

Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="OPTION=VALUE",
        help="An option of hosim.serve for all points, such as token_budget=1024; may be repeated.",
    ),
]
Vary = Annotated[
    list[str] | None,
    typer.Option(
        "--vary",
        metavar="FIELD=VALUES",
        help="A field to vary; may be repeated: requests.rate=5..50:10, blocks=1000,2000, "
        "token_budget=1024,2048, model.tensor=1,2, "
        "hardware=h100,h200.",
    ),
]
Seeds = Annotated[
    int | None,
    typer.Option(
        "--seeds", metavar="N", min=1, help="Serve each point with N seeds of drawn requests."
    ),
]


def serve_sweep(
    model: Model,
    hardware: HardwareName,
    requests: Requests,
    vary: Vary = None,
    seeds: Seeds = None,
    limit: Limit = None,
    set_: Set = None,
    output: Output = None,
    jobs: Jobs = -1,
    scheduler: Scheduler = None,
    json: Json = False,
) -> None:
    """Serve once for each combination of values.

    Fields are parameters of the requests (of a file its rate), of the model, the machine, and
    options of hosim.serve. With --seeds each row is the median of several draws, with their 5th and
    95th percentiles below it.
    """
    from hosim.serving.api import FIGURES, seed_percentiles
    from hosim.serving.api import serve_sweep as swept
    from hosim.serving.report import serving_sweep
    from hosim.study.asked import read_vary
    from hosim.study.rows_of_answers import records, varied_columns

    if not vary and seeds is None:
        raise InputError(
            "nothing to vary: give --vary FIELD=VALUES or --seeds N", source="serve-sweep"
        )
    points = read_vary(vary) if vary else [{"requests.seed": seed} for seed in range(seeds or 1)]
    with bar() as tell:
        frame = swept(
            model,
            hardware,
            requests,
            vary=points,
            limit=limit,
            seeds=seeds if vary else None,
            output=output,
            jobs=jobs,
            scheduler=scheduler,
            progress=tell,
            **options_of(set_),
        )
    rows = records(frame)
    if output is not None:
        say(f"wrote {output}: {len(rows):,} rows")
    varied = list(
        dict.fromkeys([*varied_columns(points).values(), *(["requests.seed"] if seeds else [])])
    )
    for line in frame.attrs["notes"]:
        note(line)
    if json:
        drawn = (
            {
                "percentiles": seed_percentiles(
                    rows, [name for name in varied if name != "requests.seed"], FIGURES
                )
            }
            if seeds
            else {}
        )
        print_json({"format": "hosim.serving-sweep/1", "rows": rows, **drawn})
    else:
        console().print(serving_sweep(rows, varied))
