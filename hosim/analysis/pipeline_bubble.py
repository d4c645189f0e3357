"""For how long a stage of a pipeline waits for other stages (docs/contract.md, rule 21)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hosim.analysis.stage_messages import StageExchange
from hosim.graph import Graph
from hosim.result import Timeline


def bubbles(
    graphs: Sequence[Graph],
    timelines: Sequence[Timeline],
    tied: Sequence[Mapping[int, StageExchange]],
) -> tuple[int, ...]:
    """The bubble of each stage, in nanoseconds, from what was recorded of each."""
    ends = [_end(timeline) for timeline in timelines]
    step = max(ends)
    found = []
    for stage, (graph, timeline) in enumerate(zip(graphs, timelines, strict=True)):
        began = {
            i: max([timelines[s].op_start_ns[j] for s, j in exchange.members])
            for i, exchange in tied[stage].items()
        }
        found.append(step - ends[stage] + _Waits(graph, timeline, began).of_main(ends[stage]))
    return tuple(found)


def _end(timeline: Timeline) -> int:
    return max([0, *timeline.op_end_ns, *[x.end_ns for x in timeline.transfers]])


class _Waits:
    """The way back from the end of a wait; ``began`` is when each exchange of the stage did."""

    def __init__(self, graph: Graph, timeline: Timeline, began: Mapping[int, int]) -> None:
        self._graph = graph
        self._start, self._end = timeline.op_start_ns, timeline.op_end_ns
        self._stalls = timeline.stalls
        self._began = began
        self._before: list[int] = []
        self._last: dict[str, int] = {}
        for i, op in enumerate(graph.ops.each()):
            self._before.append(self._last.get(op.stream, -1))
            self._last[op.stream] = i

    def of_main(self, end: int) -> int:
        """Return the time for which the main stream waits for other stages, until the end of the
        stage.
        """
        ops, main = self._graph.ops, self._graph.main_stream
        waits = [
            stall
            for stall in self._stalls
            if stall.cause == "dependency" and ops[stall.op].stream == main
        ]
        found = sum(
            [
                self._waited(self._graph.producers[stall.op], stall.start_ns, stall.end_ns)
                for stall in waits
            ]
        )
        if main not in self._last:
            return found
        return found + self._waited(self._last.values(), self._end[self._last[main]], end)

    def _waited(self, candidates: Iterable[int], begin: int, until: int) -> int:
        """Of the time from ``begin`` to ``until``, what exchanges waited on the way back from the
        candidate that ended last.
        """
        found = 0
        while until > begin:
            last = max(candidates, key=lambda i: (self._end[i], i in self._began, i), default=-1)
            if last < 0 or self._end[last] != until:  # copies or room were late
                break
            start = self._start[last]
            if last in self._began:
                found += max(0, self._began[last] - max(begin, start))
            until = start
            before = self._before[last]
            candidates = (
                self._graph.producers[last]
                if before < 0
                else (*self._graph.producers[last], before)
            )
        return found
