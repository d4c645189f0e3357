"""``hosim frontier``: peak memory against makespan."""

from __future__ import annotations

from dataclasses import replace

import typer

from hosim.cli.commands import command
from hosim.cli.options import console, print_json, question_of
from hosim.cli.progress import progress
from hosim.errors import InfeasibleError
from hosim.options import Given, declared


@command(
    *declared(
        "workload hardware policy budget points refine devices no_recompute rescale price json"
    )
)
def frontier(given: Given) -> None:
    """Trade peak memory against makespan.

    The curve goes from the smallest budget for which the policy finds a plan to the budget given.
    Exit code 3 if it finds none.
    """
    from hosim.report.of_studies import frontier
    from hosim.study.searches import frontier as traced
    from hosim.study.searches import frontier_rows, priced

    question = question_of(given)
    question = replace(question, profile=priced(question.profile, given.price))
    with progress() as tell:
        found = traced(question, given.points, given.refine, tell, bounds=given.json)
    if given.json:
        head = {"format": "hosim.frontier/1", "policy": question.choice.label}
        bounds = {
            "smallest_bytes": found.smallest_bytes,
            "too_small_bytes": found.too_small_bytes,
            "sure_bytes": found.sure_bytes,
        }
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
