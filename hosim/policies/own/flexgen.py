"""``flexgen``: shares of weights, cache and activations below, double buffered.

FlexGen (Y. Sheng et al., ICML 2023): :mod:`hosim.policies.own.static_split`, by percentages of weights, cache and activations in whole
tensors. Its zig-zag over batches uses a layer's weights for several batches before the next layer's: that is what a graph does whose batch
is all of them, which is how its table gives batches (48 x 3). The order of a graph's ops is not changed. Where the workload says so
(``attention_on``), the attention of a decoding step runs on the CPU over a cache that stays there, as FlexGen does it, and queries and
results cross the link.

FlexGen searches the percentages by a linear program over a cost model. With ``search``, shares that are not given are searched here by
replays: of the cache and of activations in quarters, and of the weights the smallest that fits beside them. Without, they are the smallest
that fit, weights first. It has more percentages (for the disk).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from hosim.cache_plan import Plan
from hosim.engine import replay
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.policies.own import static_split
from hosim.schedule.placement import FASTEST

_QUARTERS = (0.0, 0.25, 0.5, 0.75, 1.0)


def plan(
    graph: Graph,
    hardware: Hardware,
    budget_bytes: int,
    *,
    weights: float | None,
    cache: float | None,
    activations: float | None,
    search: bool = False,
    placement: str = FASTEST,
) -> Plan:
    """The plan; with ``search`` the fastest of at most 25 that are replayed, if one of them fits."""

    def split(cache: float | None, activations: float | None) -> Plan:
        made = static_split.plan(
            graph, hardware, budget_bytes, weights=weights, cache=cache, states=0.0, activations=activations, placement=placement
        )
        return replace(made, policy="flexgen")

    best = split(cache, activations)
    if not search:
        return best
    kinds = {tensor.kind for tensor in graph.tensors}
    fastest = replay(best, hardware, budget_bytes).makespan_ns
    for c, a in product(_shares(cache, "kv_cache" in kinds), _shares(activations, "activation" in kinds)):
        tried = split(c, a)
        took = replay(tried, hardware, budget_bytes).makespan_ns
        if took is not None and (fastest is None or took < fastest):
            best, fastest = tried, took
    return best


def _shares(given: float | None, there: bool) -> Sequence[float | None]:
    """The shares of some tensors to try: the one that is given, or quarters of them if there are some."""
    return (given,) if given is not None or not there else _QUARTERS
