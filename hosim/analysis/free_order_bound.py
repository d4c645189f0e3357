"""A lower bound on the makespan of any plan that may also reorder a workload's ops and run some again.

The bounds of :mod:`hosim.analysis.bounds` hold for a graph in its listed order; where ops may trade places or be recomputed instead of
their outputs moved, only this is left: every op of the workload runs once, after its producers, one at a time on its stream; what is
read and is not in the device tier at time 0 comes in; and what the step writes of it goes back (docs/contract.md, rule 2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from hosim.analysis.any_processor import on_any_processor
from hosim.analysis.step_traffic import step_traffic_ns
from hosim.costmodel.memory_traffic import machine_of_copies
from hosim.graph import Graph
from hosim.hardware import Hardware


def free_order_bound_ns(
    graph: Graph,
    durations: Sequence[int],
    hardware: Hardware,
    budget_bytes: int | None = None,
    starts: Mapping[int, Sequence[str]] = MappingProxyType({}),
    *,
    repeats: bool = True,
    compete: bool | None = None,
) -> int:
    """Nanoseconds below which no feasible replay of an edit of ``graph`` ends.

    Tensors of ``starts`` start in these tiers, all others wherever the plan likes. ``repeats`` false is for plans that do not
    restore what rule 2 wants restored. ``compete`` says whether copies share the bandwidth of memories, as in :func:`hosim.engine.replay`.
    """
    loose = bool(graph.movable)
    if loose:
        graph, durations = on_any_processor(graph, durations, hardware)
    busy = dict.fromkeys(graph.streams, 0)
    ends: list[int] = []
    for i, op in enumerate(graph.ops):
        busy[op.stream] += durations[i]
        ends.append(max((ends[p] for p in graph.producers[i]), default=0) + durations[i])
    capacity = hardware.device.capacity_bytes if budget_bytes is None else min(budget_bytes, hardware.device.capacity_bytes)
    traffic = step_traffic_ns(graph, machine_of_copies(graph, hardware, compete), starts, capacity, repeats=repeats and not loose)
    return max([0, traffic, *busy.values(), *ends])
