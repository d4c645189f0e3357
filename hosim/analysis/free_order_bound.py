"""A lower bound on the makespan of any plan that may also reorder a workload's ops and run some again.

The bounds of :mod:`hosim.analysis.bounds` hold for a graph in its listed order; where ops may trade places or be recomputed instead of
their outputs moved, only this is left: every op of the workload runs once, after its producers, one at a time on its stream; what is
read and is not in the device tier at time 0 comes in; and what the step writes of it goes back (docs/contract.md, rule 2).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hosim.analysis.any_processor import on_any_processor
from hosim.analysis.cuts import cut_of
from hosim.graph import Graph
from hosim.hardware import Channel, Hardware


def free_order_bound_ns(
    graph: Graph,
    durations: Sequence[int],
    hardware: Hardware,
    budget_bytes: int | None = None,
    below: Collection[int] = (),
    *,
    repeats: bool = True,
) -> int:
    """Nanoseconds below which no feasible replay of an edit of ``graph`` ends.

    Tensors of ``below`` start outside the device tier, all others wherever the plan likes. ``repeats`` false is for plans that do not
    restore what rule 2 wants restored.
    """
    loose = bool(graph.movable)
    if loose:
        graph, durations = on_any_processor(graph, durations, hardware)
    busy = dict.fromkeys(graph.streams, 0)
    ends: list[int] = []
    for i, op in enumerate(graph.ops):
        busy[op.stream] += durations[i]
        ends.append(max((ends[p] for p in graph.producers[i]), default=0) + durations[i])
    device = hardware.device_tier
    capacity = hardware.device.capacity_bytes if budget_bytes is None else min(budget_bytes, hardware.device.capacity_bytes)
    used = [t for t in graph.initial if graph.users[t]]
    read = [t for t in used if t in graph.ops[graph.users[t][0]].reads and not graph.ops[graph.users[t][0]].processor]
    written = [t for t in used if graph.survives[t] and graph.writers[t] and not any(graph.ops[i].processor for i in graph.users[t])]
    into = [channel for channel in hardware.channels if channel.destination == device]
    out = [channel for channel in hardware.channels if channel.source == device]
    arrival = _crossing_ns(graph, hardware, into, read, below, capacity)
    restored = _crossing_ns(graph, hardware, out, written, below, capacity) if repeats and not loose else 0
    return max([0, arrival, restored, *busy.values(), *ends])


def _crossing_ns(
    graph: Graph, hardware: Hardware, channels: Sequence[Channel], tensors: Sequence[int], below: Collection[int], capacity: int
) -> int:
    """How long those of some tensors that are not in the device tier at time 0 cross channels, each once."""
    cut = cut_of(hardware, channels)
    sizes = [tensor.size_bytes for tensor in graph.tensors]
    anywhere = sum([sizes[t] for t in tensors if t not in below])
    crossing = sum([sizes[t] for t in tensors if t in below]) + max(0, anywhere - capacity)
    return cut.earliest_ns(crossing) if cut is not None and crossing else 0
