"""A plan under another order of its ops: each op still follows its producers, and each cache op the
op that it is issued after.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hosim.cache_plan import AT_START, Plan
from hosim.edits import permuted
from hosim.graph import Graph


def drawn_order(graph: Graph, seed: int) -> list[int]:
    """The positions of the ops in an order in which each follows its producers
    (:attr:`Graph.producers`); of those that may come next, any.

    The same seed gives the same order everywhere.

    >>> from hosim.graph import GraphBuilder
    >>> b = GraphBuilder("toy")
    >>> _ = (
    ...     b.tensor("a", 30),
    ...     b.op("f", "any", outputs=["a"]),
    ...     b.op("g", "any", inputs=["a"]),
    ...     b.op("h", "any"),
    ... )
    >>> [drawn_order(b.build(), seed) for seed in (0, 1, 4)]
    [[2, 0, 1], [0, 1, 2], [0, 2, 1]]
    """
    rng = Random(seed)
    left = [len(producers) for producers in graph.producers]
    followers: list[list[int]] = [[] for _ in graph.ops]
    for i, producers in enumerate(graph.producers):
        for p in producers:
            followers[p].append(i)
    ready = [i for i, count in enumerate(left) if not count]
    order = []
    while ready:
        i = ready.pop(int(rng.random() * len(ready)))
        order.append(i)
        for j in followers[i]:
            left[j] -= 1
            if not left[j]:
                ready.append(j)
    return order


def reordered(plan: Plan, order: list[int]) -> Plan:
    """The plan with its ops listed as the positions of ``order`` say; it is a plan of the workload
    in that order.
    """
    place = {old: new for new, old in enumerate(order)}
    moves = tuple(
        [
            move if move.after == AT_START else replace(move, after=place[move.after])
            for move in plan.cache_ops
        ]
    )
    return replace(
        plan,
        graph=permuted(plan.graph, order),
        cache_ops=moves,
        edits=None,
        proof=None,
        judgement=None,
    )
