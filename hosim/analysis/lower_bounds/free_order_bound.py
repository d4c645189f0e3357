"""A lower bound on the makespan of any plan that may also reorder a workload's ops and run some
again.

The bounds of :mod:`hosim.analysis.lower_bounds.bounds` hold for a graph in its listed order. Where
ops may trade places or be recomputed instead of
their outputs moved, only this is left: every op of the workload runs once, after those that it has
to wait for, one at a time on its stream; what is read and is not in the device tier at time 0 comes
in; and what the step writes of it goes back (docs/contract.md, rule 2).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from hosim.analysis.lower_bounds.any_processor import on_any_processor
from hosim.analysis.lower_bounds.step_traffic import step_traffic_ns
from hosim.costmodel import machine_of_copies
from hosim.edits import why_once
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

    Tensors of ``starts`` start in these tiers, all others wherever the plan likes. ``repeats``
    false is for plans that do not restore what rule 2 wants restored. ``compete`` says whether
    copies share the bandwidth of memories, as in :func:`hosim.engine.replay`.
    """
    loose = bool(graph.movable)
    if loose:
        graph, durations = on_any_processor(graph, durations, hardware)
    busy = dict.fromkeys(graph.streams, 0)
    ends: list[int] = []
    for i, op in enumerate(graph.ops.each()):
        busy[op.stream] += durations[i]
        ends.append(max((ends[p] for p in _always_before(graph, i)), default=0) + durations[i])
    capacity = (
        hardware.device.capacity_bytes
        if budget_bytes is None
        else min(budget_bytes, hardware.device.capacity_bytes)
    )
    traffic = step_traffic_ns(
        graph,
        machine_of_copies(graph, hardware, compete),
        starts,
        capacity,
        repeats=repeats and not loose,
    )
    return max([0, traffic, *busy.values(), *ends])


def _always_before(graph: Graph, i: int) -> set[int]:
    """The ops that end before op ``i`` starts whichever ops run again: those whose contents it
    reads, or whose tensors it writes.

    Where an op runs again, what it makes is a tensor of its own, which later readers use
    (docs/contract.md, rule 18): then an op that writes the first tensor anew need not wait for
    them.
    """
    op = graph.ops[i]
    before = set(op.deps)
    for t in op.inputs:
        before.update(_last_before(graph.writers[t], i))
    for t in op.writes:
        before.update(_last_before(graph.writers[t], i))
        for user in graph.users[t][: bisect_left(graph.users[t], i)]:
            maker = _last_before(graph.writers[t], user)
            if graph.survives[t] or not maker or why_once(graph, graph.ops[maker[0]]):
                before.add(user)
    return before


def _last_before(positions: Sequence[int], i: int) -> tuple[int, ...]:
    """The last of some ops before op ``i``, if there is one."""
    k = bisect_left(positions, i)
    return (positions[k - 1],) if k else ()
