"""``hosim fit``: the largest or smallest value that still fits."""

from __future__ import annotations

import typer

from hosim.cli.commands import command
from hosim.cli.options import console, print_json, question_of
from hosim.cli.progress import progress
from hosim.errors import InfeasibleError
from hosim.options import Given, declared


@command(
    *declared(
        "workload hardware largest smallest slowdown policy budget runtime devices no_recompute "
        "rescale json"
    )
)
def fit(given: Given) -> None:
    """Find the largest or the smallest value that still fits.

    It bisects over replays, and shows the values probed on both sides of the answer. It does not
    assume monotonicity: it reports any probe that contradicts the rest. Exit code 3 if no value is
    within the limits.
    """
    from hosim.report.of_studies import fit
    from hosim.study.asked import parse_axis
    from hosim.study.searches import STEPS, fit_rows, sought
    from hosim.study.searches import fit as fitted

    either = "--largest FIELD=A..B and --smallest FIELD=A..B"
    wanted, text = sought(given.largest, given.smallest, "fit", either)
    axis = parse_axis(text, STEPS)
    question = question_of(given)
    with progress() as tell:
        found = fitted(question, wanted, axis, given.slowdown, tell, bounds=given.json)
    if given.json:
        head = {
            "format": "hosim.fit/1",
            "policy": question.choice.label,
            "wanted": found.wanted,
            "fields": list(axis.fields),
        }
        limits = {"slowdown": given.slowdown, "value": found.value, "exact": found.exact}
        ends = {} if found.interval is None else {"interval": found.interval}
        beyond = {
            "beyond": found.beyond.value if found.beyond else None,
            "contradictions": list(found.contradictions),
            "notes": list(found.notes),
        }
        print_json({**head, **limits, **ends, **beyond, "rows": fit_rows(found)})
    else:
        console().print(fit(fit_rows(found), str(found), found.answer is not None))
    if found.answer is None:
        raise typer.Exit(InfeasibleError.exit_code)
