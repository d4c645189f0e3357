"""``on_demand``: a reactive runtime without foresight, as demand paging and unified memory are.

An op that misses a tensor faults and waits for it; where there is no room, the least recently used
resident is evicted (stored first unless a valid copy lies below). Every op costs the runtime's
inspection time. See :mod:`hosim.schedule.paging` for the rules of eviction and for the end of the
step.

Tensors start where they are at home, unless those at home in the device tier do not fit there at
the step's start or end: then all of them start below.
"""

from __future__ import annotations

from collections.abc import Callable

from hosim.cache_plan import Plan
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.schedule import paging_plan
from hosim.schedule.tiers_below import FASTEST, read_placement


def plan(graph: Graph, hardware: Hardware, budget_bytes: int, *, placement: str = FASTEST) -> Plan:
    """The plan: its decisions are taken during the replay, each in O(1) amortized."""
    return paging_plan(
        graph,
        hardware,
        budget_bytes,
        "on_demand",
        LeastRecentlyUsed,
        placement=read_placement(placement, hardware),
    )


class LeastRecentlyUsed:
    """:class:`hosim.schedule.paging.Victims`, the least recently used one first."""

    def __init__(self) -> None:
        self._order: dict[int, None] = {}

    def touch(self, tensor: int, next_use: int) -> None:
        """It is the most recently used one."""
        self._order.pop(tensor, None)
        self._order[tensor] = None

    def discard(self, tensor: int) -> None:
        """It is resident no more."""
        self._order.pop(tensor, None)

    def pick(self, refuse: Callable[[int], bool]) -> int | None:
        """The least recently used one that is not refused."""
        for tensor in self._order:
            if not refuse(tensor):
                del self._order[tensor]
                return tensor
        return None
