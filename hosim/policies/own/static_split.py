"""``static_split``: a fixed share of the weights is offloaded, evenly spread over the step, and is
fetched ahead of each use into buffers.

What people run today, and its settings here:

* vLLM ``--cpu-offload-gb`` with its prefetch groups (``--offload-group-size``,
  ``--offload-num-in-group``, ``--offload-prefetch-step``): some layers of every group live below,
  and each is copied up some steps ahead into one of a few static buffers. That is the default,
  ``spread=even:buffers=2``; where the step writes what it fetches, three buffers: one fills, one is
  used, and one is stored.
* Accelerate's ``device_map`` with a share for the CPU, and llama.cpp's split by layers (``-ngl``)
  with the computation on the device: what does not fit is one run of layers, fetched where it is
  used: ``spread=last:ahead=0`` (Accelerate), ``spread=first:ahead=0`` (llama.cpp).
* FlexGen's percentages (``--percent``) for cache and activations: ``cache`` and ``activations``;
  for weights ``flexgen`` has its own rule.
* DeepSpeed's Twin-Flow (``ratio`` of ZeRO-Offload) for the part of the optimizer states that lives
  below: ``states``.

A share that is not given is the smallest that fits the budget: of weights (kinds ``parameter`` and
``expert``) as much as needed; if all of them are not enough, the KV cache as well, then the
optimizer states, then activations in their idle times. What has its home below is fetched and
dropped like the rest. What the step writes is stored back after each visit.

Our reading: the unit is a tensor, not a layer, and tensors much larger than usual, such as an
embedding, go below last. Uses of a tensor between which it could not go and come back are one. A
buffer has the size of what the op that fetches most fetches. Where too little room is left for what
is fetched so far ahead, everything is fetched later.

Not modelled: an op that reads its weights over the link without a copy (zero copy, as vLLM's
offload by unified virtual addressing does): by the contract every input of an op is in the device
tier while it runs (docs/contract.md, rule 1). Nor are parts of a tensor, pinned staging buffers of
the host, or fetches at the end of a step for the first ops of the next one.
"""

import re
from collections.abc import Sequence
from itertools import accumulate, product
from typing import TypedDict, Unpack, cast

from hosim.cache_plan import AT_START, Plan
from hosim.engine import verdict
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.planner.schedule import DeviceStays, Stays, insert, starts_below
from hosim.planner.schedule.tiers_below import (
    EVEN,
    FASTEST,
    Choose,
    part,
    read_placement,
    space_below,
    tensors_below,
)
from hosim.policies.own.layerwise import WEIGHTS, layers_of

_LATER = 4
"""The divisor of the ops ahead where there is too little room for tensors fetched so far ahead."""


class GroupShares(TypedDict, total=False):
    """The shares of groups of tensors (:mod:`hosim.planner.schedule.tiers_below.shares_below`)."""

    weights: float | None
    cache: float | None
    states: float | None
    activations: float | None


_SMALLEST: dict[str, float | None] = dict.fromkeys(GroupShares.__annotations__)


def plan(
    graph: Graph,
    hardware: Hardware,
    budget_bytes: int,
    *,
    ahead: int | None = None,
    buffers: int | None = None,
    spread: str | Choose = EVEN,
    placement: str = FASTEST,
    **shares: Unpack[GroupShares],
) -> Plan:
    """The plan; ``shares`` are the parts of each group's bytes that are offloaded, ``None`` for the
    smallest that fits. Each of some dozen shares that are tried costs O(uses log uses).
    """
    residency = Plan(graph).residency(hardware.device_tier)
    at_home = starts_below(graph, hardware)
    stored_back = {t for t in residency if graph.writers[t]}
    stays = graph.derived_on(hardware, Stays)
    leads = [len(graph.ops) if ahead is None else ahead]
    while leads[-1]:
        leads.append(leads[-1] // _LATER)

    def stays_of(tensors: Sequence[int], lead: int) -> DeviceStays:
        below = [*at_home, *tensors]
        return stays.of(
            below,
            lead,
            (3 if any(t in stored_back for t in below) else 2) if buffers is None else buffers,
        )

    def lacking(tensors: Sequence[int], way: int) -> int:
        return stays.peak_bytes(stays_of(tensors, leads[way])) - budget_bytes

    given = _SMALLEST | cast("dict[str, float | None]", shares)
    chosen, way = tensors_below(graph, given, spread, len(leads), lacking)
    space = space_below(
        graph, hardware, {t: residency[t] for t in at_home}, read_placement(placement, hardware)
    )
    tiers = {t: residency[t][0] for t in at_home}
    for t in chosen:
        tier = space.place(t, AT_START if t in residency else graph.users[t][0])
        if tier is not None:
            tiers.setdefault(t, tier)
    absences = stays.absences(stays_of([t for t in chosen if t in tiers], leads[way]))
    initial = {t: (tier,) for t, tier in tiers.items() if t in residency and t not in at_home}
    return insert(
        graph,
        hardware,
        "static_split",
        [a._replace(tier=tiers[a.tensor]) for a in absences],
        initial,
    )


# -- FlexGen
# --------------------------------------------------------------------------------------------------
# ``flexgen``: shares of weights, cache and activations below, double buffered; weights by
# FlexGen's own order.
#
# FlexGen (Y. Sheng et al., ICML 2023; its code at FMInference/FlexiGen@01485eaf) places weights unit
# by unit, each alone: the attention of a layer, the MLP of a layer, the input and the output. A unit
# lists its products in the order of their use, each with its bias, and a layer's norm last. A weight
# goes below where the middle of its share of the unit is before the part of the unit that is below.
# With ``weights=0.75`` these are the first three of an attention's four equal products (their middles
# are at 1/8, 3/8 and 5/8, the last one's at 7/8), and both of an MLP's two (1/4, and a little less
# than 3/4). So a share says where a unit is cut, and not how many bytes are below: of OPT-30B 8 %
# stay where FlexGen was asked for a quarter. The share below is what FlexGen's percentage for the GPU
# leaves of 100.
#
# Our reading: the name of a weight says its layer (:func:`hosim.policies.own.layerwise.layers_of`)
# and whether it is attention's (``attn``, ``attention``); attention ends with the last such weight.
# Bytes stand for FlexGen's numbers of elements. A weight in parts, or one that both ends of a model
# use, is placed once. Cache and activations, which FlexGen cuts by heads, go below in whole tensors,
# evenly spread. All come and go as with :mod:`hosim.policies.own.static_split`, by ops, where FlexGen
# fetches a unit while the one before runs: its 6.07 GiB for OPT-30B with a quarter of the weights
# asked for (FMInference/FlexLLMGen#108) are 5.70 GiB here.
#
# Its zig-zag over batches uses a layer's weights for several batches before the next layer's: that is
# what a graph does whose batch is all of them, which is how its table gives batches (48 x 3). The
# order of a graph's ops is not changed. Where the workload says so (``attention_on``), the attention
# of a decoding step runs on the CPU over a cache that stays there, as FlexGen does it, and queries
# and results cross the link.
#
# FlexGen searches the percentages by a linear program over a cost model. With ``search``, shares that
# are not given are searched here by replays: of the cache and of activations in quarters, and of the
# weights the smallest that fits beside them. Without, they are the smallest that fit, weights first.
# It has more percentages (for the disk).


_QUARTERS = (0.0, 0.25, 0.5, 0.75, 1.0)
_ATTENTION = re.compile(r"[._/]\w*att(n|ention)\w*\.\w+\.", re.IGNORECASE)
_NORMS = ("norm", "elementwise")
"""Kinds of ops by which a norm's weights are used, which a unit of a layer lists last; the input
and the output list all as they use it.
"""


def flexgen(
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
        return plan(
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
