"""``zero_inference``: all weights below, streamed a layer ahead.

DeepSpeed ZeRO-Inference (R. Y. Aminabadi et al., DeepSpeed Inference, SC 2022):
:mod:`hosim.policies.own.layerwise` with all weights below. A KV cache with a home below is streamed
with its layers, unless the workload says that the attention runs there (``attention_on``), as the
real one does with ``--kv-offload``.
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
    made = layerwise.plan(
        graph,
        hardware,
        budget_bytes,
        layers_ahead=layers_ahead,
        kinds="parameter/expert",
        placement=placement,
    )
    return replace(made, policy="zero_inference")
