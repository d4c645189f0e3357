"""``belady``: a reactive runtime that knows the future: it evicts what is used farthest ahead.

Source: L. A. Belady, A study of replacement algorithms for a virtual-storage computer, IBM Systems
Journal 5(2), 1966 (the rule MIN). Faults and waits are those of
:mod:`hosim.policies.own.on_demand`; only the victim differs. Our reading where tensors are no
pages: sizes do not matter, and a persistent tensor whose last use is past is used next in the next
step. MIN is optimal in faults for equal sizes and one tensor a reference; in bytes moved only where
all victims are clean.

At the end of a step it has what the next step uses first; so persistent tensors start as in
:mod:`hosim.policies.own.keep_first`.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from hosim.cache_plan import Plan
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.planner.schedule import kept_from_the_start, paging_plan
from hosim.planner.schedule.tiers_below import FASTEST, read_placement


def plan(graph: Graph, hardware: Hardware, budget_bytes: int, *, placement: str = FASTEST) -> Plan:
    """The plan: its decisions are taken during the replay, each in O(log tensors) amortized."""
    rule = read_placement(placement, hardware)
    initial = kept_from_the_start(graph, hardware, budget_bytes, rule)
    return paging_plan(
        graph, hardware, budget_bytes, "belady", FarthestNextUse, placement=rule, initial=initial
    )


class FarthestNextUse:
    """:class:`hosim.planner.schedule.paging.Victims`, the one used farthest ahead first; of equals the
    later listed.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []
        self._next_use: dict[int, int] = {}

    def touch(self, tensor: int, next_use: int) -> None:
        """It is used next by the op at ``next_use``."""
        if self._next_use.get(tensor) != next_use:
            self._next_use[tensor] = next_use
            heappush(self._heap, (-next_use, -tensor))

    def discard(self, tensor: int) -> None:
        """It is resident no more; its entry is skipped when it comes up."""
        self._next_use.pop(tensor, None)

    def pick(self, refuse: Callable[[int], bool]) -> int | None:
        """The one used farthest ahead that is not refused."""
        refused: list[tuple[int, int]] = []
        picked = None
        while self._heap and picked is None:
            entry = heappop(self._heap)
            tensor = -entry[1]
            if self._next_use.get(tensor) != -entry[0]:
                continue
            if refuse(tensor):
                refused.append(entry)
            else:
                picked = tensor
                del self._next_use[tensor]
        for entry in refused:
            heappush(self._heap, entry)
        return picked
