"""The processors on which a plan lets ops run that may run on several: a table for people."""

from __future__ import annotations

from rich.console import RenderableType

from hosim.analysis.lower_bounds import durations_by_processor
from hosim.cache_plan import Plan
from hosim.graph import DEVICE
from hosim.hardware import Hardware
from hosim.plain_text import printable
from hosim.report.printing import NOTHING, open_table
from hosim.units import human_time

_NAMED = 3
"""Ops of a row that are named."""


def chosen_processors(plan: Plan, hardware: Hardware) -> RenderableType:
    """A row for each kind of op and the processor that the plan chose: how many, and what they take
    there and on the others.
    """
    graph, index = plan.workload, plan.workload.op_index
    of: dict[tuple[str, str], list[int]] = {}
    for name, processor in plan.processors.items():
        of.setdefault((graph.ops[index[name]].kind, processor), []).append(index[name])
    times = durations_by_processor(graph, hardware)
    table = open_table(
        "Ops that may run on several processors",
        "ops",
        "count",
        *[f"on {p or DEVICE}" for p in times],
        "which",
        prose=("which",),
    )
    for (kind, processor), listed in sorted(of.items()):
        taken = [[ns[i] for i in listed if i in ns] for ns in times.values()]
        names = [printable(graph.ops[i].name) for i in listed[:_NAMED]]
        more = f" and {len(listed) - _NAMED} more" if len(listed) > _NAMED else ""
        table.add_row(
            f"{printable(kind)} on {processor or DEVICE}",
            f"{len(listed):,}",
            *[human_time(sum(ns)) if len(ns) == len(listed) else NOTHING for ns in taken],
            ", ".join(names) + more,
        )
    return table
