"""The table of machines: how long a workload takes on each, and how much of its memory is
enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType

from hosim.hardware import Hardware
from hosim.plain_text import counted
from hosim.report.of_replays import NOTHING, above, multiple, percent
from hosim.report.printing import open_table, paragraph
from hosim.units import human_percent, human_size, human_time


def machine_comparison(
    rows: Sequence[Mapping[str, Any]], profiles: Mapping[str, Hardware], near: float, verdict: str
) -> RenderableType:
    """One row per machine, or per machine and policy: makespan, slowdown against everything
    resident, and the smallest budget near that.

    ``profiles`` are the machines by their names, ``near`` is how many times the makespan with
    everything resident counts as near it.
    """
    several = ["policy"] if len({row["policy"] for row in rows}) > 1 else []
    enough = f"within\n{human_percent(near - 1, 0)}\nof resident"
    names = (
        "machine",
        *several,
        "memory",
        "budget",
        "makespan",
        "slowdown",
        "gap to\nbound",
        "peak",
        enough,
    )
    title = f"{rows[0]['workload']} on {counted(len(profiles), 'machine')}"
    table = open_table(
        title,
        *names,
        "of\nmemory",
        left=1 + len(several),
        spare=("gap to\nbound", "of\nmemory", "peak"),
    )
    best = min((row["makespan_ns"] for row in rows if row["makespan_ns"] is not None), default=None)
    for row in rows:
        capacity = profiles[row["hardware"]].device.capacity_bytes
        named = (
            row["hardware"],
            *(row["policy"] for _ in several),
            human_size(capacity),
            human_size(row["budget_bytes"]),
        )
        if row["makespan_ns"] is None:
            table.add_row(
                *named, "failed" if row["failed"] else "does not fit", *[NOTHING] * 5, style="red"
            )
            continue
        least = row["enough_bytes"]
        table.add_row(
            *named,
            human_time(row["makespan_ns"]),
            multiple(row["slowdown"]),
            above(row["makespan_ns"], row["lower_bound_ns"]),
            human_size(row["peak_bytes"] or 0),
            *(
                (human_size(least), percent(least, capacity))
                if least is not None
                else (NOTHING, NOTHING)
            ),
            style="green" if row["makespan_ns"] == best else None,
        )
    why_not = [
        f"{row['hardware']}, {row['policy']}: {row['error']}" for row in rows if row["error"]
    ]
    return Group(
        table, paragraph(*why_not, style="red", space=True), paragraph(f"{verdict}.", style="bold")
    )
