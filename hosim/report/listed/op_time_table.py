"""The times of a workload's ops on a machine, and their source: measured, a table, the fitted
model, or a guess.
"""

from __future__ import annotations

from collections import Counter

from rich.table import Table

from hosim.costmodel import ORIGINS, op_durations, time_origins
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.report.printing import NOTHING, open_table, percent
from hosim.units import human_clock, human_time


def op_times(graph: Graph, hardware: Hardware, every: bool = False) -> Table:
    """A row for each kind of op, the longest first, or for ``every`` op in listed order."""
    durations, origins = op_durations(graph, hardware), time_origins(graph, hardware)
    if every:
        table = open_table(
            f"Times on {hardware.name}{under_load(hardware)}",
            "op",
            "kernel",
            "sizes",
            "time",
            "from",
            left=3,
        )
        for op, ns, origin in zip(graph.ops, durations, origins, strict=True):
            table.add_row(
                op.name,
                op.kernel or NOTHING,
                " ".join(map(str, op.sizes)) or NOTHING,
                human_time(ns),
                origin,
            )
        return table
    times, counts = Counter[tuple[str, str, str]](), Counter[tuple[str, str, str]]()
    for op, ns, origin in zip(graph.ops, durations, origins, strict=True):
        times[op.kind, op.kernel, origin] += ns
        counts[op.kind, op.kernel, origin] += 1
    table = open_table(
        f"Times on {hardware.name}{under_load(hardware)}",
        "kind",
        "kernel",
        "from",
        "ops",
        "time",
        left=3,
    )
    for key, ns in sorted(times.items(), key=lambda item: (-item[1], item[0])):
        kind, kernel, origin = key
        table.add_row(kind, kernel or NOTHING, origin, f"{counts[key]:,}", human_time(ns))
    return table


def under_load(hardware: Hardware) -> str:
    """Return the note after a clock where the processor sustains a lower one, at which peaks count;
    else nothing.
    """
    figures = hardware.compute.processor
    return (
        f"; peaks count at the {human_clock(figures.sustained_hz)} that it sustains"
        if figures is not None and figures.sustained_hz
        else ""
    )


def origin_lines(graph: Graph, hardware: Hardware) -> list[str]:
    """Return the shares of the ops' time by origin, in one line; none for a profile without a
    processor, where all is measured or guessed.
    """
    if hardware.compute.processor is None:
        return []
    times = Counter[str]()
    for ns, origin in zip(
        op_durations(graph, hardware), time_origins(graph, hardware), strict=True
    ):
        times[origin] += ns
    whole = sum(times.values()) or 1
    return [
        "Times of ops: "
        + ", ".join(
            f"{origin} {percent(times[origin], whole)}" for origin in ORIGINS if times[origin]
        )
        + "."
    ]
