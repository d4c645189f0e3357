"""``ktransformers``: routed experts on the CPU, everything else on the device.

KTransformers (H. Chen et al., SOSP 2025; github.com/kvcache-ai/ktransformers): the weights of
routed experts stay in host memory and the CPU multiplies by them; activations and the router's
choice go down, results come back. Attention, shared experts and the router stay on the device.
Where experts run is the workload's (``experts_on``), or the CPU where it leaves that to the plan;
what is below without that comes up once, as with ``resident``.

Not modelled: experts in demand that are put on the device; experts whose results are added a layer
later; memory of several sockets; the experts of a prompt on the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hosim.cache_plan import Plan
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.planner.schedule import starts_elsewhere
from hosim.policies.computed_elsewhere import Make, made_on
from hosim.processors import others_of


def placed(
    graph: Graph, hardware: Hardware, budget_bytes: int, make: Make, parameters: Mapping[str, Any]
) -> Plan:
    """The plan for a workload that leaves it to the plan where ops run: those that read experts run
    on the CPU, others on the device.
    """
    others = {i: others_of(graph.ops[i], hardware) for i in graph.movable}
    reads = {
        i for i in others if any([graph.tensors[t].kind == "expert" for t in graph.ops[i].uses])
    }
    chosen = [
        (graph.ops[i].name, others[i][0] if i in reads and others[i] else graph.ops[i].processor)
        for i in others
    ]
    return made_on(graph, chosen, make, lambda fixed: starts_elsewhere(fixed, hardware))
