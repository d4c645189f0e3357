"""The longest chain of ops: what no memory, however large and fast, can shorten.

An op follows its producers (:attr:`Graph.producers`) and the op before it on its stream. Positions
are already a topological order, so one forward sweep does it. The tests' oracle is
``networkx.dag_longest_path``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hosim.data.stream_order import earliest_starts, stream_predecessors
from hosim.graph import Graph


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """A longest chain of ops, in order, and its length; of several equally long ones, that through
    the earliest listed ops.
    """

    length_ns: int
    ops: tuple[int, ...]


def tails(graph: Graph, durations: Sequence[int]) -> list[int]:
    """Nanoseconds from each op's start to the end of the longest chain that begins with it."""
    tail = [0] * len(graph.ops)
    before, producers = stream_predecessors(graph), graph.producers
    for i in range(len(graph.ops) - 1, -1, -1):
        length = tail[i] = tail[i] + durations[i]
        if before[i] >= 0 and tail[before[i]] < length:
            tail[before[i]] = length
        for p in producers[i]:
            if tail[p] < length:
                tail[p] = length
    return tail


def critical_path(graph: Graph, durations: Sequence[int]) -> CriticalPath:
    """The longest path over producers and stream order, with ``durations`` in nanoseconds by op
    position.
    """
    if not graph.ops:
        return CriticalPath(0, ())
    starts = earliest_starts(graph, durations)
    ends = [start + duration for start, duration in zip(starts, durations, strict=True)]
    before = stream_predecessors(graph)
    i = ends.index(max(ends))
    path = [i]
    while True:
        i = min(
            (p for p in (*graph.producers[i], before[i]) if p >= 0 and ends[p] == starts[i]),
            default=-1,
        )
        if i < 0:
            return CriticalPath(max(ends), tuple(reversed(path)))
        path.append(i)
