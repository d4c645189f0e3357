"""The gaps that the static policies choose from, and the bytes in the device tier meanwhile.

Positions are those of ops; :data:`~hosim.cache_plan.AT_START` stands before the first and the
number of ops behind the last. The account is in the plan's order, as the published planners keep
it: a tensor that is away from its release to its prefetch is held by none of the ops between.
"""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from hosim.analysis import Gap, static_curve, tensor_gaps
from hosim.cache_plan import AT_START
from hosim.graph import Graph
from hosim.planner.schedule.insertion import Absence

_LOOK = 256
"""Ops that a search for room looks at first; twice as many each time after."""

Levels = np.ndarray[tuple[int], np.dtype[np.int64]]
"""Bytes held while each op runs, by position."""


def between_uses(graph: Graph, tensors: Iterable[int] | None = None) -> Iterator[Gap]:
    """Gaps between two uses, by tensor and position; those that end with an op that reads (else the
    contents are dead).
    """
    found = graph.derived(_between_uses)
    for t in range(len(graph.tensors)) if tensors is None else tensors:
        yield from found[t]


def _between_uses(graph: Graph) -> tuple[tuple[Gap, ...], ...]:
    """Those gaps of each tensor, kept with the graph: every policy and each of its settings asks
    for them.
    """
    end = len(graph.ops)
    return tuple(
        [
            tuple(
                [
                    gap
                    for gap in graph.derived(tensor_gaps)[t]
                    if gap.after != AT_START and gap.before < end and gap.returns
                ]
            )
            for t in range(len(graph.tensors))
        ]
    )


def below_at_ends(
    graph: Graph, residency: Mapping[int, tuple[str, ...]], device_tier: str
) -> Iterator[Gap]:
    """Yield where tensors that start below are away: until their first use, and if they are to
    survive, from their last one on.

    Unlike other gaps these need not have an op inside.
    """
    for t, where in residency.items():
        users = graph.users[t]
        if device_tier not in where and users:
            yield Gap(t, AT_START, users[0], 0, t in graph.ops[users[0]].reads)
            if graph.survives[t]:
                writers = graph.writers[t]
                yield Gap(
                    t,
                    users[-1],
                    len(graph.ops),
                    len(writers),
                    False,
                    max(writers, default=AT_START),
                )


def held_bytes(graph: Graph, device_tier: str) -> Levels:
    """Bytes of the device tier while each op runs with everything resident, by op position."""
    return np.array(graph.derived(static_curve, device_tier), dtype=np.int64)


def take_away(held: Levels, graph: Graph, absence: Absence) -> None:
    """Subtract what the absence frees: the ops from its release to its prefetch, that one
    included.
    """
    last = absence.prefetch if absence.before < len(graph.ops) else len(graph.ops)
    held[absence.release + 1 : last + 1] -= graph.tensors[absence.tensor].size_bytes


def fits_from(held: Levels, size: int, most: int, begin: int, end: int) -> int:
    """The first op from ``begin`` on from which so many bytes more fit within ``most``, up to
    ``end``, without that one.

    That is ``end`` or later where there is none.
    """
    look = _LOOK
    while end > begin:
        first = max(begin, end - look)
        (full,) = np.nonzero(held[first:end] > most - size)
        if len(full):
            return first + int(full[-1]) + 1
        end, look = first, 2 * look
    return begin
