"""The ops that have surely ended when another one has: vector clocks over streams.

The clock of op x counts, for each stream, how many of its ops have ended whenever x has, in any
replay. Ops of one stream run one at a time in listed order, so that the ops known to have ended are
a prefix of each stream, and one number a stream says it all (Mattern, Virtual Time and Global
States of Distributed Systems, 1989).
"""

from __future__ import annotations

from collections.abc import Iterable

from hosim.cache_plan import AT_START
from hosim.graph import Graph


class StreamClocks:
    """Clocks of the ops of a graph, which :meth:`advance` is told in listed order. O(ops x
    streams).
    """

    def __init__(self, graph: Graph) -> None:
        number = {name: s for s, name in enumerate(graph.streams)}
        self.stream_of = [number[op.stream] for op in graph.ops.each()]
        counts = [0] * len(number)
        self._place = []
        for s in self.stream_of:
            self._place.append(counts[s])
            counts[s] += 1
        self._clocks: list[list[int]] = []
        self._last = [AT_START] * len(number)
        self._single = len(number) <= 1

    def advance(self, followed: Iterable[int]) -> None:
        """The next op in listed order: it starts after the ops ``followed`` have ended, and after
        the one before it on its stream.
        """
        if self._single:
            return
        i = len(self._clocks)
        stream = self.stream_of[i]
        clock = [0] * len(self._last)
        for p in (*followed, self._last[stream]):
            if p != AT_START:
                clock = list(map(max, clock, self._clocks[p]))
        clock[stream] = self._place[i] + 1
        self._clocks.append(clock)
        self._last[stream] = i

    def ended_by(self, earlier: int, op: int) -> bool:
        """Return whether op ``earlier`` has surely ended when op ``op`` has;
        :data:`~hosim.cache_plan.AT_START` precedes every op.
        """
        if earlier in (AT_START, op):
            return True
        if op == AT_START:
            return False
        return (
            earlier < op
            if self._single
            else self._place[earlier] < self._clocks[op][self.stream_of[earlier]]
        )
