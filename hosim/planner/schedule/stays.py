"""Stays in the device tier of tensors that live below: for one use or several close ones, with a
fetch before each.

A fetch is issued some ops ahead of its use, when there is room for it in a given number of buffers,
each as large as what the op that fetches most fetches; a fetched tensor holds its part of them
until it is dropped.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from hosim.analysis import held_from_to, homes_below
from hosim.analysis.costmodel import machine_of_copies, op_durations
from hosim.analysis.costmodel.transfers import alone_ns
from hosim.cache_plan import AT_START, Plan
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.planner.schedule.idle_intervals import held_bytes
from hosim.planner.schedule.insertion import Absence
from hosim.planner.schedule.tiers_below import (
    LAST,
    Placement,
    fastest_tiers,
    space_below,
    tensors_below,
)

Positions = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DeviceStays:
    """Stays in the device tier in the order of their first ops, as columns.

    A ``tensor`` is there from the op ``first`` to the op ``last``, fetched at the end of the op
    ``fetch``. If it is not ``fetched``, the op ``first`` makes it.
    """

    tensor: Positions
    first: Positions
    last: Positions
    fetch: Positions
    fetched: NDArray[np.bool_]


class Stays:
    """The stays of the tensors of a graph, if they live below, and what the device tier holds
    then.
    """

    def __init__(self, graph: Graph, hardware: Hardware) -> None:
        self._graph = graph
        self._sizes = np.array([tensor.size_bytes for tensor in graph.tensors], dtype=np.int64)
        self._initial = frozenset(graph.initial)
        self._held = held_bytes(graph, hardware.device_tier)
        self._held_from_to = held_from_to(graph, hardware.device_tier)
        self._begins = list(accumulate(op_durations(graph, hardware), initial=0))
        self._machine = machine_of_copies(graph, hardware)
        self._below = next(iter(fastest_tiers(self._machine)), None)
        self._known = np.zeros(len(graph.tensors), dtype=np.bool_)
        self._rows: list[
            tuple[int, int, int, int]
        ] = []  # first op, tensor, last op, and the last op of the stay before
        self._sorted = np.zeros((0, 4), dtype=np.int64)
        self._away: dict[tuple[int, bool], int] = {}

    def of(self, tensors: Iterable[int], ahead: int, buffers: int) -> DeviceStays:
        """The stays of these tensors in the order of their first ops, fetched up to ``ahead`` ops
        early into ``buffers`` (0: no limit).
        """
        first, tensor, last, before = self._alone(list(tensors))
        fetched = before != _MADE
        earliest = np.maximum(np.maximum(first - 1 - ahead, before), AT_START)
        if buffers and len(first):
            earliest = np.maximum(earliest, self._dropped(first, tensor, last, fetched, buffers))
        return DeviceStays(tensor, first, last, np.minimum(earliest, first - 1), fetched)

    def _dropped(
        self,
        first: Positions,
        tensor: Positions,
        last: Positions,
        fetched: NDArray[np.bool_],
        buffers: int,
    ) -> Positions:
        """For each stay the op after which what is dropped leaves it room."""
        sizes = np.where(fetched, self._sizes[tensor], 0)
        wanted = np.add.reduceat(sizes, np.flatnonzero(np.diff(first, prepend=-1)))
        room = buffers * int(wanted.max())
        holding: list[tuple[int, int]] = []  # ops after which something is dropped, and its bytes
        dropped, found = AT_START, []
        for size, leaves, counts in zip(
            sizes.tolist(), last.tolist(), fetched.tolist(), strict=True
        ):
            if counts:
                while holding and size > room:
                    dropped, freed = heappop(holding)
                    room += freed
                room -= size
                heappush(holding, (leaves, size))
            found.append(dropped)
        return np.array(found, dtype=np.int64)

    def peak_bytes(self, stays: DeviceStays) -> int:
        """The most that the device tier holds if these are all stays of their tensors, and other
        tensors never leave.
        """
        count = len(self._graph.ops)
        change = np.zeros(count + 2, dtype=np.int64)
        tensors, sizes = np.unique(stays.tensor), self._sizes[stays.tensor]
        begins, ends = self._held_from_to
        np.subtract.at(change, begins[tensors], self._sizes[tensors])
        np.add.at(change, ends[tensors], self._sizes[tensors])
        np.add.at(change, np.where(stays.fetched, stays.fetch + 1, stays.first), sizes)
        np.subtract.at(change, stays.last + 1, sizes)
        return int((self._held + np.cumsum(change)[:count]).max(initial=0))

    def absences(self, stays: DeviceStays) -> Iterator[Absence]:
        """The times between the stays of each tensor, in no tier yet."""
        end = len(self._graph.ops)
        by_tensor: dict[int, list[tuple[int, int, int, bool]]] = {}
        columns = (stays.tensor, stays.first, stays.last, stays.fetch, stays.fetched)
        for t, *stay in zip(*[column.tolist() for column in columns], strict=True):
            by_tensor.setdefault(t, []).append(tuple(stay))
        for t, mine in by_tensor.items():
            first, _, fetch, fetched = mine[0]
            if fetched:
                yield Absence(t, AT_START, first, AT_START, AT_START, fetch, "")
            for (_, last, _, _), (first, _, fetch, _) in pairwise(mine):
                yield Absence(t, last, first, last, last, fetch, "")
            if t in self._initial and self._graph.survives[t]:
                last = mine[-1][1]
                yield Absence(t, last, end, last, last, end, "")

    def _alone(self, tensors: Sequence[int]) -> tuple[Positions, Positions, Positions, Positions]:
        """Of some tensors, each fetched just before its first op: uses between which it could not
        go and come back are one stay.
        """
        wanted = np.zeros(len(self._known), dtype=np.bool_)
        wanted[tensors] = True
        new = np.flatnonzero(wanted & ~self._known).tolist()
        if new:
            self._rows += [row for t in new for row in self._rows_of(t)]
            self._rows.sort()
            self._sorted = np.array(self._rows, dtype=np.int64)
            self._known[new] = True
        first, tensor, last, before = self._sorted[wanted[self._sorted[:, 1]]].T
        return first, tensor, last, before

    def _rows_of(self, t: int) -> Iterator[tuple[int, int, int, int]]:
        users = self._graph.users[t]
        away_ns = self._away_ns(t)
        last_uses = [
            use
            for use, following in pairwise(users)
            if self._begins[following] - self._begins[use + 1] > away_ns
        ]
        first, before = users[0], AT_START if t in self._initial else _MADE
        for use in (*last_uses, users[-1]):
            stays_on = use == users[-1] and self._graph.survives[t] and t not in self._initial
            yield first, t, len(self._graph.ops) - 1 if stays_on else use, before
            following = bisect_right(users, use)
            first, before = users[following] if following < len(users) else use, use

    def _away_ns(self, t: int) -> int:
        """Return the time that a copy up takes alone, and one down if the step writes the
        tensor.
        """
        if self._below is None:
            return self._begins[-1]
        key = int(self._sizes[t]), bool(self._graph.writers[t])
        if key not in self._away:
            size, written = key
            up = alone_ns(self._machine, self._below.up.name, size)
            self._away[key] = (
                up + alone_ns(self._machine, self._below.down.name, size) if written else up
            )
        return self._away[key]


_MADE = -2
"""The number that stands for the stay before the first one of a tensor that an op makes."""


# -- where tensors start a step that is one of many, under a runtime that keeps what it uses first
# -------------------------------------------------------------------------------------------------


def starts_below(graph: Graph, hardware: Hardware) -> list[int]:
    """The tensors that are used and do not start in the device tier."""
    return [t for t in homes_below(graph, hardware) if graph.users[t]]


def kept_from_the_start(
    graph: Graph, hardware: Hardware, budget_bytes: int, rule: Placement | None
) -> Mapping[int, tuple[str, ...]]:
    """The tiers of what starts below, though it is at home in the device tier: what is used last,
    as much as lets the rest stay.
    """
    residency = Plan(graph).residency(hardware.device_tier)
    at_home = starts_below(graph, hardware)
    stays = graph.derived_on(hardware, Stays)

    def lacking(tensors: Sequence[int], way: int) -> int:
        return stays.peak_bytes(stays.of([*at_home, *tensors], 0, 0)) - budget_bytes

    chosen, _ = tensors_below(
        graph, {"weights": None, "cache": None, "states": None}, LAST, 1, lacking
    )
    space = space_below(graph, hardware, {t: residency[t] for t in at_home}, rule)
    tiers = {t: space.place(t, 0) for t in chosen if t in residency and t not in at_home}
    return {t: (tier,) for t, tier in tiers.items() if tier is not None}
