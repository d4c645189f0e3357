"""Every plan of a tiny graph on a machine with one tier below, listed without any cleverness: the
oracle of the exact solver.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, product

from hosim.analysis.verifying import verify
from hosim.cache_plan import AT_START, DETACH, PREFETCH, STORE, CacheOp, Plan
from hosim.engine import replay
from hosim.errors import PlanError
from hosim.graph import Graph
from hosim.hardware import Hardware

Course = tuple[tuple[str, ...] | None, tuple[CacheOp, ...]]
"""One tensor's initial tiers (None: its home) and cache ops, in order."""


def best_makespan(
    graph: Graph, hardware: Hardware, budget: int, movable: list[int]
) -> tuple[int | None, int]:
    """The least makespan of all plans that move the tensors ``movable`` alone, and how many were
    replayed.
    """
    best, count = None, 0
    for plan in every_plan(graph, movable):
        if verify(plan, hardware, budget):
            continue
        count += 1
        try:
            makespan = replay(plan, hardware, budget).makespan_ns
        except PlanError:
            continue
        if makespan is not None and (best is None or makespan < best):
            best = makespan
    return best, count


def every_plan(graph: Graph, movable: list[int]) -> Iterator[Plan]:
    """All combinations of the tensors' courses, in every order of what is issued at one place."""
    for chosen in product(*(list(courses(graph, t)) for t in movable)):
        initial = {
            t: where for t, (where, _) in zip(movable, chosen, strict=True) if where is not None
        }
        for order in _orders([cache_ops for _, cache_ops in chosen]):
            yield Plan(graph, "one of all", order, initial)


def courses(graph: Graph, t: int) -> Iterator[Course]:
    """Every course of one tensor: where it starts, which gaps it spends below, and after which op
    each of its cache ops is issued.
    """
    tensor, users, count = graph.tensors[t], graph.users[t], len(graph.ops)
    starts: list[tuple[str, ...] | None] = [None]
    if tensor.persistent and tensor.home is None:
        starts = [None, ("ddr",), ("hbm", "ddr")]
    for where in starts:
        tiers = where or ((tensor.home or "hbm",) if t in graph.initial else ())
        yield from (
            (where, ops)
            for ops in _walk(
                graph, t, frozenset(tiers), frozenset(tiers), AT_START, [*users, count], ()
            )
        )


def _walk(
    graph: Graph,
    t: int,
    starts: frozenset[str],
    held: frozenset[str],
    at: int,
    places: list[int],
    done: tuple[CacheOp, ...],
) -> Iterator[tuple[CacheOp, ...]]:
    """From the use at ``at`` on, with valid copies in ``held``: what can happen until each next
    use.
    """
    tensor, count, use = graph.tensors[t], len(graph.ops), places[0]
    if use < count and not held:
        yield from _use(graph, t, starts, held, places, done)
        return
    for moves in _moves(t, held, at, use):
        after = held
        for move in moves:
            after = after - {move.source} if move.op == DETACH else after | {str(move.destination)}
        if use < count and t in graph.ops[use].reads and _tier(graph, use) not in after:
            continue
        if use == count:
            needed = starts if tensor.persistent else frozenset[str]()
            if needed <= after and (graph.survives[t] or not moves):
                yield (*done, *moves)
        else:
            yield from _use(graph, t, starts, after, places, (*done, *moves))


def _use(
    graph: Graph,
    t: int,
    starts: frozenset[str],
    held: frozenset[str],
    places: list[int],
    done: tuple[CacheOp, ...],
) -> Iterator[tuple[CacheOp, ...]]:
    use = places[0]
    after = frozenset({_tier(graph, use)}) if t in graph.ops[use].writes else held
    yield from _walk(graph, t, starts, after, use, places[1:], done)


def _tier(graph: Graph, use: int) -> str:
    """Where an op reads and writes."""
    return graph.ops[use].processor or "hbm"


def _moves(t: int, held: frozenset[str], at: int, use: int) -> Iterator[tuple[CacheOp, ...]]:
    """Nothing, a store alone, or out and perhaps back, at every place between two uses."""
    places = range(at, use)
    store, detach, prefetch = (
        (lambda a: CacheOp(STORE, t, "hbm", "ddr", a)),
        (lambda a: CacheOp(DETACH, t, "hbm", None, a)),
        (lambda a: CacheOp(PREFETCH, t, "ddr", "hbm", a)),
    )
    yield ()
    if held == {"ddr"}:
        yield from ((prefetch(p),) for p in places)
        return
    copied = "ddr" in held
    for s in [None] if copied else places:
        first = () if s is None else (store(s),)
        if s is not None:
            yield first
        for d in range(at if s is None else s, use):
            yield (*first, detach(d))
            for p in range(d, use):
                yield (*first, detach(d), prefetch(p))


def _orders(sequences: list[tuple[CacheOp, ...]]) -> Iterator[tuple[CacheOp, ...]]:
    """Every order of issue: places ascending, and at each place every merge of what the tensors
    issue there.
    """
    by_place: dict[int, list[list[CacheOp]]] = {}
    for sequence in sequences:
        for after, ops in groupby(sequence, key=lambda c: c.after):
            by_place.setdefault(after, []).append(list(ops))
    for merged in product(*(list(_merges(by_place[after])) for after in sorted(by_place))):
        yield tuple(c for part in merged for c in part)


def _merges(parts: list[list[CacheOp]]) -> Iterator[tuple[CacheOp, ...]]:
    parts = [part for part in parts if part]
    if not parts:
        yield ()
    for k, part in enumerate(parts):
        for rest in _merges([*parts[:k], part[1:], *parts[k + 1 :]]):
            yield (part[0], *rest)
