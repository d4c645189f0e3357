"""The longest chain of ops: what no memory, however large and fast, can shorten.

An op follows its producers (:attr:`Graph.producers`) and the op before it on its stream. Positions
are already a topological order, so one forward sweep does it. The tests' oracle is
``networkx.dag_longest_path``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hosim.graph import Graph


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """A longest chain of ops, in order, and its length; of several equally long ones, that through
    the earliest listed ops.
    """

    length_ns: int
    ops: tuple[int, ...]


def stream_predecessors(graph: Graph) -> list[int]:
    """For each op, the position of the op before it on its stream, or -1."""
    last: dict[str, int] = {}
    before = []
    for i, op in enumerate(graph.ops.each()):
        before.append(last.get(op.stream, -1))
        last[op.stream] = i
    return before


def earliest_starts(graph: Graph, durations: Sequence[int]) -> list[int]:
    """Nanoseconds at which each op starts, by op position, if every tensor is resident and
    everything fits.
    """
    starts: list[int] = []
    for before, producers in zip(stream_predecessors(graph), graph.producers, strict=True):
        start = starts[before] + durations[before] if before >= 0 else 0
        for p in producers:
            start = max(start, starts[p] + durations[p])
        starts.append(start)
    return starts


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
