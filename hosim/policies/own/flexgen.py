"""``flexgen``: shares of weights, cache and activations below, double buffered; weights by
FlexGen's own order.

FlexGen (Y. Sheng et al., ICML 2023; its code at FMInference/FlexiGen@01485eaf) places weights unit
by unit, each alone: the attention of a layer, the MLP of a layer, the input and the output. A unit
lists its products in the order of their use, each with its bias, and a layer's norm last. A weight
goes below where the middle of its share of the unit is before the part of the unit that is below.
With ``weights=0.75`` these are the first three of an attention's four equal products (their middles
are at 1/8, 3/8 and 5/8, the last one's at 7/8), and both of an MLP's two (1/4, and a little less
than 3/4). So a share says where a unit is cut, and not how many bytes are below: of OPT-30B 8 %
stay where FlexGen was asked for a quarter. The share below is what FlexGen's percentage for the GPU
leaves of 100.

Our reading: the name of a weight says its layer (:func:`hosim.policies.own.layerwise.layers_of`)
and whether it is attention's (``attn``, ``attention``); attention ends with the last such weight.
Bytes stand for FlexGen's numbers of elements. A weight in parts, or one that both ends of a model
use, is placed once. Cache and activations, which FlexGen cuts by heads, go below in whole tensors,
evenly spread. All come and go as with :mod:`hosim.policies.own.static_split`, by ops, where FlexGen
fetches a unit while the one before runs: its 6.07 GiB for OPT-30B with a quarter of the weights
asked for (FMInference/FlexLLMGen#108) are 5.70 GiB here.

Its zig-zag over batches uses a layer's weights for several batches before the next layer's: that is
what a graph does whose batch is all of them, which is how its table gives batches (48 x 3). The
order of a graph's ops is not changed. Where the workload says so (``attention_on``), the attention
of a decoding step runs on the CPU over a cache that stays there, as FlexGen does it, and queries
and results cross the link.

FlexGen searches the percentages by a linear program over a cost model. With ``search``, shares that
are not given are searched here by replays: of the cache and of activations in quarters, and of the
weights the smallest that fits beside them. Without, they are the smallest that fit, weights first.
It has more percentages (for the disk).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate, product

from hosim.cache_plan import Plan
from hosim.engine import verdict
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.planner.schedule.tiers_below import EVEN, FASTEST, part
from hosim.policies.own import static_split
from hosim.policies.own.layerwise import WEIGHTS, layers_of

_QUARTERS = (0.0, 0.25, 0.5, 0.75, 1.0)
_ATTENTION = re.compile(r"[._/]\w*att(n|ention)\w*\.\w+\.", re.IGNORECASE)
_NORMS = ("norm", "elementwise")
"""Kinds of ops by which a norm's weights are used, which a unit of a layer lists last; the input
and the output list all as they use it.
"""


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
    """The plan; with ``search`` the fastest of at most 25 that are replayed, if one of them
    fits.
    """
    middles = _middles(graph)

    def below(tensors: Sequence[int], wanted: float) -> list[int]:
        """Those of a group, in the order of their first uses."""
        if not tensors or graph.tensors[tensors[0]].kind not in WEIGHTS:
            return part(graph, tensors, wanted, EVEN)
        share = wanted / sum([graph.tensors[t].size_bytes for t in tensors])
        return [t for t in tensors if middles[t] < share]

    def split(cache: float | None, activations: float | None) -> Plan:
        return static_split.plan(
            graph,
            hardware,
            budget_bytes,
            weights=weights,
            cache=cache,
            states=0.0,
            activations=activations,
            spread=below,
            placement=placement,
        )

    best = split(cache, activations)
    if not search:
        return best
    kinds = {tensor.kind for tensor in graph.tensors}
    fastest = verdict(best, hardware, budget_bytes).makespan_ns
    for c, a in product(
        _shares(cache, "kv_cache" in kinds), _shares(activations, "activation" in kinds)
    ):
        tried = split(c, a)
        took = verdict(tried, hardware, budget_bytes).makespan_ns
        if took is not None and (fastest is None or took < fastest):
            best, fastest = tried, took
    return best


def _middles(graph: Graph) -> dict[int, float]:
    """Return, for each weight that some op uses, the middle of its share of its unit, from 0 to
    1.
    """
    found: dict[int, float] = {}
    for unit in units(graph):
        sizes = [sum([graph.tensors[t].size_bytes for t in weight]) for weight in unit]
        for weight, size, end in zip(unit, sizes, accumulate(sizes), strict=True):
            found.update(dict.fromkeys(weight, (end - size / 2) / sum(sizes)))
    return found


def units(graph: Graph) -> list[list[list[int]]]:
    """The units in which FlexGen places weights: in each its weights in FlexGen's order, each with
    its parts.
    """
    used = {
        t: first[0]
        for t, first in enumerate(graph.users)
        if first and graph.tensors[t].kind in WEIGHTS
    }
    whole: dict[str, list[int]] = {}
    for t in sorted(
        used, key=lambda t: (used[t], -graph.tensors[t].size_bytes, t)
    ):  # a product before its bias
        if graph.tensors[t].size_bytes:
            whole.setdefault(graph.tensors[t].whole, []).append(t)
    layers = layers_of(graph, set(used))
    by_layer: dict[str, list[list[int]]] = {}
    for weight in whole.values():
        by_layer.setdefault(layers[weight[0]], []).append(weight)
    found: list[list[list[int]]] = []
    for layer, listed in by_layer.items():
        of_attention = [
            n
            for n, weight in enumerate(listed)
            if _ATTENTION.search(graph.tensors[weight[0]].whole)
        ]
        end = of_attention[-1] + 1 if of_attention else 0
        for unit in filter(None, (listed[:end], listed[end:])):
            norms = (
                []
                if layer.endswith("+")
                else [weight for weight in unit if graph.ops[used[weight[0]]].kind in _NORMS]
            )
            found.append([*[weight for weight in unit if weight not in norms], *norms])
    return found


def _shares(given: float | None, there: bool) -> Sequence[float | None]:
    """The shares of some tensors to try: the one that is given, or quarters of them if there are
    some.
    """
    return (given,) if given is not None or not there else _QUARTERS
