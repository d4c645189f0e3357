"""``hosim serve-frontier``: what a larger cache, or more devices, are worth in throughput."""

from __future__ import annotations

from hosim.cli.answers import print_answer
from hosim.cli.commands import command
from hosim.cli.options import print_json, say_notes
from hosim.cli.progress import bar
from hosim.cli.terminal import say
from hosim.errors import InputError
from hosim.io.options import Given, Option
from hosim.serving.commands.cmd_serve import options_of, study_title
from hosim.serving.commands.cmd_serve_sweep import STUDY
from hosim.serving.serve_options import serving_options

_OPTIONS = serving_options(
    "model hardware requests vary of against limit seeds set output jobs scheduler detail json",
    *STUDY,
    Option(
        "of",
        default="throughput",
        metavar="FIGURE",
        help="What is wanted: throughput, or goodput (with --limit).",
    ),
    Option(
        "against",
        default="cache",
        metavar="FIGURE",
        help="What it costs: cache (bytes in all tiers) or devices.",
    ),
)


@command(*_OPTIONS)
def serve_frontier(given: Given) -> None:
    """Trade cache or devices against throughput.

    It serves once for each combination of values, like serve-sweep, and marks the points on the
    Pareto frontier.
    """
    from hosim.serving.api import COSTS, RATES
    from hosim.serving.api import serve_frontier as traced
    from hosim.serving.report import serving_frontier, serving_frontier_answer
    from hosim.study.asked import read_vary
    from hosim.study.rows_of_answers import records, varied_columns

    vary, of, against = given.vary, given.of, given.against
    if not vary:
        raise InputError(
            "nothing to vary: give --vary FIELD=VALUES, such as blocks=1000..8000:5",
            source="serve-frontier",
        )
    with bar() as tell:
        frame = traced(
            given.model,
            given.hardware,
            given.requests,
            vary=vary,
            of=of,
            against=against,
            limit=given.limit,
            seeds=given.seeds,
            output=given.output,
            jobs=given.jobs,
            scheduler=given.scheduler,
            progress=tell,
            **options_of(given.set),
        )
    rows = records(frame)
    if given.output is not None:
        say(f"wrote {given.output}: {len(rows):,} points")
    say_notes(frame.attrs["notes"])
    if given.json:
        print_json(
            {"format": "hosim.serving-frontier/1", "of": of, "against": against, "rows": rows}
        )
    else:
        told = rows, list(varied_columns(read_vary(vary)).values()), RATES[of], COSTS[against]
        title = study_title(given)
        answer = serving_frontier_answer(title, *told)
        print_answer(answer, given, lambda: [serving_frontier(*told)])
