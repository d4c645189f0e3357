"""``longest_gap``: activations in the longest gaps first until the peak fits, hyper-parallel's
greedy planner.

Source: github mindspore-ai/hyper-parallel (Apache-2.0), its activation residency planner. The rule
as published: candidates are the gaps between adjacent accesses of an activation with at least one
op inside; sorted by (length in ops, bytes, earlier release), the largest first; one is taken only
if it covers an op that is over budget; its bytes are then subtracted over its inside; it stops when
the peak fits. The copy down starts after the latest write at or before the release, the copy up
just before the op that needs it, with no lead.

Our reading: the budget is the whole device tier's, so the account of ops over budget holds
parameters and workspaces too. Everything else stays where it is at home, unless what is at home in
the device tier does not fit there at the step's start or end: then all of that starts below and
comes up just before its first use.
"""

from __future__ import annotations

from hosim.analysis import Gap
from hosim.cache_plan import AT_START, Plan
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.planner.schedule import (
    Absence,
    below_at_ends,
    between_uses,
    held_bytes,
    insert,
    take_away,
)
from hosim.planner.schedule.tiers_below import FASTEST, read_placement, space_below, starts


def plan(graph: Graph, hardware: Hardware, budget_bytes: int, *, placement: str = FASTEST) -> Plan:
    """The plan. O(candidates log candidates) steps, each along its gap."""
    rule = read_placement(placement, hardware)
    initial = starts(graph, hardware, budget_bytes, rule)
    residency = Plan(graph, initial=initial).residency(hardware.device_tier)
    space = space_below(graph, hardware, residency, rule)
    held = held_bytes(graph, hardware.device_tier)
    absences = []
    for gap in below_at_ends(graph, residency, hardware.device_tier):
        absence = _absence(gap, residency[gap.tensor][0])
        take_away(held, graph, absence)
        absences.append(absence)
    sizes = [tensor.size_bytes for tensor in graph.tensors]
    found = list(
        between_uses(
            graph,
            (
                t
                for t, tensor in enumerate(graph.tensors)
                if tensor.kind == "activation" and tensor.size_bytes
            ),
        )
    )
    found.sort(key=lambda gap: (gap.after - gap.before, -sizes[gap.tensor], gap.after))
    peak = held.max(initial=budget_bytes)
    for gap in found:
        if peak <= budget_bytes:
            break
        if held[gap.after + 1 : gap.before].max() <= budget_bytes:
            continue
        tier = space.place(gap.tensor, gap.after)
        if tier is None:
            continue
        absence = _absence(gap, tier)
        take_away(held, graph, absence)
        peak = held.max()
        absences.append(absence)
    return insert(graph, hardware, "longest_gap", absences, initial)


def _absence(gap: Gap, tier: str) -> Absence:
    """Stored after the latest write, released at the last use, back just before the next one."""
    store = gap.after if gap.written == AT_START else gap.written
    return Absence(
        gap.tensor, gap.after, gap.before, store, gap.after, max(gap.before - 1, AT_START), tier
    )
