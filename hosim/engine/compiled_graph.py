"""A graph compiled for replay: what its ops take and free, and what they wait for, whatever the plan.

No tensor is tracked here (:mod:`hosim.engine.compiled_plan`): all live and die with their ops, so that an op's allocation and release are
numbers known beforehand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat
from typing import TypeVar

from hosim.analysis import HappensBefore
from hosim.engine.ledger import composition_of
from hosim.graph import Graph, Op
from hosim.graph_users import CompactUsers
from hosim.result import WORKSPACE

T = TypeVar("T")

Waits = tuple[tuple[int, int], ...]
"""Producers on other streams, as (stream, how many of its ops must have ended)."""

Launch = tuple[int, int, Waits]
"""What the start of an op allocates (bytes, and as a composition) and waits for."""

Finish = tuple[int, int, tuple[int, ...]]
"""What the end of an op releases (bytes, and as a composition), and which tensors it perhaps releases, being used on several streams."""

Step = tuple[int, int]
"""What the end of an op releases and the start of the next one on its stream allocates, as one sum (bytes, and as a composition)."""

STARTS, DIES = 1, 2
"""What there is to know of a tensor: that it is valid at time 0; that the end of its last user listed surely releases it."""


@dataclass(frozen=True, slots=True)
class CompiledGraph:
    """What replaying a graph needs whatever the plan, with no tensor tracked. Lists are indexed by op or tensor position.

    ``users_left`` counts the users of tensors with users on several streams, ``fates`` are :data:`STARTS` and :data:`DIES`, and ``homes``
    those that hold a valid copy at time 0 by default, by their home (``None``: the device tier). ``steps`` are from each op to the next
    one on its stream, ``None`` where either does more than release and allocate; ``previous`` is the op before each on its stream, -1 for
    the first, so that there is one more step, which is always ``None``.
    """

    sizes: tuple[int, ...]
    compositions: tuple[int, ...]
    stream_of: Sequence[int]
    queues: Sequence[Sequence[int]]
    launch: list[Launch]
    finish: list[Finish]
    steps: list[Step | None]
    previous: Sequence[int]
    users_left: dict[int, int]
    fates: bytes
    homes: dict[str | None, list[int]]


def compile_graph(graph: Graph) -> CompiledGraph:
    """The part of a program that every plan of the graph shares; O(ops + uses). Call it through :meth:`Graph.derived`."""
    users, tensors = graph.compact_users, graph.tensors
    order = graph.derived(HappensBefore)
    sizes = tuple([t.size_bytes for t in graph.tensors])
    known: dict[tuple[str, int], int] = {}  # equal compositions are one object: many tensors are alike
    compositions = tuple([known.setdefault((t.kind, t.size_bytes), composition_of(t.kind, t.size_bytes)) for t in graph.tensors])
    fates = bytearray(len(users))
    homes: dict[str | None, list[int]] = {}
    for t in graph.initial:
        fates[t] = STARTS
        homes.setdefault(graph.tensors[t].home, []).append(t)
    taken = [op.workspace_bytes for op in graph.ops]  # by the start of each op
    taken_kinds = [composition_of(WORKSPACE, size) if size else 0 for size in taken]
    freed, freed_kinds = taken.copy(), taken_kinds.copy()  # by its end
    users_left: dict[int, int] = {}
    shared: dict[int, tuple[int, ...]] = {}
    for t, (first, last) in enumerate(zip(users.first, users.last, strict=True)):
        if first < 0:
            continue
        if not fates[t]:
            if taken[first]:
                taken[first] += sizes[t]
                taken_kinds[first] += compositions[t]
            else:  # no sum: equal ones stay one object
                taken[first], taken_kinds[first] = sizes[t], compositions[t]
        if tensors[t].survives:
            continue
        if order.single or all([order.ended_by(u, last) for u in users[t]]):
            fates[t] |= DIES  # whatever the timing, the last one listed is the last to end
            if freed[last]:
                freed[last] += sizes[t]
                freed_kinds[last] += compositions[t]
            else:
                freed[last], freed_kinds[last] = sizes[t], compositions[t]
        else:
            users_left[t] = len(users[t])
            for u in users[t]:
                shared[u] = (*shared.get(u, ()), t)
    launch = _by_op(taken, taken_kinds, _waits(graph, order))
    finish = _by_op(freed, freed_kinds, shared)
    queues = tuple(map(tuple, order.queues)) if not order.single else (range(len(graph.ops)),) * len(order.queues)
    return CompiledGraph(
        sizes,
        compositions,
        bytes(order.stream_of) if len(order.queues) < 256 else tuple(order.stream_of),
        queues,
        launch,
        finish,
        *_steps(queues, launch, finish),
        users_left,
        bytes(fates),
        homes,
    )


def _by_op(sizes: list[int], compositions: list[int], others: Mapping[int, tuple[T, ...]]) -> list[tuple[int, int, tuple[T, ...]]]:
    """A triple for each op. Equal ones are one object: what few objects there are stay in the processor's cache."""
    known: dict[tuple[int, int, tuple[T, ...]], tuple[int, int, tuple[T, ...]]] = {}
    other = map(others.get, range(len(sizes)), repeat(())) if others else repeat(())
    return [known.setdefault(triple, triple) for triple in zip(sizes, compositions, other, strict=False)]


def allocated(op: Op, i: int, users: CompactUsers, fates: Sequence[int]) -> list[int]:
    """The tensors that the start of op ``i`` allocates, ascending."""
    return sorted([t for t in op.outputs if users.first[t] == i and not fates[t] & STARTS])


def dying(op: Op, i: int, users: CompactUsers, fates: Sequence[int]) -> list[int]:
    """The tensors that the end of op ``i`` surely releases, ascending."""
    return sorted([t for t in op.uses if fates[t] & DIES and users.last[t] == i])


def _steps(queues: Sequence[Sequence[int]], launch: list[Launch], finish: list[Finish]) -> tuple[list[Step | None], Sequence[int]]:
    """The steps of a graph, and the op before each on its stream."""
    steps: list[Step | None] = [None] * (len(launch) + 1)
    previous: Sequence[int] = range(-1, len(launch) - 1)
    if len(queues) > 1:
        previous = [-1] * len(launch)
        for queue in queues:
            for before, i in pairwise(queue):
                previous[i] = before
    known: dict[tuple[Launch, Finish], Step] = {}  # equal ones are one object, as launches and finishes are
    for i, before in enumerate(previous):
        start = launch[i]
        if before >= 0 and not start[2] and not finish[before][2]:
            pair = start, finish[before]
            step = known.get(pair)
            if step is None:
                step = known[pair] = start[0] - pair[1][0], start[1] - pair[1][1]
            steps[before] = step
    return steps, previous


def _waits(graph: Graph, order: HappensBefore) -> dict[int, Waits]:
    """What each op waits for on other streams: producers that need not have ended when the op before on the same stream has."""
    waits: dict[int, Waits] = {}
    for i, producers in enumerate(graph.producers if not order.single else ()):
        known = order.known_before(i)
        missing: dict[int, int] = {}
        for p in producers:
            s, count = order.stream_of[p], order.place[p] + 1
            if known[s] < count:
                missing[s] = max(missing.get(s, 0), count)
        if missing:
            waits[i] = tuple(missing.items())
    return waits


def total(tensors: Iterable[int], sizes: tuple[int, ...], compositions: tuple[int, ...], workspace: int = 0) -> tuple[int, int]:
    """Bytes of ``tensors`` and a workspace, and the same as a composition."""
    size, composition = workspace, composition_of(WORKSPACE, workspace) if workspace else 0
    for t in tensors:
        size += sizes[t]
        composition += compositions[t]
    return size, composition
