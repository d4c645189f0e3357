"""The tiers in which tensors start a step that is one of many, under a runtime that keeps what each
step uses first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hosim.analysis import homes_below
from hosim.cache_plan import Plan
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.planner.schedule.stays import Stays
from hosim.planner.schedule.tiers_below import LAST, Placement, space_below, tensors_below


def starts_below(graph: Graph, hardware: Hardware) -> list[int]:
    """The tensors that are used and do not start in the device tier."""
    return [t for t in homes_below(graph, hardware) if graph.users[t]]


def kept_from_the_start(
    graph: Graph, hardware: Hardware, budget_bytes: int, rule: Placement | None
) -> Mapping[int, tuple[str, ...]]:
    """The tiers of what starts below, though it is at home in the device tier: what is used last,
    as much as lets the rest stay.
    """
    residency = Plan(graph).residency(hardware.device_tier)
    at_home = starts_below(graph, hardware)
    stays = graph.derived_on(hardware, Stays)

    def lacking(tensors: Sequence[int], way: int) -> int:
        return stays.peak_bytes(stays.of([*at_home, *tensors], 0, 0)) - budget_bytes

    chosen, _ = tensors_below(
        graph, {"weights": None, "cache": None, "states": None}, LAST, 1, lacking
    )
    space = space_below(graph, hardware, {t: residency[t] for t in at_home}, rule)
    tiers = {t: space.place(t, 0) for t in chosen if t in residency and t not in at_home}
    return {t: (tier,) for t, tier in tiers.items() if tier is not None}
