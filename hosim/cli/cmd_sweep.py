"""``hosim sweep``: one replay for each combination of values."""

from __future__ import annotations

from pathlib import Path

import typer

from hosim.cli.commands import command
from hosim.cli.options import console, print_json, question_of, say_notes
from hosim.cli.progress import bar
from hosim.cli.terminal import note, say, warn
from hosim.errors import InfeasibleError, InputError
from hosim.options import Given, Option, declared

_OPTIONS = declared(
    "workload hardware vary points policy budget output jobs scheduler devices no_recompute "
    "rescale json",
    Option(
        "vary",
        of=list[str],
        metavar="FIELD=VALUES",
        help="A field to vary; may be repeated. channels.h2d.bandwidth=25..200GB/s:8 (a range and "
        "a count), policy.k=1,2,4, "
        "workload.sequence=4096,8192, budget=50..100%:6; a+b=... sets both.",
    ),
    Option(
        "points",
        of=Path,
        metavar="FILE",
        help="Instead of --vary: a CSV file with a column for each field and a row for each point.",
    ),
)


@command(*_OPTIONS)
def sweep(given: Given) -> None:
    """Plan and replay once for each combination of values.

    A field is a parameter of the workload's spec or of the policy, a path in the hardware profile,
    or the budget; several fields make a grid. If a point fails, its row has the error. Exit code
    3 if none fits.
    """
    from hosim.plain_text import counted
    from hosim.report.of_studies import sweep
    from hosim.study import capped, same_everywhere
    from hosim.study import sweep as swept
    from hosim.study.asked import read_points, read_vary
    from hosim.study.runs import cluster, pool

    vary, points, output, scheduler = given.vary, given.points, given.output, given.scheduler
    if bool(vary) == (points is not None):
        wrong = "too much to vary: give one of" if vary else "nothing to vary: give one of"
        raise InputError(f"{wrong} --vary FIELD=VALUES and --points FILE", source="sweep")
    listed = read_vary(vary) if vary else read_points(str(points))
    question = question_of(given)
    runner = cluster(scheduler) if scheduler else pool(given.jobs)
    say_notes(list(capped(question, listed)))
    there = 0, len(listed)
    try:
        with bar() as tell:

            def progress(done: int, total: int, failed: int) -> None:
                nonlocal there
                there = done, total
                tell(done, total, failed)

            found = swept(question, listed, output, runner, progress)
    except KeyboardInterrupt:
        if output is not None:
            warn(
                f"{output} has {there[0]:,} of {there[1]:,} points: run the same command to "
                "continue"
            )
        raise
    if all(row["budget_bytes"] is None for row in found.rows):
        raise InputError(
            f"every point failed; the first one with: {found.rows[0]['error']}", source="sweep"
        )
    if output is not None:
        say(
            f"wrote {output}: {counted(len(found.rows), 'row')}, {found.computed:,} of them "
            "computed now"
        )
    if (why := same_everywhere(question, listed, found.rows)) is not None:
        note(why)
    if given.json:
        print_json({"format": "hosim.sweep/1", "rows": list(found.rows)})
    else:
        console().print(sweep(found.rows, list(listed[0]), question.hardware))
    if not any(row["feasible"] for row in found.rows):
        raise typer.Exit(InfeasibleError.exit_code)
