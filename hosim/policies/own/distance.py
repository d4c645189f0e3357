"""``distance``: move whatever lies idle for many ops, as the distance strategy of MindSpore 2.10
does.

Source: the knobs documented in ``mindspore/graph/_parse/compile_config.py`` of the 2.10 wheel and
its public headers (``DistanceBaseHyperOffloadStrategy``: "definition-use gap analysis";
``OffloadInfoFilterByNumber``; ``HyperOffloadOperations::MoveAhead``). It skips what ops write in
place. Documented: the four distances and numbers. Our reading: of more than ``select_num``
candidates the widest are kept, then the largest, then the earliest; weights count as well
(``auto_offload="all"``); the prefetch is issued ``prefetch_distance`` ops before the op that needs
it, the release ``release_distance`` ops after the last use, and the store right after that use. It
knows no budget: what it moves is the same for every one.

Tensors start where they are at home, unless those at home in the device tier do not fit there at
the step's start or end: then all of them start below. What starts below is prefetched
``prefetch_distance`` ops before its first use and released after its last.
"""

from __future__ import annotations

from collections.abc import Iterable

from hosim.analysis import Gap
from hosim.cache_plan import Plan
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.planner.schedule import Absence, below_at_ends, between_uses, insert
from hosim.planner.schedule.tiers_below import FASTEST, read_placement, space_below, starts


def plan(
    graph: Graph,
    hardware: Hardware,
    budget_bytes: int,
    *,
    select_distance: int,
    select_num: int,
    prefetch_distance: int,
    release_distance: int,
    placement: str = FASTEST,
) -> Plan:
    """The plan. O(uses + candidates log candidates)."""
    rule = read_placement(placement, hardware)
    initial = starts(graph, hardware, budget_bytes, rule)
    residency = Plan(graph, initial=initial).residency(hardware.device_tier)
    sizes = [tensor.size_bytes for tensor in graph.tensors]
    found = [
        gap
        for gap in between_uses(graph, not_in_place(graph))
        if gap.before - gap.after >= select_distance
    ]
    found.sort(key=lambda gap: (gap.after - gap.before, -sizes[gap.tensor], gap.after, gap.before))
    space = space_below(graph, hardware, residency, rule)
    absences = []
    for gap in (*below_at_ends(graph, residency, hardware.device_tier), *found[:select_num]):
        tier = space.place(gap.tensor, gap.after)
        if tier is not None:
            absences.append(at_distance(gap, tier, prefetch_distance, release_distance))
    return insert(graph, hardware, "distance", absences, initial)


def not_in_place(graph: Graph) -> Iterable[int]:
    """Tensors that no op mutates."""
    mutated = {t for op in graph.ops for t in op.mutates}
    return (t for t in range(len(graph.tensors)) if t not in mutated)


def at_distance(gap: Gap, tier: str, prefetch_distance: int, release_distance: int) -> Absence:
    """The absence that begins and ends so many ops from the uses, within the idle time."""
    release = min(gap.after + release_distance, gap.before - 1)
    prefetch = max(gap.before - 1 - prefetch_distance, release)
    return Absence(gap.tensor, gap.after, gap.before, gap.after, release, prefetch, tier)
