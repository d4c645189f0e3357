"""``hosim pipeline``: one step of all stages of a pipeline."""

from __future__ import annotations

from hosim.cli.answers import show_answer
from hosim.cli.commands import command
from hosim.cli.options import check_trace, hardware_of
from hosim.cli.progress import progress
from hosim.cli.terminal import say
from hosim.io.options import REQUIRED, Given, Option, declared

_OPTIONS = declared(
    "workloads hardware policy budget detail trace json",
    Option(
        "workloads",
        of=list[str],
        default=REQUIRED,
        argument=True,
        metavar="WORKLOAD...",
        help="A model with its pipeline, as in llama-3.1-8b:phase=train:pipeline=4; or a workload "
        "for each stage, with messages.",
    ),
)


@command(*_OPTIONS)
def pipeline(given: Given) -> None:
    """Replay the stages of a pipeline together.

    Shows how long each stage waits for others. The policy plans each stage alone, without these
    waits. The machine has one device for each stage. --detail prints every figure.
    Exit code 3 if a stage does not fit.
    """
    from hosim.api import plan_stages, replay_stages
    from hosim.plain_text import counted
    from hosim.report.answers import stages_answer
    from hosim.report.of_studies import stages, stages_to_dict

    workloads, trace = given.workloads, given.trace
    check_trace(trace)
    with progress(f"{given.policy}: planning and replaying stages"):
        plans = plan_stages(workloads, given.hardware, given.policy, given.budget)
        result = replay_stages(plans, record=trace is not None)
    if trace is not None:
        from hosim.base.files import write
        from hosim.report.timelines import trace_of_stages

        write(trace, trace_of_stages(plans, result))
        say(f"wrote {trace}")
    title = f"{', '.join(workloads)} on {result.whole.hardware}: {counted(len(plans), 'stage')}"
    answer = stages_answer(title, result, hardware_of(given.hardware).device_tier)
    data, fits = stages_to_dict(result), result.feasible
    show_answer(answer, given, lambda: data, lambda: [stages(result, plans)], fits=fits)
