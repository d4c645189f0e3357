"""The bytes in the device tier while a graph runs with some of its ops recomputed, found without
building that graph.

A tensor that a recomputed op makes takes the place of the one it stands for, for all later users
until an op writes that one anew (:mod:`hosim.edits`). So only tensors that are made again are
followed use by use. All others are held as in the graph as it is, or longer where an op that runs
again reads them. Planners weigh hundreds of sets of such ops.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hosim.analysis.liveness import USUAL_DEVICE_TIER, idle_below, static_curve
from hosim.edits import Recompute, edited, reads_the_same, recomputed_positions
from hosim.graph import Graph

_SAFE = 2**62
"""Sums below this are computed in 64 bits, others in Python's numbers."""

Numbers = npt.NDArray[Any]

_USED, _READ_AGAIN, _MADE_AGAIN = range(3)


def edited_curve(
    graph: Graph, recompute: Sequence[Recompute], device_tier: str = USUAL_DEVICE_TIER
) -> tuple[Numbers, Numbers]:
    """:func:`hosim.analysis.liveness.static_curve` of ``edited(graph, recompute=recompute)``, and
    which op each of its ops runs.

    The ops are given by their positions in ``graph``. O(tensors + ops), of which little is done in
    Python. Raises :class:`hosim.errors.GraphError` as :func:`hosim.edits.edited` does.

    >>> from hosim.graph import GraphBuilder
    >>> b = GraphBuilder("toy")
    >>> _ = (
    ...     b.tensor("a", 30),
    ...     b.op("f", "relu", outputs=["a"]),
    ...     b.op("g", "relu", inputs=["a"]),
    ...     b.op("h", "relu", inputs=["a"]),
    ... )
    >>> held, ops = edited_curve(b.build(), [Recompute("f", "h", "f~2")])
    >>> held.tolist(), ops.tolist()
    ([30, 30, 30, 30], [0, 1, 0, 2])
    """
    again = recomputed_positions(graph, recompute)
    before = [at for _, at in again]
    count = len(graph.ops)
    ops = np.insert(np.arange(count), before, [f for f, _ in again])
    if not count or graph.elsewhere or not all(reads_the_same(graph, f, at) for f, at in again):
        return np.array(
            static_curve(edited(graph, recompute=recompute), device_tier)
        ), ops  # it raises what is wrong with the edits
    held = graph.derived(_UneditedLives, device_tier)
    is_again = np.insert(np.zeros(count, bool), before, True)
    place = np.flatnonzero(~is_again)
    safe = held.total * (1 + len(again)) < _SAFE
    sizes = held.sizes if safe else held.sizes.astype(object)
    first, last = place[held.first], place[held.last]
    copies = _follow(graph, again, np.flatnonzero(is_again).tolist(), place, last)
    first[held.from_start] = 0
    last[held.to_end] = len(ops) - 1
    change = np.zeros(len(ops) + 1, sizes.dtype)
    np.add.at(change, first[held.used], sizes[held.used])
    np.subtract.at(change, last[held.used] + 1, sizes[held.used])
    for t, begin, end in copies:
        change[begin] += sizes[t]
        change[end + 1] -= sizes[t]
    return np.cumsum(change)[:-1] + held.workspaces[ops], ops


class _UneditedLives:
    """The lifetimes of the tensors of an unedited graph: the first and the last op that uses each,
    0 for those that no op uses.

    ``from_start`` and ``to_end`` say which are there whatever uses them, ``used`` which are there
    at all. For :meth:`Graph.derived`.
    """

    def __init__(self, graph: Graph, device_tier: str) -> None:
        users = graph.compact_users
        first = np.array(users.first, np.int64)
        self.first, self.last = np.maximum(first, 0), np.maximum(np.array(users.last, np.int64), 0)
        self.sizes = np.array([tensor.size_bytes for tensor in graph.tensors.each()], np.int64)
        self.workspaces = np.array([op.workspace_bytes for op in graph.ops.each()], np.int64)
        self.total = sum(self.sizes.tolist()) + max(self.workspaces.tolist(), default=0)
        self.from_start = np.zeros(len(first), bool)
        self.from_start[list(set(graph.initial) - idle_below(graph, device_tier))] = True
        self.to_end = np.array(graph.survives, bool) | (self.from_start & (first < 0))
        self.used = np.flatnonzero((first >= 0) | self.from_start)


def _follow(
    graph: Graph,
    again: Sequence[tuple[int, int]],
    ran: Sequence[int],
    place: Numbers,
    last: Numbers,
) -> list[tuple[int, int, int]]:
    """The tensors that are made again, each as the one it stands for, its first and its last user;
    ``last`` of the others is put right.

    ``ran`` are the places of the ops that run again, ``place`` those of all others.
    """
    ops = graph.ops.items
    read: Mapping[int, list[int]] = defaultdict(list)
    made: Mapping[int, list[tuple[int, int, int]]] = defaultdict(list)
    for (f, _), at in zip(again, ran, strict=True):
        for t in ops[f].inputs:
            read[t].append(at)
        for t in ops[f].outputs:
            made[t].append((at, _MADE_AGAIN, f))
    copies = []
    for t, remade in made.items():
        reads = [(at, _READ_AGAIN, -1) for at in read.get(t, ())]
        users = graph.users[t]
        uses = [(at, _USED, i) for at, i in zip(place[list(users)].tolist(), users, strict=True)]
        copies += _lives(graph, t, sorted([*uses, *reads, *remade]), last)
    for t, places in read.items():
        if t not in made:
            last[t] = max(last[t], places[-1])
    return copies


def _lives(
    graph: Graph, t: int, uses: Sequence[tuple[int, int, int]], last: Numbers
) -> list[tuple[int, int, int]]:
    """The lives of what stands for a tensor, whose own last user is put into ``last``. ``uses``
    come by place.
    """
    copies: list[tuple[int, int, int]] = []
    current, writer, own_last = -1, -1, 0
    writing = {*graph.writers[t]}
    for at, what, i in uses:
        if what == _MADE_AGAIN:
            copies.append((t, at, at))
            if writer == i and not graph.survives[t]:
                current = len(copies) - 1
            continue
        if what == _USED and i in writing:
            writer = i
            if t not in graph.ops[i].reads:
                current = -1
        if current < 0:
            own_last = at
        else:
            copies[current] = (t, copies[current][1], at)
    last[t] = own_last
    return copies
