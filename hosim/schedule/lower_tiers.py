"""Where tensors go that leave the device tier: the tiers below it, the ways there and back, and whether there is room.

Every policy asks here, so that they differ in what they move and when, not in where to. By default the tier of choice is the nearest
one with a way to the device tier and back: ``ddr`` if there is one, else ``pool``, else ``nvme``, else the one that is quickest to
read. What does not fit there goes to the next. A way is a channel, or a route of several (docs/contract.md, rule 7); those come after
all with a channel. Other rules: :mod:`hosim.schedule.placement`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from hosim.costmodel.routes import slowest_hop
from hosim.costmodel.transfer_time import alone_ns
from hosim.errors import InfeasibleError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.schedule.placement import Placement, Shelf

NEAREST_FIRST = ("ddr", "pool", "nvme")
"""Tiers below the device, the preferred one first; others come after them, the quickest to read first."""

_CHUNK = 64 * 2**20
"""Bytes whose transfer time measures a hop (docs/contract.md, rule 7)."""


@dataclass(frozen=True, slots=True)
class Below:
    """A tier below the device, with the channels from (``up``) and to it (``down``), by name.

    On a route of several these are the slowest ones: what a transfer's time is made of, and where it waits for others.
    """

    tier: str
    up: str
    down: str


__all__ = ["NEAREST_FIRST", "Below", "Placement", "Shelf", "route", "shelf_below", "starts", "tiers_below"]


def shelf_below(graph: Graph, hardware: Hardware, initial: Mapping[int, Sequence[str]], placement: Placement | None = None) -> Shelf:
    """Room in all tiers below, the preferred one first."""
    return Shelf(graph, hardware, [b.tier for b in tiers_below(hardware)], initial, placement)


def tiers_below(hardware: Hardware) -> tuple[Below, ...]:
    """The tiers with a way to the device tier and back, the preferred one first."""
    device, joined = hardware.device_tier, hardware.channel_between
    found = []
    for tier in hardware.tiers:
        if tier.name == device:
            continue
        up, down = slowest_hop(hardware, tier.name, device, _CHUNK), slowest_hop(hardware, device, tier.name, _CHUNK)
        if up is not None and down is not None:
            hops = (tier.name, device) not in joined or (device, tier.name) not in joined
            found.append((hops, tier.name, up, down))
    rank = {name: k for k, name in enumerate(NEAREST_FIRST)}
    found.sort(key=lambda x: (x[0], rank.get(x[1], len(rank)), -x[2].bandwidth_bytes_per_s, x[1]))
    return tuple(Below(name, up.name, down.name) for _, name, up, down in found)


def route(hardware: Hardware, sources: Iterable[str], destination: str) -> tuple[str, ...]:
    """Tiers from the nearest of ``sources`` to ``destination``, both included, along the quickest hops: a cache op for each pair.

    Where no channel joins the two ends they are all there is: one cache op goes the whole way, in chunks and with no copy in between.
    Raises :class:`InfeasibleError` if no channels lead there.
    """
    pending: list[tuple[int, tuple[str, ...]]] = []
    for source in sorted(set(sources)):
        heappush(pending, (0, (source,)))
    reached: set[str] = set()
    while pending:
        spent, way = heappop(pending)
        if way[-1] == destination:
            return way if (way[0], destination) in hardware.channel_between else (way[0], destination)
        if way[-1] in reached:
            continue
        reached.add(way[-1])
        for (start, end), channel in hardware.channel_between.items():
            if start == way[-1] and end not in reached:
                heappush(pending, (spent + alone_ns(hardware, channel.name, _CHUNK), (*way, end)))
    raise InfeasibleError(f"no channels of {hardware.name} lead from {' or '.join(sorted(set(sources)))} to {destination}")


def starts(graph: Graph, hardware: Hardware, budget: int, placement: Placement | None = None) -> dict[int, tuple[str, ...]]:
    """``Plan.initial`` of a policy that keeps tensors where they are at home if it can: empty if it can.

    If what is at home in the device tier exceeds ``budget`` at time 0, or what must be there at the end of the step does, all of it
    starts below instead, in the first tier with room (and, if it is persistent, ends there). What has room nowhere, and what the step
    writes before it reads, stays.
    """
    device = hardware.device_tier
    homes = {t: graph.tensors[t].home or device for t in graph.initial}
    sizes = [tensor.size_bytes for tensor in graph.tensors]
    at_start = sum(sizes[t] for t, home in homes.items() if home == device)
    stays = (t for t, survives in enumerate(graph.survives) if survives)
    at_end = sum(sizes[t] for t in stays if homes.get(t) == device or (t not in homes and graph.users[t]))
    if at_start <= budget and at_end <= budget:
        return {}
    away = {t: (home,) for t, home in homes.items() if home != device}
    shelf = Shelf(graph, hardware, [b.tier for b in tiers_below(hardware)], away, placement)
    moved: dict[int, tuple[str, ...]] = {}
    for t, home in homes.items():
        if home == device:
            tier = shelf.place(t, 0)
            if tier is not None:
                moved[t] = (tier,)
    return moved
