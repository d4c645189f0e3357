"""Where tensors go that leave the device tier: the tiers below it, the ways there and back, and whether there is room.

Every policy asks here, so that they differ in what they move and when, not in where to. The tier of choice is the nearest one that
channels join to the device tier in both directions: ``ddr`` if there is one, else ``pool``, else ``nvme``, else the one that is quickest
to read. What does not fit there goes to the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from hosim.costmodel.transfer_time import alone_ns
from hosim.errors import InfeasibleError
from hosim.graph import Graph
from hosim.hardware import Hardware

NEAREST_FIRST = ("ddr", "pool", "nvme")
"""Tiers below the device, the preferred one first; others come after them, the quickest to read first."""

_CHUNK = 64 * 2**20
"""Bytes whose transfer time measures a hop (design.md section 3, rule 7)."""


@dataclass(frozen=True, slots=True)
class Below:
    """A tier below the device, with the channels from (``up``) and to it (``down``), by name."""

    tier: str
    up: str
    down: str


def tiers_below(hardware: Hardware) -> tuple[Below, ...]:
    """The tiers that channels join to the device tier in both directions, the preferred one first."""
    device, joined = hardware.device_tier, hardware.channel_between
    found = []
    for tier in hardware.tiers:
        up, down = joined.get((tier.name, device)), joined.get((device, tier.name))
        if up is not None and down is not None:
            found.append((tier.name, up, down))
    rank = {name: k for k, name in enumerate(NEAREST_FIRST)}
    found.sort(key=lambda x: (rank.get(x[0], len(rank)), -x[1].bandwidth_bytes_per_s, x[0]))
    return tuple(Below(name, up.name, down.name) for name, up, down in found)


def route(hardware: Hardware, sources: Iterable[str], destination: str) -> tuple[str, ...]:
    """Tiers from the nearest of ``sources`` to ``destination``, both included, along the quickest hops.

    Raises :class:`InfeasibleError` if no channels lead there.
    """
    pending: list[tuple[int, tuple[str, ...]]] = []
    for source in sorted(set(sources)):
        heappush(pending, (0, (source,)))
    reached: set[str] = set()
    while pending:
        spent, way = heappop(pending)
        if way[-1] == destination:
            return way
        if way[-1] in reached:
            continue
        reached.add(way[-1])
        for (start, end), channel in hardware.channel_between.items():
            if start == way[-1] and end not in reached:
                heappush(pending, (spent + alone_ns(hardware, channel.name, _CHUNK), (*way, end)))
    raise InfeasibleError(f"no channels of {hardware.name} lead from {' or '.join(sorted(set(sources)))} to {destination}")


class Shelf:
    """Room in the tiers below over the step: bytes held by op position, from what starts there and what is put there.

    The account is that of the plan's order: a copy counts from the op after which it is stored to the end of its tensor's life.
    """

    def __init__(self, graph: Graph, hardware: Hardware, tiers: Sequence[str], initial: dict[int, tuple[str, ...]]) -> None:
        self._graph = graph
        self._end = len(graph.ops)
        self.tiers = tuple(tiers)
        capacity = {tier.name: tier.capacity_bytes for tier in hardware.tiers}
        self._free = {name: np.full(self._end + 1, capacity[name], dtype=np.int64) for name in tiers}
        self._placed: dict[int, tuple[str, int]] = {}
        for t, where in initial.items():
            for tier in where:
                if tier in self._free:
                    self._free[tier] -= graph.tensors[t].size_bytes
        self._initial = {t: set(where) for t, where in initial.items()}
        total = sum([tensor.size_bytes for tensor in graph.tensors])
        self._ample = {name: capacity[name] >= 2 * total for name in tiers}  # room for all at once, beside what starts there

    def place(self, tensor: int, start: int, tiers: Iterable[str] | None = None) -> str | None:
        """The tier that takes the tensor from op position ``start`` on, the first of ``tiers`` with room; ``None`` if none has it.

        What is placed stays placed: asked again, it is the same tier, from the earlier start on.
        """
        start = max(start, 0)
        size = self._graph.tensors[tensor].size_bytes
        end = self._end + 1 if self._graph.survives[tensor] or not self._graph.users[tensor] else self._graph.users[tensor][-1] + 1
        if tensor in self._placed:
            tier, since = self._placed[tensor]
            if start < since:
                if self._free[tier][start:since].min() < size:
                    return None
                self._free[tier][start:since] -= size
                self._placed[tensor] = (tier, start)
            return tier
        for tier in self.tiers if tiers is None else tiers:
            if tier in self._initial.get(tensor, ()):
                return tier  # its own place is kept for it
            if self._ample[tier]:
                return tier
            free = self._free[tier][start:end]
            if not len(free) or free.min() >= size:
                free -= size
                self._placed[tensor] = (tier, start)
                return tier
        return None


def starts(graph: Graph, hardware: Hardware, budget: int) -> dict[int, tuple[str, ...]]:
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
    shelf = Shelf(graph, hardware, [b.tier for b in tiers_below(hardware)], {t: (home,) for t, home in homes.items() if home != device})
    moved: dict[int, tuple[str, ...]] = {}
    for t, home in homes.items():
        if home == device:
            tier = shelf.place(t, 0)
            if tier is not None:
                moved[t] = (tier,)
    return moved
