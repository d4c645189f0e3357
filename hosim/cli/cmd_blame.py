"""``hosim blame``: what each op waits for, and what would help."""

from __future__ import annotations

from pathlib import Path

from hosim.cli.commands import command
from hosim.cli.options import console, print_json, question_of, say_notes
from hosim.cli.progress import progress
from hosim.options import Given, Option, declared

_OPTIONS = declared(
    "workload hardware policy plan budget top more_memory more_bandwidth devices no_recompute "
    "rescale json",
    Option(
        "plan",
        of=Path,
        metavar="FILE",
        help="A plan file to replay, instead of one that the policy makes.",
    ),
    Option(
        "top",
        of=int,
        default=20,
        metavar="N",
        least=1,
        help="How many stalls to show, the longest first.",
    ),
)


@command(*_OPTIONS)
def blame(given: Given) -> None:
    """Show what each stall waits for, and what would help.

    Shows the transfer, its channel, the traffic that occupied the channel, and what would have
    prevented the stall; then the time that more of each resource would save, and twice as much, by
    replays of the plan. Without --plan, the policy plans again for other amounts of device memory.
    Exit code 3 if the workload does not fit.
    """
    from dataclasses import asdict

    from hosim.report.of_studies import blame
    from hosim.study import blame as blamed
    from hosim.study import lines, price_rows, stall_rows, steps_of

    memory, bandwidth = steps_of(given.more_memory, given.more_bandwidth)
    question = question_of(given)
    made = None
    if given.plan is not None:
        from hosim.io import check_tiers, load_plan

        made = load_plan(given.plan, question.graph)
        check_tiers(made, question.hardware, source=str(given.plan))
    with progress() as tell:
        found = blamed(question, made, memory, bandwidth, tell)
    say_notes(found.result.notes)
    if given.json:
        result = found.result
        head = {
            "format": "hosim.blame/1",
            "workload": result.workload,
            "hardware": result.hardware,
            "policy": found.policy,
        }
        figures = {"budget_bytes": result.budget_bytes, "makespan_ns": result.makespan_ns}
        path = [{"what": what, "ns": ns} for what, ns in found.path_ns.items()]
        print_json(
            {
                **head,
                **figures,
                "stalls": stall_rows(found.stalls),
                "critical_path": path,
                "slopes": asdict(found.slopes),
                "prices": price_rows(found.prices),
            }
        )
    else:
        longest = sorted(found.stalls, key=lambda stall: -stall.stall_ns)
        console().print(
            blame(
                stall_rows(longest[: given.top]),
                len(longest),
                found.by_cause,
                [*lines(found.prices), *found.first_order],
                str(found),
            )
        )
