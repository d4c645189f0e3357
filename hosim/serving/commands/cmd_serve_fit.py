"""``hosim serve-fit``: the largest or smallest value at which latencies keep their limits."""

from __future__ import annotations

import typer

from hosim.cli.answers import print_answer
from hosim.cli.commands import command
from hosim.cli.options import print_json, say_notes
from hosim.cli.progress import progress
from hosim.errors import InfeasibleError
from hosim.io.options import REQUIRED, Given
from hosim.serving.commands.cmd_serve import options_of, study_title
from hosim.serving.commands.cmd_serve_sweep import SET
from hosim.serving.serve_options import of_serving, serving_options

_OPTIONS = serving_options(
    "model hardware requests within largest smallest set detail json",
    SET,
    of_serving(
        "within",
        default=REQUIRED,
        help="Limits of statistics of latencies: ttft.p95=2s,tpot.mean=50ms.",
    ),
    of_serving("largest", help="Find the largest value: requests.rate=1..50."),
    of_serving("smallest", help="Find the smallest value: blocks=500..20000."),
)


@command(*_OPTIONS)
def serve_fit(given: Given) -> None:
    """Find the highest rate that keeps latencies in limits.

    Or the smallest cache, or another value. It bisects over runs, tries further values on both
    sides, and reports any that contradicts the rest. Exit code 3 if no value keeps the limits.
    """
    from hosim.serving.api import serve_fit as fitted
    from hosim.serving.report import serving_fit, serving_fit_answer

    with progress("serving"):
        found = fitted(
            given.model,
            given.hardware,
            given.requests,
            largest=given.largest,
            smallest=given.smallest,
            within=given.within,
            **options_of(given.set),
        )
    say_notes(found.notes)
    if given.json:
        head = {
            "format": "hosim.serving-fit/1",
            "wanted": found.wanted,
            "fields": list(found.axis.fields),
            "within_ns": found.limits_ns,
        }
        answer = {"value": found.value, "beyond": found.beyond.value if found.beyond else None}
        ends = {} if found.interval is None else {"interval": found.interval}
        print_json(
            {
                **head,
                **answer,
                **ends,
                "contradictions": list(found.contradictions),
                "rows": found.rows,
            }
        )
    else:
        told = found.rows, list(found.limits_ns), str(found), found.answer is not None
        short = serving_fit_answer(study_title(given), *told)
        print_answer(short, given, lambda: [serving_fit(*told)])
    if found.answer is None:
        raise typer.Exit(InfeasibleError.exit_code)
