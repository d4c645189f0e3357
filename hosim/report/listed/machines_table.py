"""The table of machines: how long a workload takes on each, and how much of its memory is
enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType

from hosim.hardware import Hardware
from hosim.plain_text import counted
from hosim.report.printing import Row, above, by_makespan, paragraph, table_of
from hosim.units import human_percent


def machine_comparison(
    rows: Sequence[Row], profiles: Mapping[str, Hardware], near: float, verdict: str
) -> RenderableType:
    """One row per machine, or per machine and policy: makespan, slowdown against everything
    resident, and the smallest budget near that.

    ``profiles`` are the machines by their names, ``near`` is how many times the makespan with
    everything resident counts as near it.
    """
    several = ["policy"] if len({row["policy"] for row in rows}) > 1 else []
    listed = [_figures(row, profiles[row["hardware"]].device.capacity_bytes) for row in rows]
    names = ("hardware", *several, "memory_bytes", "budget_bytes", "makespan_ns", "slowdown")
    table = table_of(
        f"{rows[0]['workload']} on {counted(len(profiles), 'machine')}",
        [*names, "gap_to_bound", "peak_bytes", "enough_bytes", "of_memory"],
        listed,
        left=1 + len(several),
        titles={
            "hardware": "machine",
            "enough_bytes": f"within\n{human_percent(near - 1, 0)}\nof resident",
        },
        spare=("gap_to_bound", "of_memory", "peak_bytes"),
        style=by_makespan(listed),
    )
    why_not = [
        f"{row['hardware']}, {row['policy']}: {row['error']}" for row in rows if row["error"]
    ]
    return Group(
        table, paragraph(*why_not, style="red", space=True), paragraph(f"{verdict}.", style="bold")
    )


def _figures(row: Row, capacity: int) -> Row:
    """The columns of a machine whose device has this capacity in bytes."""
    asked = {name: row[name] for name in ("hardware", "policy", "budget_bytes")}
    asked["memory_bytes"] = capacity
    if row["makespan_ns"] is None:
        return {**asked, "makespan_ns": "failed" if row["failed"] else "does not fit"}
    least = row["enough_bytes"]
    return {
        **asked,
        "makespan_ns": row["makespan_ns"],
        "slowdown": row["slowdown"],
        "gap_to_bound": above(row["makespan_ns"], row["lower_bound_ns"]),
        "peak_bytes": row["peak_bytes"] or 0,
        "enough_bytes": least,
        "of_memory": None if least is None else least / capacity,
    }
