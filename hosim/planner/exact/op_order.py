"""The ops that have certainly ended when another one starts, whatever the timing: what several
streams leave of the listed order.

On one stream it is the listed order. On several it follows from producers and from the order of
each stream (docs/contract.md, rule 1). Like all of the exact solver it shares no code with the
planner.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hosim.cache_plan import AT_START
from hosim.graph import Graph


class OpOrder:
    """The certain order of a graph's ops; the number of ops stands for the end of the step."""

    def __init__(self, graph: Graph) -> None:
        self.single = len(graph.streams) <= 1
        self.count = len(graph.ops)
        self._before: list[int] = []
        self.direct: list[tuple[int, ...]] = []
        last: dict[str, int] = {}
        for i, op in enumerate(graph.ops):
            direct = {*graph.producers[i]}
            if op.stream in last:
                direct.add(last[op.stream])
            last[op.stream] = i
            known = 0
            for p in direct:
                known |= self._before[p] | 1 << p
            self._before.append(known)
            self.direct.append(tuple(sorted(direct)))

    def precedes(self, i: int, j: int) -> bool:
        """Return whether op ``i`` has ended when op ``j`` starts, in every replay. :data:`AT_START`
        precedes all, and all precede the end.
        """
        if i == AT_START or j >= self.count:
            return i < self.count
        return j != AT_START and bool(self._before[j] >> i & 1)

    def ended_by(self, i: int, j: int) -> bool:
        """Return whether op ``i`` has ended when op ``j`` has."""
        return i == j or self.precedes(i, j)

    def last(self, ops: Sequence[int]) -> list[int]:
        """Those of ``ops`` that precede none of the others: when they have ended, all have."""
        return [i for i in ops if not any(self.precedes(i, j) for j in ops)]

    def first(self, ops: Sequence[int]) -> list[int]:
        """Those of ``ops`` that none of the others precedes."""
        return [i for i in ops if not any(self.precedes(j, i) for j in ops)]

    def ended_when_any(self, ops: Iterable[int], among: range) -> list[int]:
        """The ops of ``among`` by whose end all of ``ops`` have ended; of those that follow one
        another the first.
        """
        ops = list(ops)
        return self.first([x for x in among if all(self.ended_by(i, x) for i in ops)])


def earliest_and_tails(order: OpOrder, durations: Sequence[int]) -> tuple[list[int], list[int]]:
    """By op, nanoseconds before which it cannot start, and nanoseconds that must pass after it has
    ended, if nothing but ops counted.
    """
    earliest = [0] * order.count
    tails = [0] * order.count
    for i, direct in enumerate(order.direct):
        earliest[i] = max((earliest[p] + durations[p] for p in direct), default=0)
    for i in reversed(range(order.count)):
        for p in order.direct[i]:
            tails[p] = max(tails[p], tails[i] + durations[i])
    return earliest, tails
