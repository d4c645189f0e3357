"""``hosim blame``: what each op waits for, and what would help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hosim.cli.options import (
    Budget,
    Devices,
    HardwareName,
    Json,
    NoRecompute,
    Policy,
    Rescale,
    Workload,
    console,
    print_json,
    question_of,
)
from hosim.cli.progress import progress
from hosim.cli.terminal import note

PlanFile = Annotated[
    Path | None,
    typer.Option(
        "--plan",
        metavar="FILE",
        help="A plan file to replay, instead of one that the policy makes.",
    ),
]
Top = Annotated[
    int,
    typer.Option("--top", metavar="N", min=1, help="How many stalls to show, the longest first."),
]
Memory = Annotated[
    str,
    typer.Option("--more-memory", metavar="BYTES", help="How much more device memory to price."),
]
Bandwidth = Annotated[
    str,
    typer.Option(
        "--more-bandwidth",
        metavar="RATE",
        help="How much more bandwidth to price, channel by channel.",
    ),
]


def blame(
    workload: Workload,
    hardware: HardwareName,
    policy: Policy = "hyperoffload",
    plan: PlanFile = None,
    budget: Budget = None,
    top: Top = 20,
    more_memory: Memory = "1GB",
    more_bandwidth: Bandwidth = "10GB/s",
    devices: Devices = None,
    no_recompute: NoRecompute = False,
    rescale: Rescale = False,
    json: Json = False,
) -> None:
    """Show what each stall waits for, and what would help.

    Shows the transfer, its channel, the traffic that occupied the channel, and what would have
    prevented the stall; then the time that more of each resource would save, and twice as much, by
    replays of the plan. Without --plan, the policy plans again for other amounts of device memory.
    Exit code 3 if the workload does not fit.
    """
    from hosim.report.of_studies import blame
    from hosim.study import blame as blamed
    from hosim.study import lines, price_rows, stall_rows, steps_of

    memory, bandwidth = steps_of(more_memory, more_bandwidth)
    question = question_of(workload, hardware, policy, budget, devices, no_recompute, rescale)
    made = None
    if plan is not None:
        from hosim.io import check_tiers, load_plan

        made = load_plan(plan, question.graph)
        check_tiers(made, question.hardware, source=str(plan))
    with progress() as tell:
        found = blamed(question, made, memory, bandwidth, tell)
    for line in found.result.notes:
        note(line)
    if json:
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
                "prices": price_rows(found.prices),
            }
        )
    else:
        longest = sorted(found.stalls, key=lambda stall: -stall.stall_ns)
        console().print(
            blame(
                stall_rows(longest[:top]),
                len(longest),
                found.by_cause,
                lines(found.prices),
                str(found),
            )
        )
