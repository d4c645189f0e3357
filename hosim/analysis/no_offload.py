"""Whether not to offload is the answer: everything fits, or the link is too slow for the step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hosim.analysis.critical_path import critical_path
from hosim.analysis.liveness import static_peak
from hosim.costmodel.op_time import op_durations
from hosim.graph import Graph
from hosim.hardware import Hardware


@dataclass(frozen=True, slots=True)
class NoOffload:
    """Why not to offload: everything ``fits``, or the ``link`` is too slow.

    With everything resident the step takes ``resident_ns`` and ``resident_bytes``, and ``devices`` hold that within their budgets.
    ``fastest_ns`` is what the fastest plan takes, if that is known.
    """

    reason: Literal["fits", "link"]
    resident_ns: int
    resident_bytes: int
    devices: int
    fastest_ns: int | None


def no_offload(
    graph: Graph, hardware: Hardware, budget_bytes: int, fastest_ns: int | None, least_ns: int | None = None
) -> NoOffload | None:
    """Why not to offload, where that is the answer; ``fastest_ns`` is the makespan of the fastest plan found by a planner.

    It is where the peak with everything resident is within the budget. And it is where offloading takes more of the time of devices than
    not to: where the fastest plan takes longer than the devices that would hold everything take together, if each takes as long as one
    device with everything resident. As many devices that divide the work take no more than that. So must what a plan takes that moves
    tensors in parts, ``least_ns`` (:func:`hosim.analysis.strongest_rival.least_in_parts`). On several streams, which may hold more at a
    time than in their listed order, all tensors have to fit together.
    """
    if graph.elsewhere:
        return None  # such a step moves tensors in any case
    peak = static_peak(graph).bytes if len(graph.streams) <= 1 else sum([tensor.size_bytes for tensor in graph.tensors])
    if not graph.ops or not budget_bytes or not peak:
        return None
    resident_ns = critical_path(graph, op_durations(graph, hardware)).length_ns
    devices = -(-peak // budget_bytes)
    if devices == 1:
        return NoOffload("fits", resident_ns, peak, 1, fastest_ns)
    times = [ns for ns in (fastest_ns, least_ns) if ns is not None]
    slow = fastest_ns is not None and min(times) > devices * resident_ns
    return NoOffload("link", resident_ns, peak, devices, fastest_ns) if slow else None
