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

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from itertools import accumulate

from hosim.cache_plan import Plan
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.planner.schedule import kept_from_the_start, paging_plan, starts_below
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


# -- unified memory
# --------------------------------------------------------------------------------------------------
# ``unified_memory``: pages come up when ops touch them, as under CUDA's unified memory; what came
# first is evicted first.
#
# Source: the driver's behaviour as published: N. Sakharnykh, Maximizing unified memory performance in
# CUDA (NVIDIA technical blog, 2017); T. Allen and R. Ge, In-depth analyses of unified virtual memory
# system for GPU accelerated computing (SC 2021); and the comments of the open kernel modules
# (``uvm_perf_prefetch.c``, ``uvm_pmm_gpu.c``). Faults are served in batches. Around a page that
# faults, a prefetcher brings up more of its block of 2 MiB. Blocks are evicted in the order in which
# they were last migrated: the driver sees faults, not uses, so what is used all the time goes as
# well.
#
# What of that a plan can say, which moves whole tensors: a batch is all that one op misses. With each
# of them come the tensors beside it in memory that share its first or last block of ``block`` bytes,
# as far as there is room; memory is in the order in which the workload lists the tensors. A victim is
# the tensor that came up or was made the longest ago. Every op costs the machine's inspection time.
#
# Not modelled: parts of a tensor that come and go by themselves; the time that a fault takes beside
# its copy (20 to 50 us a batch), and that copies by faults reach only a part of the link's bandwidth,
# so that real runs are slower; hints (``cudaMemAdvise``, ``cudaMemPrefetchAsync``) and mapping of
# remote pages instead of migration. Tensors start as in :mod:`hosim.policies.own.on_demand`.


def unified_memory(
    graph: Graph, hardware: Hardware, budget_bytes: int, *, block: int, placement: str = FASTEST
) -> Plan:
    """The plan: its decisions are taken during the replay, each in O(1) amortized."""
    rule = read_placement(placement, hardware)
    beside = MemoryBlocks(graph, block).beside if block else None
    return paging_plan(
        graph, hardware, budget_bytes, "unified_memory", FirstArrived, placement=rule, beside=beside
    )


class MemoryBlocks:
    """The tensors of each block of memory, where tensors lie in the order in which they are
    listed.
    """

    def __init__(self, graph: Graph, block_bytes: int) -> None:
        sizes = [tensor.size_bytes for tensor in graph.tensors]
        self._blocks: list[tuple[int, ...]] = []
        self._tensors: dict[int, list[int]] = {}
        for t, (size, end) in enumerate(zip(sizes, accumulate(sizes), strict=True)):
            ends = (
                tuple(dict.fromkeys(((end - size) // block_bytes, (end - 1) // block_bytes)))
                if size
                else ()
            )
            self._blocks.append(ends)
            for block in ends:
                self._tensors.setdefault(block, []).append(t)

    def beside(self, tensor: int) -> list[int]:
        """Those that share the first or the last block of a tensor with it."""
        return [
            other
            for block in self._blocks[tensor]
            for other in self._tensors[block]
            if other != tensor
        ]


# -- keep first
# --------------------------------------------------------------------------------------------------
# ``keep_first``: a reactive runtime that keeps what it had first, and fetches the rest for each
# use.
#
# Where a step sweeps over more than fits, evicting the least recently used evicts just what the next
# sweep wants first, so everything is fetched each time (:mod:`hosim.policies.own.on_demand`). A
# runtime that evicts what came last instead keeps what filled the memory first, and misses only the
# rest. Source: the policy "most recently used", optimal for cyclic sweeps, of H.-T. Chou and D. J.
# DeWitt, An evaluation of buffer management strategies for relational database systems (VLDB 1985).
#
# Our reading: of the persistent tensors, those that are used first start in the device tier and stay,
# as many as let the others come and go; these start below. A victim is a tensor that was fetched, the
# least recently used first, and only if there is none any other, the last arrived first. Faults,
# waits, stores and the end of the step are those of ``on_demand``; every op costs the machine's
# inspection time.
#
# Not modelled: parts of a tensor. A plan moves whole tensors, so a cache of pages would keep a little
# more.


def keep_first(
    graph: Graph, hardware: Hardware, budget_bytes: int, *, placement: str = FASTEST
) -> Plan:
    """The plan: its decisions are taken during the replay, each in O(1) amortized."""
    rule = read_placement(placement, hardware)
    initial = kept_from_the_start(graph, hardware, budget_bytes, rule)
    fetched = frozenset((*starts_below(graph, hardware), *initial))
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


# -- belady
# --------------------------------------------------------------------------------------------------
# ``belady``: a reactive runtime that knows the future: it evicts what is used farthest ahead.
#
# Source: L. A. Belady, A study of replacement algorithms for a virtual-storage computer, IBM Systems
# Journal 5(2), 1966 (the rule MIN). Faults and waits are those of
# :mod:`hosim.policies.own.on_demand`; only the victim differs. Our reading where tensors are no
# pages: sizes do not matter, and a persistent tensor whose last use is past is used next in the next
# step. MIN is optimal in faults for equal sizes and one tensor a reference; in bytes moved only where
# all victims are clean.
#
# At the end of a step it has what the next step uses first; so persistent tensors start as in
# ``keep_first``.


def belady(
    graph: Graph, hardware: Hardware, budget_bytes: int, *, placement: str = FASTEST
) -> Plan:
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
