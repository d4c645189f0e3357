"""``hosim serve-sweep``: serve requests once for each combination of values."""

from __future__ import annotations

from dataclasses import replace

from hosim.cli.answers import print_answer
from hosim.cli.commands import command
from hosim.cli.options import print_json, say_notes
from hosim.cli.progress import bar
from hosim.cli.terminal import say
from hosim.io.options import OPTIONS, Given, Option
from hosim.serving.commands.cmd_serve import options_of, study_title
from hosim.serving.serve_options import of_serving, serving_options

SET = of_serving(
    "set",
    metavar="OPTION=VALUE",
    help="An option of hosim.serve for all points, such as token_budget=1024; may be repeated.",
)
_VARY = replace(
    OPTIONS["vary"],
    help="A field to vary; may be repeated: requests.rate=5..50:10, blocks=1000,2000, "
    "token_budget=1024,2048, model.tensor=1,2, "
    "hardware=h100,h200.",
)
STUDY = (
    SET,
    _VARY,
    Option(
        "seeds",
        of=int,
        metavar="N",
        least=1,
        help="Serve each point with N seeds of drawn requests.",
    ),
)
"""The options of studies of serving."""


@command(
    *serving_options(
        "model hardware requests vary seeds limit set output jobs scheduler detail json",
        *STUDY,
        replace(_VARY, unless=("seeds",)),
    )
)
def serve_sweep(given: Given) -> None:
    """Serve once for each combination of values.

    Fields are parameters of the requests (of a file its rate), of the model, the machine, and
    options of hosim.serve. With --seeds each row is the median of several draws, with their 5th and
    95th percentiles below it (--detail).
    """
    from hosim.serving.api import FIGURES, seed_percentiles
    from hosim.serving.api import serve_sweep as swept
    from hosim.serving.report import serving_sweep, serving_sweep_answer
    from hosim.study.asked import read_vary
    from hosim.study.rows_of_answers import records, varied_columns

    vary, seeds = given.vary, given.seeds
    points = read_vary(vary) if vary else [{"requests.seed": seed} for seed in range(seeds or 1)]
    with bar() as tell:
        frame = swept(
            given.model,
            given.hardware,
            given.requests,
            vary=points,
            limit=given.limit,
            seeds=seeds if vary else None,
            output=given.output,
            jobs=given.jobs,
            scheduler=given.scheduler,
            progress=tell,
            **options_of(given.set),
        )
    rows = records(frame)
    if given.output is not None:
        say(f"wrote {given.output}: {len(rows):,} rows")
    varied = list(
        dict.fromkeys([*varied_columns(points).values(), *(["requests.seed"] if seeds else [])])
    )
    say_notes(frame.attrs["notes"])
    if given.json:
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
        title = study_title(given)
        answer = serving_sweep_answer(title, rows, varied)
        print_answer(answer, given, lambda: [serving_sweep(rows, varied)])
