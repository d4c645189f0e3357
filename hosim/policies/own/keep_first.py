"""``keep_first``: a reactive runtime that keeps what it had first, and fetches the rest for each
use.

Where a step sweeps over more than fits, evicting the least recently used evicts just what the next
sweep wants first, so everything is fetched each time (:mod:`hosim.policies.own.on_demand`). A
runtime that evicts what came last instead keeps what filled the memory first, and misses only the
rest. Source: the policy "most recently used", optimal for cyclic sweeps, of H.-T. Chou and D. J.
DeWitt, An evaluation of buffer management strategies for relational database systems (VLDB 1985).

Our reading: of the persistent tensors, those that are used first start in the device tier and stay,
as many as let the others come and go; these start below. A victim is a tensor that was fetched, the
least recently used first, and only if there is none any other, the last arrived first. Faults,
waits, stores and the end of the step are those of ``on_demand``; every op costs the machine's
inspection time.

Not modelled: parts of a tensor. A plan moves whole tensors, so a cache of pages would keep a little
more.
"""

from __future__ import annotations

from collections.abc import Callable

from hosim.cache_plan import Plan
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.planner.schedule import kept_from_the_start, paging_plan, starts_below
from hosim.planner.schedule.tiers_below import FASTEST, read_placement
from hosim.policies.own.on_demand import LastArrived, LeastRecentlyUsed


def plan(graph: Graph, hardware: Hardware, budget_bytes: int, *, placement: str = FASTEST) -> Plan:
    """The plan: its decisions are taken during the replay, each in O(1) amortized."""
    rule = read_placement(placement, hardware)
    initial = kept_from_the_start(graph, hardware, budget_bytes, rule)
    at_home = starts_below(graph, hardware)
    fetched = frozenset((*at_home, *initial))
    return paging_plan(
        graph,
        hardware,
        budget_bytes,
        "keep_first",
        lambda: FetchedThenLast(fetched),
        placement=rule,
        initial=initial,
    )


class FetchedThenLast:
    """:class:`hosim.planner.schedule.paging.Victims`: what lives below, the least recently used first; then
    others, the last arrived first.
    """

    def __init__(self, fetched: frozenset[int]) -> None:
        self._below = fetched
        self._fetched, self._others = LeastRecentlyUsed(), LastArrived()

    def touch(self, tensor: int, next_use: int) -> None:
        """It is used, fetched or made."""
        (self._fetched if tensor in self._below else self._others).touch(tensor, next_use)

    def discard(self, tensor: int) -> None:
        """It is resident no more."""
        self._fetched.discard(tensor)
        self._others.discard(tensor)

    def pick(self, refuse: Callable[[int], bool]) -> int | None:
        """The first one in that order that is not refused."""
        found = self._fetched.pick(refuse)
        return self._others.pick(refuse) if found is None else found
