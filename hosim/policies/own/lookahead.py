"""``lookahead``: ``on_demand`` with prefetching, the reactive runtime that HyperOffload is compared
with.

Beside each op's own faults, what the next ``k`` listed ops read and lies below is prefetched,
nearest first, as long as there is room without evicting anything. With ``k=0`` it is ``on_demand``.
Our reading of "runtime prefetching" in the comparison of arXiv 2602.00748: the runtime sees a
window of the program, no further, and reacts to memory as it finds it.

Tensors start as in :mod:`hosim.policies.own.on_demand`.
"""

from __future__ import annotations

from hosim.cache_plan import Plan
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.policies.own.on_demand import LeastRecentlyUsed
from hosim.schedule import paging_plan
from hosim.schedule.tiers_below import FASTEST, read_placement


def plan(
    graph: Graph, hardware: Hardware, budget_bytes: int, *, k: int, placement: str = FASTEST
) -> Plan:
    """The plan: its decisions are taken during the replay, each in O(k)."""
    return paging_plan(
        graph,
        hardware,
        budget_bytes,
        "lookahead",
        LeastRecentlyUsed,
        k,
        read_placement(placement, hardware),
    )
