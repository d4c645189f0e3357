"""Tell whether not to offload is the answer: everything fits, or the link is too slow for the
step.
"""

from dataclasses import dataclass
from typing import Literal

from hosim.graph import Graph


@dataclass(frozen=True, slots=True)
class NoOffload:
    """The reason not to offload: everything ``fits``, or the ``link`` is too slow.

    With everything resident the step takes ``resident_ns`` and ``resident_bytes``, and ``devices``
    hold that within their budgets. ``fastest_ns`` is what the fastest plan takes, if that is known.
    """

    reason: Literal["fits", "link"]
    resident_ns: int
    resident_bytes: int
    devices: int
    fastest_ns: int | None


def no_offload(
    graph: Graph,
    resident_ns: int,
    resident_bytes: int,
    budget_bytes: int,
    fastest_ns: int | None,
    least_ns: int | None = None,
) -> NoOffload | None:
    """Return the reason not to offload, where that is the answer; ``fastest_ns`` is the makespan of
    the fastest plan found by a planner.

    ``resident_ns`` and ``resident_bytes`` are the makespan and the peak of the replay with
    everything resident.

    It is where the peak with everything resident is within the budget. And it is where offloading
    takes more of the time of devices than not to: where the fastest plan takes longer than the
    devices that would hold everything take together, if each takes as long as one device with
    everything resident. As many devices that divide the work take no more than that. So must what a
    plan takes that moves tensors in parts, ``least_ns``
    (:func:`hosim.analysis.remarks.strongest_rival.least_in_parts`). Where ops may run on another
    processor the link is not judged.
    """
    if graph.elsewhere:
        return None  # such a step moves tensors in any case
    if not graph.ops or not budget_bytes or not resident_bytes:
        return None
    devices = -(-resident_bytes // budget_bytes)
    if devices == 1:
        return NoOffload("fits", resident_ns, resident_bytes, 1, fastest_ns)
    if graph.movable:
        return None  # a plan may compute where tensors lie: it is not the link that takes its time
    times = [ns for ns in (fastest_ns, least_ns) if ns is not None]
    slow = fastest_ns is not None and min(times) > devices * resident_ns
    return NoOffload("link", resident_ns, resident_bytes, devices, fastest_ns) if slow else None
