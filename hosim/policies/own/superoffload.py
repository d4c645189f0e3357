"""``superoffload``: the optimizer on the CPU, and parameters on the device while they fit there,
else below.

SuperOffload (X. Lian et al., arXiv 2509.21271), for superchips whose CPU is close to the GPU. Its
adaptive offloading leaves parameters on the device ("weight-stationary") or streams them layer by
layer ("weight-flow"): here they stay if the plan fits then, else they are streamed as
:mod:`hosim.policies.own.zero_infinity` does it. Its updates begin before all gradients are there
and are undone where a check rejects them: that is the workload's (``optimizer_on`` with ``update:
speculative``).

Not modelled: buckets of 64 MB, for each of which gradients and parameters move together; an
optimizer on the device for the last buckets; casts on the device, for which gradients and
parameters cross the link in fp32; undone updates.
"""

from __future__ import annotations

from hosim.cache_plan import Plan
from hosim.engine import replay
from hosim.errors import InfeasibleError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.planner.schedule import planned_around
from hosim.planner.schedule.tiers_below import FASTEST
from hosim.policies.own import resident, zero_infinity


def plan(
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
        fits = replay(made, hardware, budget_bytes).feasible
    except InfeasibleError:
        fits = False
    if fits:
        return made
    return zero_infinity.plan(
        graph, hardware, budget_bytes, layers_ahead=layers_ahead, placement=placement
    )
