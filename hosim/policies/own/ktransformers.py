"""``ktransformers``: routed experts on the CPU, everything else on the device.

KTransformers (H. Chen et al., SOSP 2025; github.com/kvcache-ai/ktransformers): the weights of routed experts stay in host memory and the
CPU multiplies by them; activations and the router's choice go down, results come back. Attention, shared experts and the router stay on the
device. Where experts run is the workload's (``experts_on``); what is below without that comes up once, as with ``resident``.

Not modelled: experts in demand that are put on the device; experts whose results are added a layer later; memory of several
sockets; the experts of a prompt on the device.
"""

from __future__ import annotations

from dataclasses import replace

from hosim.cache_plan import Plan
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.policies.own import resident


def plan(graph: Graph, hardware: Hardware, budget_bytes: int) -> Plan:
    """The plan."""
    return replace(resident.plan(graph, hardware, budget_bytes), policy="ktransformers")
