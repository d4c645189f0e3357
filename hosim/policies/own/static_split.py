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
  for weights :mod:`hosim.policies.own.flexgen` has its own rule.
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

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict, Unpack, cast

from hosim.cache_plan import AT_START, Plan
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.planner.schedule import DeviceStays, Stays, insert, starts_below
from hosim.planner.schedule.tiers_below import (
    EVEN,
    FASTEST,
    Choose,
    read_placement,
    space_below,
    tensors_below,
)

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
