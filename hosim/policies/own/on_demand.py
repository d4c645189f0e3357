"""``on_demand`` and ``lookahead``: reactive runtimes, without foresight and with a little.

``on_demand`` is what demand paging and unified memory are.

An op that misses a tensor faults and waits for it; where there is no room, the least recently used
resident is evicted (stored first unless a valid copy lies below). Every op costs the runtime's
inspection time. See :mod:`hosim.planner.schedule.paging` for the rules of eviction and for the end of the
step.

``lookahead`` prefetches, too, and is the reactive runtime that HyperOffload is compared with. Beside
each op's own faults, what the next ``k`` listed ops read and lies below is prefetched, nearest
first, as long as there is room without evicting anything. With ``k=0`` it is ``on_demand``. Our
reading of "runtime prefetching" in the comparison of arXiv 2602.00748: the runtime sees a window of
the program, no further, and reacts to memory as it finds it.

Tensors start where they are at home, unless those at home in the device tier do not fit there at
the step's start or end: then all of them start below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hosim.cache_plan import Plan
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.planner.schedule import paging_plan
from hosim.planner.schedule.tiers_below import FASTEST, read_placement


def plan(
    graph: Graph, hardware: Hardware, budget_bytes: int, *, k: int = 0, placement: str = FASTEST
) -> Plan:
    """The plan: its decisions are taken during the replay, each in O(1) amortized, and in O(k)."""
    return paging_plan(
        graph,
        hardware,
        budget_bytes,
        "on_demand",
        LeastRecentlyUsed,
        k,
        read_placement(placement, hardware),
    )


class FirstArrived:
    """:class:`hosim.planner.schedule.paging.Victims`, the one that came up or was made the longest ago
    first.
    """

    def __init__(self) -> None:
        self._order: dict[int, None] = {}

    def touch(self, tensor: int, next_use: int) -> None:
        """It is resident: a use does not change the order."""
        self._order.setdefault(tensor)

    def discard(self, tensor: int) -> None:
        """It is resident no more."""
        self._order.pop(tensor, None)

    def pick(self, refuse: Callable[[int], bool]) -> int | None:
        """The first one in the order that is not refused."""
        return self._first_of(self._order, refuse)

    def _first_of(self, tensors: Iterable[int], refuse: Callable[[int], bool]) -> int | None:
        found = next((tensor for tensor in tensors if not refuse(tensor)), None)
        if found is not None:
            del self._order[found]
        return found


class LeastRecentlyUsed(FirstArrived):
    """:class:`hosim.planner.schedule.paging.Victims`, the least recently used one first."""

    def touch(self, tensor: int, next_use: int) -> None:
        """It is the most recently used one."""
        self._order.pop(tensor, None)
        self._order[tensor] = None


class LastArrived(FirstArrived):
    """:class:`hosim.planner.schedule.paging.Victims`, the one that came up or was made last first."""

    def pick(self, refuse: Callable[[int], bool]) -> int | None:
        """The last one in the order that is not refused."""
        return self._first_of(reversed(self._order), refuse)
