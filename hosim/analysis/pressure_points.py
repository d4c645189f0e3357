"""Some ops of a graph, its pressure points, and how every other op lies to them whatever the
timing.

Between the points nothing is looked at, so that a bound made of them costs the same on graphs of
any size. On small graphs every op is a point; on larger ones the ops are divided into parts, and
each part gives the op at which most does not fit.

A set of points is a whole number whose bit ``k`` stands for point ``k``. Op a *precedes* op b where
a has ended when b starts in every replay: producers and the order of a stream say so, and what
follows from them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from hosim.analysis.happens_before import HappensBefore
from hosim.cache_plan import AT_START
from hosim.data.stream_order import stream_predecessors
from hosim.graph import Graph


@dataclass(frozen=True)
class Points:
    """``ops`` are the points, in listed order; ``before[i]`` the points that precede op ``i`` and
    ``after[i]`` those it precedes.
    """

    ops: tuple[int, ...]
    before: Sequence[int]
    after: Sequence[int]
    number: dict[int, int]

    @cached_property
    def by_begin(self) -> Sequence[int]:
        """By op, the points that precede it, with itself if it is one."""
        return self._and_itself(self.before)

    @cached_property
    def by_end(self) -> Sequence[int]:
        """By op, the points that it precedes, with itself if it is one."""
        return self._and_itself(self.after)

    def _and_itself(self, side: Sequence[int]) -> Sequence[int]:
        found = list(side)
        for i, k in self.number.items():
            found[i] |= 1 << k
        return found


def points_of(graph: Graph, ops: Sequence[int]) -> Points:
    """The points ``ops`` (ascending) of a graph; O(ops + dependencies)."""
    count = len(graph.ops)
    number = {i: k for k, i in enumerate(ops)}
    before, after = [0] * count, [0] * count
    if len(graph.streams) <= 1:
        passed, every = 0, (1 << len(ops)) - 1
        for i in range(count):
            here = 1 << number[i] if i in number else 0
            before[i] = passed
            passed |= here
            after[i] = every & ~passed
        return Points(tuple(ops), before, after, number)
    sooner, producers = stream_predecessors(graph), graph.producers
    for i in range(count):
        known = 0
        for p in (*producers[i], sooner[i]):
            if p >= 0:
                known |= before[p] | (1 << number[p] if p in number else 0)
        before[i] = known
    for i in range(count - 1, -1, -1):
        known = after[i] | (1 << number[i] if i in number else 0)
        for p in (*producers[i], sooner[i]):
            if p >= 0:
                after[p] |= known
    return Points(tuple(ops), before, after, number)


def excess_of(graph: Graph, capacity: int) -> list[int]:
    """By op, how far what it uses, and what is needed both before and after it, exceed ``capacity``
    if nothing moves, in bytes.

    On several streams, what is needed before and after it in every replay: a use that another
    stream may overtake says nothing.
    """
    if len(graph.streams) <= 1:
        return [held - capacity for held in _held(graph)]
    order = graph.derived(HappensBefore)
    change = [[0] * (len(queue) + 1) for queue in order.queues]
    starts, survives = set(graph.initial), graph.survives
    sizes = graph.tensors.column(lambda tensor: tensor.size_bytes)
    between_uses = dict[tuple[int, int | None], list[tuple[list[int], int, int]]]()
    for t, users in enumerate(graph.users):
        size = sizes[t]
        before: int | None = AT_START if t in starts else None
        for u in (*users, None) if size and users else ():
            if before is not None and (u is not None or survives[t]):
                found = between_uses.get((before, u))
                if found is None:
                    places = zip(change, _between(order, before, u), strict=True)
                    found = between_uses[before, u] = [
                        (changes, first, last) for changes, (first, last) in places if first < last
                    ]
                for changes, first, last in found:
                    changes[first] += size
                    changes[last] -= size
            before = u
    held = [0] * len(graph.ops)
    for queue, changes in zip(order.queues, change, strict=True):
        for i, between in zip(queue, accumulate(changes), strict=False):
            op = graph.ops[i]
            held[i] = between + sum([sizes[t] for t in op.uses]) + op.workspace_bytes - capacity
    return held


def _between(order: HappensBefore, before: int, after: int | None) -> Iterator[tuple[int, int]]:
    """By stream, the places of the ops that start after the one op has ended and end before the
    other starts, in every replay.
    """
    known = (
        order.known_at_start(after) if after is not None else [len(queue) for queue in order.queues]
    )
    for s, ended in enumerate(known):
        yield order.first_place(s, before), ended


def _held(graph: Graph) -> list[int]:
    """By op of a single stream, the bytes that are held if nothing moves."""
    change = [0] * (len(graph.ops) + 1)
    initial, survives = set(graph.initial), graph.survives
    sizes = graph.tensors.column(lambda tensor: tensor.size_bytes)
    for t, users in enumerate(graph.users):
        if users:
            size = sizes[t]
            change[0 if t in initial else users[0]] += size
            if not survives[t]:
                change[users[-1] + 1] -= size
    return [
        held + op.workspace_bytes for held, op in zip(accumulate(change), graph.ops, strict=False)
    ]


def tightest(excess: Sequence[int], parts: int) -> list[int]:
    """Every op of a small graph; of a larger one the op with the largest ``excess`` in each of
    ``parts`` equal parts.
    """
    count = len(excess)
    if count <= parts:
        return list(range(count))
    return [
        max(range(count * k // parts, count * (k + 1) // parts), key=excess.__getitem__)
        for k in range(parts)
    ]
