"""``hosim blame``: what each op waits for, and what would help."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hosim.cli.answers import show_answer, study_title
from hosim.cli.commands import command
from hosim.cli.options import question_of, say_notes
from hosim.cli.progress import progress
from hosim.io.options import OPTIONS, Given, Option, declared

if TYPE_CHECKING:
    from rich.console import RenderableType

_MOST = 20
"""Stalls that --detail shows."""

_OPTIONS = declared(
    "workload hardware policy plan budget top more_memory more_bandwidth devices no_recompute "
    "rescale detail json",
    Option(
        "plan",
        of=Path,
        metavar="FILE",
        help="A plan file to replay, instead of one that the policy makes.",
    ),
    replace(
        OPTIONS["top"],
        help="How many stalls to show, the longest first.  [default: 5, with --detail 20]",
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

    from hosim.report.answers import ROWS, blame_answer
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
    longest = sorted(found.stalls, key=lambda stall: -stall.stall_ns)
    prices = lines(found.prices)
    answer = blame_answer(
        study_title("what it waits for", question),
        stall_rows(longest[: given.top or ROWS]),
        len(longest),
        str(found),
        prices,
    )

    def data() -> dict[str, Any]:
        result = found.result
        return {
            "format": "hosim.blame/1",
            "workload": result.workload,
            "hardware": result.hardware,
            "policy": found.policy,
            "answer": answer.verdict,
            "budget_bytes": result.budget_bytes,
            "makespan_ns": result.makespan_ns,
            "stalls": stall_rows(found.stalls),
            "critical_path": [{"what": what, "ns": ns} for what, ns in found.path_ns.items()],
            "slopes": asdict(found.slopes),
            "prices": price_rows(found.prices),
        }

    def tables() -> Iterator[RenderableType]:
        shown = stall_rows(longest[: given.top or _MOST])
        every = [*prices, *found.first_order]
        yield blame(shown, len(longest), found.by_cause, every, str(found))

    show_answer(answer, given, data, tables)
