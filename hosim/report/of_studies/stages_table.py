"""The table of ``hosim pipeline``, and what its ``--json`` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType

from hosim.cache_plan import Plan
from hosim.data.stages import StagesResult
from hosim.notes import sentence
from hosim.plain_text import counted, printable
from hosim.report.of_replays import failures
from hosim.report.printing import NOTHING, open_table, paragraph, percent, time_or_nothing
from hosim.units import human_size, human_time


def stages(result: StagesResult, plans: Sequence[Plan]) -> RenderableType:
    """A row for each stage of the result of ``plans``: its times, its peak in each tier, and how
    long it waits for others.
    """
    whole = result.whole
    tiers = [tier for tier, size in whole.peak_bytes.items() if size]
    columns = (
        "busy",
        "bubble",
        "of the\nstep",
        "dependency\nstall",
        "transfer\nstall",
        "capacity\nstall",
        *[f"peak\n{tier}" for tier in tiers],
    )
    took = f"; the step takes {human_time(result.step_ns)}" if result.step_ns is not None else ""
    table = open_table(
        f"{counted(len(plans), 'stage')} of {_model(plans)} on {whole.hardware}{took}",
        "stage",
        "ends at",
        *columns,
    )
    for stage, (one, bubble) in enumerate(zip(result.stages, result.bubble_ns, strict=True)):
        times = [NOTHING] * 7
        if result.feasible and one.makespan_ns is not None:
            stalls = [
                time_or_nothing(one.stall_ns[cause])
                for cause in ("dependency", "transfer", "capacity")
            ]
            share = percent(bubble, result.step_ns or 0)
            times = [
                human_time(one.makespan_ns),
                time_or_nothing(one.busy_ns),
                time_or_nothing(bubble),
                share,
                *stalls,
            ]
        peaks = [
            human_size(one.peak_bytes[tier]) if one.peak_bytes[tier] else NOTHING for tier in tiers
        ]
        table.add_row(str(stage), *times, *peaks, style=None if one.feasible else "red")
    policy = printable(plans[0].policy)
    said = [
        f"{policy} decides while the stages run."
        if plans[0].runtime is not None
        else f"Planned by {policy}, each stage alone: the plans know nothing of the waits for "
        "other stages.",
        "The bubble is what other stages cause of the dependency stall, and of the time from the "
        "end of the stage to that of the step.",
    ]
    if result.bubble is not None:
        said[1] += f" Here it is {percent(result.bubble, 1)} of the time of all stages."
    if not any(op.message for plan in plans for op in plan.graph.ops):
        said.append("No op of these workloads has a message, so no stage waits for another one.")
    said += [sentence(line) for line in result.notes]
    return Group(table, *[paragraph(line) for line in said], failures([whole]))


def _model(plans: Sequence[Plan]) -> str:
    """The model of the stages; for stages of somebody's own the names of the first and the last."""
    names = list(
        dict.fromkeys(
            [plan.graph.name.removesuffix(f":stage={stage}") for stage, plan in enumerate(plans)]
        )
    )
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


def stages_to_dict(result: StagesResult) -> dict[str, Any]:
    """The figures as ``hosim pipeline --json`` prints them; times are null where some stage does
    not fit.
    """
    whole = result.whole
    return {
        "format": "hosim.stages/1",
        "hardware": whole.hardware,
        "feasible": result.feasible,
        "error": result.error,
        "step_ns": result.step_ns,
        "bubble": result.bubble,
        "peak_bytes": dict(whole.peak_bytes),
        "stages": list(result.rows()),
        "notes": result.notes,
    }
