"""Systems that are a setting of another policy: named, so that one can ask for them, but no policies of their own.

All of them compute on the device here. What the published systems compute on the host moves through the channels instead.

``zero_inference``
    DeepSpeed ZeRO-Inference (R. Y. Aminabadi et al., DeepSpeed Inference, SC 2022): :mod:`hosim.policies.own.layerwise` with all weights
    below. A KV cache with a home below is streamed with its layers; the real one leaves it on the host with ``--kv-offload`` and computes
    the attention there.
``flexgen``
    FlexGen (Y. Sheng et al., ICML 2023): :mod:`hosim.policies.own.static_split`, by percentages of weights, cache and activations in whole
    tensors, double buffered. Its zig-zag over batches uses a layer's weights for several batches before the next layer's: that is what a
    graph does whose batch is all of them, which is how its table gives batches (48 x 3). The order of a graph's ops is not changed.
    FlexGen searches the percentages by a linear program, has more of them (for the disk), and may compute the attention on the host; here
    they are the smallest that fit, unless given.
``zero_offload``
    ZeRO-Offload (J. Ren et al., ATC 2021): :mod:`hosim.policies.own.layerwise` with the optimizer states below. The real one updates the
    parameters on the host, so that gradients go down and parameters come up, 4 bytes a parameter. Here the states come up and go back,
    24 bytes for Adam in fp32 with master weights.
``zero_infinity``
    ZeRO-Infinity (S. Rajbhandari et al., SC 2021): :mod:`hosim.policies.own.layerwise` with parameters and optimizer states below, in
    drives where memory has no room. The update is on the device as well, and checkpoints of activations stay there.
"""

from __future__ import annotations

from dataclasses import replace

from hosim.cache_plan import Plan
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.policies.own import layerwise, static_split
from hosim.schedule.placement import FASTEST


def zero_inference(graph: Graph, hardware: Hardware, budget_bytes: int, *, layers_ahead: int, placement: str = FASTEST) -> Plan:
    """Weights below, streamed a layer ahead."""
    plan = layerwise.plan(graph, hardware, budget_bytes, layers_ahead=layers_ahead, kinds="parameter/expert", placement=placement)
    return replace(plan, policy="zero_inference")


def flexgen(
    graph: Graph,
    hardware: Hardware,
    budget_bytes: int,
    *,
    weights: float | None,
    cache: float | None,
    activations: float | None,
    placement: str = FASTEST,
) -> Plan:
    """Shares of weights, cache and activations below, double buffered."""
    plan = static_split.plan(
        graph, hardware, budget_bytes, weights=weights, cache=cache, states=0.0, activations=activations, placement=placement
    )
    return replace(plan, policy="flexgen")


def zero_offload(graph: Graph, hardware: Hardware, budget_bytes: int, *, layers_ahead: int, placement: str = FASTEST) -> Plan:
    """Optimizer states below, streamed a layer ahead of the update."""
    plan = layerwise.plan(graph, hardware, budget_bytes, layers_ahead=layers_ahead, kinds="optimizer_state", placement=placement)
    return replace(plan, policy="zero_offload")


def zero_infinity(graph: Graph, hardware: Hardware, budget_bytes: int, *, layers_ahead: int, placement: str = FASTEST) -> Plan:
    """Parameters and optimizer states below, streamed a layer ahead."""
    kinds = "parameter/expert/optimizer_state"
    plan = layerwise.plan(graph, hardware, budget_bytes, layers_ahead=layers_ahead, kinds=kinds, placement=placement)
    return replace(plan, policy="zero_infinity")
