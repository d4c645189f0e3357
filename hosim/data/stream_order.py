"""When ops could start at the earliest: each follows its producers and the op before it on its
stream.
"""

from collections.abc import Sequence
from itertools import accumulate

from hosim.graph import Graph


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
    if len(graph.streams) <= 1:
        return [0, *accumulate(durations)][: len(durations)]
    starts: list[int] = []
    for before, producers in zip(stream_predecessors(graph), graph.producers, strict=True):
        start = starts[before] + durations[before] if before >= 0 else 0
        for p in producers:
            start = max(start, starts[p] + durations[p])
        starts.append(start)
    return starts
