"""``hosim pipeline``: one step of all stages of a pipeline."""

from __future__ import annotations

from typing import Annotated

import typer

from hosim.cli.options import (
    Budget,
    HardwareName,
    Json,
    Policy,
    Trace,
    check_trace,
    console,
    print_json,
)
from hosim.cli.progress import progress
from hosim.cli.terminal import say
from hosim.errors import InfeasibleError

Workloads = Annotated[
    list[str],
    typer.Argument(
        metavar="WORKLOAD...",
        help="A model with its pipeline, as in llama-3.1-8b:phase=train:pipeline=4; or a workload "
        "for each stage, with messages.",
    ),
]


def pipeline(
    workloads: Workloads,
    hardware: HardwareName,
    policy: Policy = "hyperoffload",
    budget: Budget = None,
    trace: Trace = None,
    json: Json = False,
) -> None:
    """Replay the stages of a pipeline together.

    Shows how long each stage waits for others. The policy plans each stage alone, without these
    waits. The machine has one device for each stage.
    Exit code 3 if a stage does not fit.
    """
    from hosim.api import plan_stages, replay_stages
    from hosim.report.of_studies import stages, stages_to_dict

    check_trace(trace)
    with progress(f"{policy}: planning and replaying stages"):
        plans = plan_stages(workloads, hardware, policy, budget)
        result = replay_stages(plans, record=trace is not None)
    if trace is not None:
        from hosim.files import write
        from hosim.report.timelines import trace_of_stages

        write(trace, trace_of_stages(plans, result))
        say(f"wrote {trace}")
    if json:
        print_json(stages_to_dict(result))
    else:
        console().print(stages(result, plans))
    if not result.feasible:
        raise typer.Exit(InfeasibleError.exit_code)
