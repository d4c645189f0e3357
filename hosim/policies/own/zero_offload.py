"""``zero_offload``: optimizer states below, and the parameters on the device.

ZeRO-Offload (J. Ren et al., ATC 2021). Where the workload says that the optimizer runs on the CPU
(``optimizer_on``), the states stay below; each gradient is stored when the backward pass has made
it, and each parameter comes back when the CPU has written it: 4 bytes a parameter over the link.
Everything else stays on the device, the states
of parameters that are updated there among them (``optimizer_share``, the ratio of Twin-Flow).

Where the optimizer runs on the device, it is :mod:`hosim.policies.own.layerwise` with the states
below: they come up and go back, 24 bytes a parameter for Adam in fp32 with master weights.
"""

from __future__ import annotations

from dataclasses import replace

from hosim.cache_plan import Plan
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.policies.own import layerwise
from hosim.schedule.tiers_below import FASTEST


def plan(
    graph: Graph,
    hardware: Hardware,
    budget_bytes: int,
    *,
    layers_ahead: int,
    placement: str = FASTEST,
) -> Plan:
    """The plan."""
    # planned around, updates on the CPU use no tensors (hosim.schedule.around_processors)
    on_cpu = any([op.kind == "optimizer" and not op.uses for op in graph.ops])
    made = layerwise.plan(
        graph,
        hardware,
        budget_bytes,
        layers_ahead=layers_ahead,
        kinds="" if on_cpu else "optimizer_state",
        placement=placement,
    )
    return replace(made, policy="zero_offload")
