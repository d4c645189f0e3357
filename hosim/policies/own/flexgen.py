"""``flexgen``: shares of weights, cache and activations below, double buffered.

FlexGen (Y. Sheng et al., ICML 2023): :mod:`hosim.policies.own.static_split`, by percentages of weights, cache and activations in whole
tensors. Its zig-zag over batches uses a layer's weights for several batches before the next layer's: that is what a graph does whose batch
is all of them, which is how its table gives batches (48 x 3). The order of a graph's ops is not changed. Where the workload says so
(``attention_on``), the attention of a decoding step runs on the CPU over a cache that stays there, as FlexGen does it, and queries and
results cross the link.

FlexGen searches the percentages by a linear program, and has more of them (for the disk); here they are the smallest that fit, unless
given.
"""

from __future__ import annotations

from dataclasses import replace

from hosim.cache_plan import Plan
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.policies.own import static_split
from hosim.schedule.placement import FASTEST


def plan(
    graph: Graph,
    hardware: Hardware,
    budget_bytes: int,
    *,
    weights: float | None,
    cache: float | None,
    activations: float | None,
    placement: str = FASTEST,
) -> Plan:
    """The plan."""
    made = static_split.plan(
        graph, hardware, budget_bytes, weights=weights, cache=cache, states=0.0, activations=activations, placement=placement
    )
    return replace(made, policy="flexgen")
