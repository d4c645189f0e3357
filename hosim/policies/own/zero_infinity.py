"""``zero_infinity``: parameters and optimizer states below, streamed a layer ahead.

ZeRO-Infinity (S. Rajbhandari et al., SC 2021): :mod:`hosim.policies.own.layerwise` with parameters
and optimizer states below, in drives where memory has no room. Where the workload says that the
optimizer runs on the CPU (``optimizer_on``), gradients are stored as the backward pass makes them,
the CPU writes the parameters where they live, and states that live in drives (``states_home``) pass
through host memory. Checkpoints of activations stay on the device.
"""

from __future__ import annotations

from hosim.analysis import homes_below
from hosim.cache_plan import Plan
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.planner.schedule import forced_tensors, planned_around
from hosim.planner.schedule.tiers_below import FASTEST, read_placement, space_below
from hosim.policies.own import layerwise

_KINDS = "parameter/expert/optimizer_state"


def plan(
    graph: Graph,
    hardware: Hardware,
    budget_bytes: int,
    *,
    layers_ahead: int,
    placement: str = FASTEST,
) -> Plan:
    """The plan."""

    def others(rest: Graph, machine: Hardware, budget: int) -> Plan:
        return layerwise.plan(
            rest, machine, budget, layers_ahead=layers_ahead, kinds=_KINDS, placement=placement
        )

    if not graph.elsewhere:
        return others(graph, hardware, budget_bytes)
    initial = weights_below(graph, hardware, placement)
    ahead = layers_ahead * ops_of_a_layer(graph, set(initial))
    return planned_around(graph, hardware, budget_bytes, others, initial, ahead)


def weights_below(
    graph: Graph, hardware: Hardware, placement: str = FASTEST
) -> dict[int, tuple[str, ...]]:
    """A tier below for each parameter that another processor writes and that is on the device, as
    far as there is room.
    """
    away, there = homes_below(graph, hardware), set(graph.initial)
    space = space_below(graph, hardware, away, read_placement(placement, hardware))
    forced = [
        t
        for t in forced_tensors(graph)
        if graph.tensors[t].kind in layerwise.WEIGHTS and t in there and t not in away
    ]
    tiers = {t: space.place(t, 0) for t in forced}
    return {t: (tier,) for t, tier in tiers.items() if tier is not None}


def ops_of_a_layer(graph: Graph, weights: set[int]) -> int:
    """About how many ops of the device use the weights of a layer, at least one."""
    visits = [
        visit for visit in layerwise.visits(graph, weights) if not graph.ops[visit.first].processor
    ]
    return max(1, (len(graph.ops) - len(graph.elsewhere)) // max(1, len(visits)))
