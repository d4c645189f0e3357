"""Ops of different streams that cannot run at once, as memory does not hold what both use: one has
ended before the other starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush

from hosim.analysis.critical_path import stream_predecessors
from hosim.analysis.happens_before import HappensBefore
from hosim.graph import Graph

Timed = tuple[Graph, Sequence[int]]
"""A graph, and nanoseconds by op position."""


def least_of_orders(
    graph: Graph,
    durations: Sequence[int],
    capacity: int,
    bound: Callable[[Graph, Sequence[int]], int],
    enough: int | None,
    most: int,
) -> int:
    """The least ``bound`` of the graphs in which ops that cannot run at once follow one another, in
    whichever order.

    Every replay of the graph is one of them, so that it is a bound if each is. Of a pair that
    neither order decides both stay together; the bound is computed for at most ``most`` graphs and
    the search ends at ``enough``, if it gets there.
    """
    found: list[tuple[int, int, Timed]] = [(bound(graph, durations), 0, (graph, durations))]
    for number in range(1, most, 2):
        least, _, one = found[0]
        both = None if enough is not None and least >= enough else _either_way(*one, capacity)
        if both is None:
            break
        heappop(found)
        for k, each in enumerate(both):
            heappush(found, (max(least, bound(*each)), number + k, each))
    return found[0][0]


def _either_way(
    graph: Graph, durations: Sequence[int], capacity: int
) -> tuple[Timed, Timed] | None:
    """The graph with two ops that cannot run at once in the one order and in the other; ``None`` if
    all such ops have one.

    Of several pairs it takes that which would overlap most.
    """
    pairs = [
        (min(durations[i], durations[j]), -i, -j)
        for i, j in _unordered(graph)
        if _together(graph, i, j) > capacity
    ]
    if not pairs:
        return None
    _, i, j = max(pairs)
    return _followed(graph, durations, -i, -j), _followed(graph, durations, -j, -i)


def _unordered(graph: Graph) -> Iterator[tuple[int, int]]:
    """Pairs of ops of which neither has surely ended when the other starts."""
    order = graph.derived(HappensBefore)
    for j in range(len(graph.ops)):
        ended = order.known_at_start(j)
        yield from ((i, j) for i in range(j) if order.place[i] >= ended[order.stream_of[i]])


def _together(graph: Graph, i: int, j: int) -> int:
    """The bytes that two ops hold while both run."""
    both = graph.ops[i], graph.ops[j]
    return sum([op.workspace_bytes for op in both]) + sum(
        [graph.tensors[t].size_bytes for t in {t for op in both for t in op.uses}]
    )


def _followed(graph: Graph, durations: Sequence[int], first: int, then: int) -> Timed:
    """The graph in which op ``then`` depends on op ``first`` as well, its ops listed as before as
    far as that allows.
    """
    before = [
        {p for p in (*graph.producers[i], last) if p >= 0}
        for i, last in enumerate(stream_predecessors(graph))
    ]
    before[then].add(first)
    after: list[list[int]] = [[] for _ in before]
    for i, waited in enumerate(before):
        for p in waited:
            after[p].append(i)
    left = [len(waited) for waited in before]
    ready = [i for i, count in enumerate(left) if not count]
    heapify(ready)
    place: dict[int, int] = {}
    while ready:
        i = heappop(ready)
        place[i] = len(place)
        for j in after[i]:
            left[j] -= 1
            if not left[j]:
                heappush(ready, j)
    deps = [(*graph.ops[i].deps, first) if i == then else graph.ops[i].deps for i in place]
    ops = [
        replace(graph.ops[i], deps=tuple(sorted({place[d] for d in each})))
        for i, each in zip(place, deps, strict=True)
    ]
    return Graph(graph.name, graph.tensors, tuple(ops), graph.meta), [durations[i] for i in place]
