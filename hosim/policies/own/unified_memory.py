"""``unified_memory``: pages come up when ops touch them, as under CUDA's unified memory; what came
first is evicted first.

Source: the driver's behaviour as published: N. Sakharnykh, Maximizing unified memory performance in
CUDA (NVIDIA technical blog, 2017); T. Allen and R. Ge, In-depth analyses of unified virtual memory
system for GPU accelerated computing (SC 2021); and the comments of the open kernel modules
(``uvm_perf_prefetch.c``, ``uvm_pmm_gpu.c``). Faults are served in batches. Around a page that
faults, a prefetcher brings up more of its block of 2 MiB. Blocks are evicted in the order in which
they were last migrated: the driver sees faults, not uses, so what is used all the time goes as
well.

What of that a plan can say, which moves whole tensors: a batch is all that one op misses. With each
of them come the tensors beside it in memory that share its first or last block of ``block`` bytes,
as far as there is room; memory is in the order in which the workload lists the tensors. A victim is
the tensor that came up or was made the longest ago. Every op costs the machine's inspection time.

Not modelled: parts of a tensor that come and go by themselves; the time that a fault takes beside
its copy (20 to 50 us a batch), and that copies by faults reach only a part of the link's bandwidth,
so that real runs are slower; hints (``cudaMemAdvise``, ``cudaMemPrefetchAsync``) and mapping of
remote pages instead of migration. Tensors start as in :mod:`hosim.policies.own.on_demand`.
"""

from __future__ import annotations

from itertools import accumulate

from hosim.cache_plan import Plan
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.planner.schedule import paging_plan
from hosim.planner.schedule.tiers_below import FASTEST, read_placement
from hosim.policies.own.on_demand import FirstArrived


def plan(
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
