"""Stays in the device tier of tensors that live below: for one use or several close ones, with a fetch before each.

A fetch is issued some ops ahead of its use, when there is room for it in a given number of buffers, each as large as what the op that
fetches most fetches; a fetched tensor holds its part of them until it is dropped.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import accumulate, pairwise

import numpy as np

from hosim.cache_plan import AT_START
from hosim.costmodel.memory_traffic import machine_of_copies
from hosim.costmodel.op_time import op_durations
from hosim.costmodel.transfer_time import alone_ns
from hosim.frozen_twins import unguarded
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.schedule.idle_intervals import held_bytes
from hosim.schedule.insertion import Absence
from hosim.schedule.lower_tiers import fastest_tiers


@dataclass(frozen=True, slots=True)
class DeviceStay:
    """``tensor`` in the device tier from the op ``first`` to the op ``last``, fetched at the end of the op ``fetch``.

    Without a fetch (None), the op ``first`` makes it.
    """

    tensor: int
    first: int
    last: int
    fetch: int | None = None


_device_stay = unguarded(DeviceStay)


class Stays:
    """The stays of the tensors of a graph, if they live below, and what the device tier holds then."""

    def __init__(self, graph: Graph, hardware: Hardware) -> None:
        self._graph = graph
        self._sizes = [tensor.size_bytes for tensor in graph.tensors]
        self._initial = frozenset(graph.initial)
        self._held = held_bytes(graph)
        self._begins = list(accumulate(op_durations(graph, hardware), initial=0))
        self._machine = machine_of_copies(graph, hardware)
        self._below = next(iter(fastest_tiers(self._machine)), None)
        self._known: dict[int, tuple[DeviceStay, ...]] = {}

    def of(self, tensors: Iterable[int], ahead: int, buffers: int) -> list[DeviceStay]:
        """The stays of these tensors in the order of their first ops, fetched up to ``ahead`` ops early into ``buffers`` (0: no limit)."""
        stays = [stay for t in dict.fromkeys(tensors) for stay in self._alone(t)]
        stays.sort(key=_by_first_op)
        wanted: dict[int, int] = {}
        for stay in stays:
            if stay.fetch is not None:
                wanted[stay.first] = wanted.get(stay.first, 0) + self._sizes[stay.tensor]
        room = buffers * max(wanted.values(), default=0)
        holding: list[tuple[int, int]] = []  # ops after which something is dropped, and its bytes
        dropped = AT_START
        left: dict[int, int] = {}
        found = []
        for stay in stays:
            if stay.fetch is not None:
                if buffers:
                    size = self._sizes[stay.tensor]
                    while holding and size > room:
                        dropped, freed = heappop(holding)
                        room += freed
                    room -= size
                    heappush(holding, (stay.last, size))
                earliest = max(stay.first - 1 - ahead, dropped, left.get(stay.tensor, AT_START))
                stay = _device_stay(stay.tensor, stay.first, stay.last, min(earliest, stay.first - 1))
            left[stay.tensor] = stay.last
            found.append(stay)
        return found

    def peak_bytes(self, stays: Sequence[DeviceStay]) -> int:
        """The most that the device tier holds if these are all stays of their tensors, and other tensors never leave."""
        count = len(self._graph.ops)
        change = np.zeros(count + 1, dtype=np.int64)
        for t in {stay.tensor for stay in stays}:
            users = self._graph.users[t]
            change[0 if t in self._initial else users[0]] -= self._sizes[t]
            change[count if self._graph.survives[t] else users[-1] + 1] += self._sizes[t]
        for stay in stays:
            change[stay.first if stay.fetch is None else stay.fetch + 1] += self._sizes[stay.tensor]
            change[stay.last + 1] -= self._sizes[stay.tensor]
        return int((self._held + np.cumsum(change)[:count]).max(initial=0))

    def absences(self, stays: Sequence[DeviceStay]) -> Iterator[Absence]:
        """The times between the stays of each tensor, in no tier yet."""
        end = len(self._graph.ops)
        by_tensor: dict[int, list[DeviceStay]] = {}
        for stay in stays:
            by_tensor.setdefault(stay.tensor, []).append(stay)
        for t, mine in by_tensor.items():
            if mine[0].fetch is not None:
                yield Absence(t, AT_START, mine[0].first, AT_START, AT_START, mine[0].fetch, "")
            for stay, following in pairwise(mine):
                fetch = following.first - 1 if following.fetch is None else following.fetch
                yield Absence(t, stay.last, following.first, stay.last, stay.last, fetch, "")
            if t in self._initial and self._graph.survives[t]:
                yield Absence(t, mine[-1].last, end, mine[-1].last, mine[-1].last, end, "")

    def _alone(self, t: int) -> tuple[DeviceStay, ...]:
        """Of one tensor, each fetched just before its first op: uses between which it could not go and come back are one stay."""
        if t not in self._known:
            users = self._graph.users[t]
            away_ns = self._away_ns(t)
            last_uses = [use for use, following in pairwise(users) if self._begins[following] - self._begins[use + 1] > away_ns]
            first = users[0]
            found: list[DeviceStay] = []
            for use in (*last_uses, users[-1]):
                fetched = bool(found) or t in self._initial
                found.append(DeviceStay(t, first, use, first - 1 if fetched else None))
                following = bisect_right(users, use)
                first = users[following] if following < len(users) else use
            if found[-1].last == users[-1] and self._graph.survives[t] and t not in self._initial:
                found[-1] = replace(found[-1], last=len(self._graph.ops) - 1)
            self._known[t] = tuple(found)
        return self._known[t]

    def _away_ns(self, t: int) -> int:
        """What a copy up takes alone, and one down if the step writes the tensor."""
        if self._below is None:
            return self._begins[-1]
        up = alone_ns(self._machine, self._below.up.name, self._sizes[t])
        return up + alone_ns(self._machine, self._below.down.name, self._sizes[t]) if self._graph.writers[t] else up


def _by_first_op(stay: DeviceStay) -> tuple[int, int]:
    return stay.first, stay.tensor
