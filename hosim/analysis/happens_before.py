"""Happens-before: the ops that have certainly ended when another has, for any durations, so that
cache ops are placed safely on several streams.

On one stream the listed order says it. On several, an op knows how many ops of each stream have
ended when it has (a vector clock: producers and its stream's earlier ops, and theirs); along a
stream these numbers only grow, so the first op that knows enough is found by bisection. The
verifier has clocks of its own (:mod:`hosim.analysis.verifying.verifier_walk`): it must not err
where a planner does.
"""

from bisect import bisect_left
from collections.abc import Sequence
from functools import cached_property

from hosim.cache_plan import AT_START
from hosim.graph import Graph


class HappensBefore:
    """The order that a graph's producers and streams impose on its ops; O(ops x streams).

    ``stream_of`` is the stream of each op and ``queues`` are the ops of each stream, ``place`` is
    each op's place in its queue. ``clock[i]`` is how many ops of each stream have surely ended when
    op ``i`` has; it is empty for a single stream.
    """

    def __init__(self, graph: Graph) -> None:
        self.single = len(graph.streams) <= 1
        number = {name: s for s, name in enumerate(graph.streams)}
        self.stream_of: Sequence[int] = bytes(len(graph.ops))
        self.queues: Sequence[Sequence[int]] = [range(len(graph.ops)) for _ in number]
        self.place: Sequence[int] = range(len(graph.ops))
        if not self.single:
            self.stream_of = [number[op.stream] for op in graph.ops.each()]
            self.queues, self.place = _places(self.stream_of, len(number))
        self.clock: list[list[int]] = []
        for i, s in enumerate(self.stream_of if not self.single else ()):
            clock = self.known_before(i).copy()
            for p in graph.producers[i]:
                if clock[self.stream_of[p]] <= self.place[p]:
                    clock = list(map(max, clock, self.clock[p]))
            clock[s] = self.place[i] + 1
            self.clock.append(clock)

    @cached_property
    def _ended(self) -> list[list[list[int]]]:
        """By stream, then by another one: how many ops of that other one have surely ended when
        each op of the first has; ascending.
        """
        return [
            [[self.clock[i][s] for i in queue] for s in range(len(self.queues))]
            for queue in self.queues
        ]

    def known_before(self, i: int) -> list[int]:
        """The clock of the op before ``i`` on its stream; of several streams only."""
        place = self.place[i]
        return (
            self.clock[self.queues[self.stream_of[i]][place - 1]]
            if place
            else [0] * len(self.queues)
        )

    def known_at_start(self, i: int) -> list[int]:
        """Return the number of ops of each stream that have surely ended when op ``i`` starts; of
        several streams only.
        """
        clock = self.clock[i].copy()
        clock[self.stream_of[i]] -= 1
        return clock

    def first_place(self, stream: int, op: int) -> int:
        """The place on a stream of the first op that starts only when ``op`` has ended; of several
        streams only.
        """
        if op == AT_START:
            return 0
        s, needed = self.stream_of[op], self.place[op] + 1 + (self.stream_of[op] == stream)
        return bisect_left(self._ended[stream][s], needed)

    def ended_by(self, earlier: int, op: int) -> bool:
        """Return whether ``earlier`` has surely ended when ``op`` has; :data:`AT_START` precedes
        all.
        """
        if earlier in (AT_START, op):
            return True
        if op == AT_START:
            return False
        return (
            earlier < op
            if self.single
            else self.clock[op][self.stream_of[earlier]] > self.place[earlier]
        )

    def first_after(self, ops: Sequence[int], wanted: int) -> int | None:
        """The first op listed at ``wanted`` or later by whose end all of ``ops`` have surely ended;
        ``None`` if there is none.
        """
        if self.single:
            return max([wanted, *ops])  # AT_START is less than any
        stream_of, place = self.stream_of, self.place
        if wanted != AT_START:  # most have ended by then
            known = self.clock[wanted]
            for op in ops:
                if op != AT_START and known[stream_of[op]] <= place[op]:
                    break
            else:
                return wanted
        needed = {(stream_of[op], place[op] + 1) for op in ops if op != AT_START}
        if not needed:
            return wanted
        best: int | None = None
        for queue, ended in zip(self.queues, self._ended, strict=True):
            k = bisect_left(queue, wanted)
            for s, count in needed:
                k = bisect_left(ended[s], count, lo=k)
            if k < len(queue) and (best is None or queue[k] < best):
                best = queue[k]
        return best

    def last_before(self, op: int, wanted: int) -> int:
        """The last op listed at ``wanted`` or earlier by whose end ``op`` has surely ended; ``op``
        itself if there is none.
        """
        if op == AT_START or self.single:
            return max(op, wanted)
        best = op
        s, k = self.stream_of[op], self.place[op] + 1
        for queue, ended in zip(self.queues, self._ended, strict=True):
            first = bisect_left(ended[s], k)
            last = bisect_left(queue, wanted + 1) - 1
            if first <= last:
                best = max(best, queue[last])
        return best


def _places(stream_of: Sequence[int], streams: int) -> tuple[list[list[int]], list[int]]:
    """The ops of each stream, and each op's place among them."""
    queues: list[list[int]] = [[] for _ in range(streams)]
    places = []
    for i, s in enumerate(stream_of):
        places.append(len(queues[s]))
        queues[s].append(i)
    return queues, places
