"""A lower bound on the makespan of any plan that may also reorder a workload's ops and run some again.

The bounds of :mod:`hosim.analysis.bounds` hold for a graph in its listed order; where ops may trade places or be recomputed instead of
their outputs moved, only this is left: every op of the workload runs once, after its producers, one at a time on its stream, and what is
read and does not fit into the device tier at time 0 comes in.
"""

from __future__ import annotations

from collections.abc import Sequence

from hosim.analysis.any_processor import on_any_processor
from hosim.analysis.cuts import cut_of
from hosim.graph import Graph
from hosim.hardware import Hardware


def free_order_bound_ns(graph: Graph, durations: Sequence[int], hardware: Hardware, budget_bytes: int | None = None) -> int:
    """Nanoseconds below which no feasible replay of an edit of ``graph`` ends, wherever its tensors start."""
    if graph.movable:
        graph, durations = on_any_processor(graph, durations, hardware)
    busy = dict.fromkeys(graph.streams, 0)
    ends: list[int] = []
    for i, op in enumerate(graph.ops):
        busy[op.stream] += durations[i]
        ends.append(max((ends[p] for p in graph.producers[i]), default=0) + durations[i])
    device = hardware.device_tier
    capacity = hardware.device.capacity_bytes if budget_bytes is None else min(budget_bytes, hardware.device.capacity_bytes)
    firsts = [(t, graph.ops[graph.users[t][0]]) for t in graph.initial if graph.users[t]]
    read = sum(graph.tensors[t].size_bytes for t, op in firsts if t in op.reads and not op.processor)
    into = cut_of(hardware, [channel for channel in hardware.channels if channel.destination == device])
    arrival = into.earliest_ns(read - capacity) if into is not None and read > capacity else 0
    return max([0, arrival, *busy.values(), *ends])
