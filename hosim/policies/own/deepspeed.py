"""``zero_infinity`` and ``superoffload``: the optimizer on the CPU, and parameters below or, if they
fit, on the device.

ZeRO-Infinity (S. Rajbhandari et al., SC 2021): :mod:`hosim.policies.own.layerwise` with parameters
and optimizer states below, in drives where memory has no room, streamed a layer ahead. Where the
workload says that the optimizer runs on the CPU (``optimizer_on``), gradients are stored as the
backward pass makes them, the CPU writes the parameters where they live, and states that live in
drives (``states_home``) pass through host memory. Checkpoints of activations stay on the device.

SuperOffload (X. Lian et al., arXiv 2509.21271), for superchips whose CPU is close to the GPU. Its
adaptive offloading leaves parameters on the device ("weight-stationary") or streams them layer by
layer ("weight-flow"): here they stay if the plan fits then, else they are streamed as ZeRO-Infinity
does it. Its updates begin before all gradients are there and are undone where a check rejects them:
that is the workload's (``optimizer_on`` with ``update: speculative``).

Not modelled: buckets of 64 MB, for each of which gradients and parameters move together; an
optimizer on the device for the last buckets; casts on the device, for which gradients and
parameters cross the link in fp32; undone updates.
"""

from hosim.analysis import homes_below
from hosim.cache_plan import Plan
from hosim.engine import verdict
from hosim.errors import InfeasibleError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.planner.schedule import forced_tensors, planned_around
from hosim.planner.schedule.tiers_below import FASTEST, read_placement, space_below
from hosim.policies.own import layerwise, resident

_KINDS = "parameter/expert/optimizer_state"


def zero_infinity(
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


def superoffload(
    graph: Graph,
    hardware: Hardware,
    budget_bytes: int,
    *,
    layers_ahead: int,
    placement: str = FASTEST,
) -> Plan:
    """The plan: parameters on the device if that fits."""
    try:
        made = planned_around(graph, hardware, budget_bytes, resident.plan)
        fits = verdict(made, hardware, budget_bytes).feasible
    except InfeasibleError:
        fits = False
    if fits:
        return made
    return zero_infinity(
        graph, hardware, budget_bytes, layers_ahead=layers_ahead, placement=placement
    )


# -- FSDP
# --------------------------------------------------------------------------------------------------
# ``fsdp_offload``: FSDP with its shards and its optimizer on the CPU.
#
# PyTorch's ``FSDP(cpu_offload=CPUOffload(offload_params=True))`` and FSDP2's ``CPUOffloadPolicy``:
# shards of parameters live in host memory, come up in fp32 each time before they are gathered, and
# shards of gradients go down once they are reduced; the optimizer runs on the CPU. The workload says
# so: ``data``, ``zero=3``, ``shards_home`` and ``optimizer_on``. With several micro-batches torch
# adds gradients up on the CPU, where each one's goes down; here they are added up on the device, and
# go down once.
#
# Where the optimizer runs on the device it is :mod:`hosim.policies.own.layerwise`: shards that live
# below are streamed.


def fsdp_offload(graph: Graph, hardware: Hardware, budget_bytes: int, *, ops_ahead: int) -> Plan:
    """The plan."""

    def others(rest: Graph, machine: Hardware, budget: int) -> Plan:
        return layerwise.plan(rest, machine, budget, layers_ahead=1, kinds="")

    if not graph.elsewhere:
        return others(graph, hardware, budget_bytes)
    return planned_around(graph, hardware, budget_bytes, others, ahead=ops_ahead, stays=0)
