"""What software would make of makespans, where none is named."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from hosim.graph import Graph
from hosim.io.runtimes import runtimes_for
from hosim.report.printing import paragraph
from hosim.result import Result
from hosim.units import human_time


def without_runtime(graph: Graph, results: Sequence[Result]) -> Text:
    """What the fastest plan takes under the runtimes that run such steps, where none is named and
    its times are modelled: their kernels' speed in a whole step, alone.
    """
    found = runtimes_for(graph)
    timed = [r for r in results if r.feasible and r.makespan_low_ns is not None]
    if not found or not timed:
        return paragraph()
    best = min(timed, key=lambda r: r.makespan_ns or 0)
    slow, fast = found[0], found[-1]
    ends = [
        human_time(
            round((best.makespan_ns or 0) + (best.busy_ns or 0) * (1 / each.speed.value - 1))
        )
        for each in (fast, slow)
    ]
    return paragraph(
        f"No runtime is named (hosim runtime list): software that runs such steps sustains "
        f"{slow.speed.value:.2f} ({slow.name}) to {fast.speed.value:.2f} ({fast.name}) of the "
        f"speed that kernels have alone, with which {best.policy} takes {ends[0]} to {ends[1]}.",
        space=True,
    )
