"""Recomputation: a tensor dropped after a use and made again before the next, where running its
producers takes less than moving it.

A *drop* is (tensor, op): the tensor is let go after that op, a use of it. :func:`recomputes` turns
any set of drops into recomputed ops (:mod:`hosim.edits`): walking the ops in order, whoever reads a
dropped tensor has it made again right before, and what its producer reads and has been dropped
itself is made again first. What was made again stays until its next drop. So drops of a whole
segment of a network are activation checkpointing (Chen et al., arXiv 1604.06174): the first use in
the backward pass makes the segment's activations again, each once. A producer's input that nobody
dropped is kept until then. A drop that cannot be undone (its producer may not run again, or reads a
tensor that has been written since) is ignored where that is found: the tensor stays.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from hosim.analysis import Gap, initial_set
from hosim.analysis.costmodel.transfers import alone_ns
from hosim.cache_plan import AT_START
from hosim.edits import Recompute, why_once
from hosim.graph import Graph
from hosim.planner.hyperoffload.tensor_choices import Problem

Drop = tuple[int, int]
"""(tensor, op position): the tensor is let go after that op."""

_CHAIN = 64
"""Ops that one candidate runs again at most."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A gap that recomputation can fill.

    ``drops`` are the gap's own and those of dead inputs along the chain, ``chain`` the ops that run
    again. ``recompute_ns`` is their time, ``saved_bytes`` what the device tier is relieved of
    during the gap: the tensor, less inputs kept for it. ``transfer_ns`` is what a store and a
    prefetch of the tensor would take, alone on the fastest tier below; ``None`` if there is none.
    """

    gap: Gap
    drops: tuple[Drop, ...]
    chain: tuple[int, ...]
    recompute_ns: int
    saved_bytes: int
    transfer_ns: int | None

    @property
    def ns_per_byte(self) -> float:
        """Time of recomputation by byte relieved."""
        return self.recompute_ns / self.saved_bytes


def candidates(problem: Problem) -> tuple[Candidate, ...]:
    """Every gap of a tensor made in the step that recomputation can fill.

    Each with the cheaper by byte of two ways for inputs that are dead by then: run their producers
    again too, or keep them. O(gaps x chain).
    """
    graph = problem.graph
    producers = graph.derived(_Producers)
    found = []
    for gap in problem.gaps:
        if (
            gap.returns
            and gap.after != AT_START
            and not graph.survives[gap.tensor]
            and graph.tensors[gap.tensor].size_bytes
        ):
            fillings = [
                filling
                for again in (True, False)
                if (filling := _candidate(problem, producers, gap, again)) is not None
            ]
            if fillings:
                found.append(
                    min(fillings, key=lambda filling: (filling.ns_per_byte, len(filling.drops)))
                )
    return tuple(found)


def _candidate(problem: Problem, producers: _Producers, gap: Gap, again: bool) -> Candidate | None:
    """The candidate that runs producers of dead inputs ``again``, or keeps those inputs; ``None``
    if it cannot be, or saves nothing.
    """
    graph = problem.graph
    chain: list[int] = []
    drops: list[Drop] = [(gap.tensor, gap.after)]
    kept: set[int] = set()
    todo, seen = [gap.tensor], {gap.tensor}
    while todo:
        t = todo.pop()
        f = producers.maker(t, gap.before)
        if f is None:
            if t == gap.tensor:
                return None
            kept.add(t)
            continue
        if t != gap.tensor:
            drops.append((t, producers.last_use(t, gap.before)))
        if f in chain:
            continue
        chain.append(f)
        if len(chain) > _CHAIN:
            return None
        for x in producers.ops[f].inputs:
            if x not in seen and not producers.alive(x, gap.before):
                seen.add(x)
                if again:
                    todo.append(x)
                else:
                    kept.add(x)
    size = graph.tensors[gap.tensor].size_bytes
    saved = size - sum(graph.tensors[x].size_bytes for x in kept)
    if saved <= 0:
        return None
    fastest = problem.below[0] if problem.below else None
    transfer = (
        alone_ns(problem.hardware, fastest.down.name, size)
        + alone_ns(problem.hardware, fastest.up.name, size)
        if fastest
        else None
    )
    return Candidate(
        gap,
        tuple(drops),
        tuple(sorted(chain)),
        sum(problem.durations[f] for f in chain),
        saved,
        transfer,
    )


class _Producers:
    """The ops that write each tensor, and those that use it; positions ascending."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.ops = graph.ops.items
        self.initial = graph.derived(initial_set)
        self.writes = graph.writers
        self._until: dict[int, int] = {}

    def maker(self, t: int, at: int) -> int | None:
        """The op that can make, before op ``at``, the contents that the tensor has there; ``None``
        if none can.
        """
        k = bisect_left(self.writes[t], at)
        if not k:
            return None
        f = self.writes[t][k - 1]
        until = self._until.get(f)
        if until is None:
            until = self._until[f] = self._same_until(f)
        return f if at <= until and not self.graph.survives[t] else None

    def _same_until(self, f: int) -> int:
        """The last op before which an op would do again what it did: the first that writes what it
        reads; -1 if it may not run again.
        """
        if why_once(self.graph, self.ops[f]):
            return -1
        writers = [self.writes[t] for t in self.ops[f].inputs]
        following = [each[k] for each in writers if (k := bisect_left(each, f)) < len(each)]
        return min(following, default=len(self.ops))

    def last_use(self, t: int, at: int) -> int:
        """The last use of a tensor before op ``at``."""
        return self.graph.users[t][bisect_left(self.graph.users[t], at) - 1]

    def alive(self, t: int, at: int) -> bool:
        """Return whether the tensor is still there at op ``at`` if nothing is dropped: it survives,
        or somebody uses it then or later.
        """
        return self.graph.survives[t] or self.graph.users[t][-1] >= at


def recomputes(graph: Graph, drops: Iterable[Drop]) -> tuple[Recompute, ...]:
    """The ops that are recomputed if ``drops`` are made, in the order in which they do; O(uses +
    drops).
    """
    return _RecomputeWalk(graph, drops).run()


class _RecomputeWalk:
    """``absent`` are the tensors dropped and not made again yet."""

    def __init__(self, graph: Graph, drops: Iterable[Drop]) -> None:
        self.graph = graph
        self.producers = graph.derived(_Producers)
        self.ops = self.producers.ops
        self.dropped: dict[int, list[int]] = {}
        for t, after in sorted(set(drops)):
            self.dropped.setdefault(after, []).append(t)
        self.absent: set[int] = set()
        self.found: list[Recompute] = []
        self.times: dict[int, int] = {}

    def run(self) -> tuple[Recompute, ...]:
        ops, users = self.ops, self.graph.users
        to_come = [
            i for i in self.dropped if 0 <= i < len(ops)
        ]  # a tensor is dropped there, or an absent one used
        heapq.heapify(to_come)
        while to_come:
            i = heapq.heappop(to_come)
            if to_come and to_come[0] == i:
                continue
            for t in ops[i].reads:
                if t in self.absent:
                    self._make(t, i)
            self.absent.difference_update(ops[i].outputs)
            for t in self.dropped.get(i, ()):
                self.absent.add(t)
                following = bisect_right(users[t], i)
                if following < len(users[t]):
                    heapq.heappush(to_come, users[t][following])
        return tuple(self.found)

    def _make(self, t: int, at: int) -> None:
        """Make an absent tensor again before op ``at``, and before that what its producer needs and
        is absent.

        Depth first, without recursion: chains are long.
        """
        stack = [t]
        while stack:
            t = stack[-1]
            f = self.producers.maker(t, at) if t in self.absent else None
            missing = [x for x in self.ops[f].inputs if x in self.absent] if f is not None else []
            if missing:
                stack += missing
                continue
            stack.pop()
            if t in self.absent:
                self._again(t, f, at)

    def _again(self, t: int, f: int | None, at: int) -> None:
        self.absent.discard(t)
        if f is None:
            return  # it cannot be made again: so it has been kept
        ops = self.ops
        count = self.times.get(f, 1) + 1
        while f"{ops[f].name}~{count}" in self.graph.op_index:
            count += 1
        self.times[f] = count
        self.found.append(Recompute(ops[f].name, ops[at].name, f"{ops[f].name}~{count}"))
        self.absent.difference_update(
            [x for x in ops[f].outputs if self.producers.maker(x, at) == f]
        )


# -- sets of drops
# -------------------------------------------------------------------------------------------------


def cheapest(
    problem: Problem, recomputable: Sequence[Candidate], target_bytes: int
) -> frozenset[Drop]:
    """Drops that bring what is held down to ``target_bytes``, the cheapest by byte of those open
    where it exceeds that, in one sweep.

    What chains hold while they run is not counted: the edited graph's own curve has it.
    O(candidates log candidates).
    """
    opening: dict[int, list[tuple[float, int]]] = {}
    for k, candidate in enumerate(recomputable):
        opening.setdefault(candidate.gap.after + 1, []).append((candidate.ns_per_byte, k))
    relief = [0] * (len(problem.held_bytes) + 1)
    heap: list[tuple[float, int]] = []
    level = 0
    taken: set[Drop] = set()
    for i, held in enumerate(problem.held_bytes):
        for entry in opening.get(i, ()):
            heapq.heappush(heap, entry)
        level += relief[i]
        while held - level > target_bytes and heap:
            candidate = recomputable[heapq.heappop(heap)[1]]
            if candidate.gap.before <= i:
                continue
            taken.update(candidate.drops)
            level += candidate.saved_bytes
            relief[candidate.gap.before] -= candidate.saved_bytes
    return frozenset(taken)


def segments(
    problem: Problem, recomputable: Sequence[Candidate], count: int, stay: int = 1
) -> frozenset[Drop]:
    """Activation checkpointing in ``count`` segments.

    All that is made and used within one segment before the turn of the step is dropped, except in
    the last ``stay``. The turn is where most bytes of candidates wait. Segments weigh about the
    same in these bytes, and are cut where the fewest bytes cross. Tensors that cross are the
    checkpoints. O(tensors + ops).
    """
    graph = problem.graph
    ops = len(graph.ops)
    waiting = [0] * (ops + 2)
    for candidate in recomputable:
        waiting[candidate.gap.after + 1] += graph.tensors[candidate.gap.tensor].size_bytes
        waiting[candidate.gap.before] -= graph.tensors[candidate.gap.tensor].size_bytes
    level = list(accumulate(waiting))
    turn = max(range(ops), key=level.__getitem__, default=0)
    producers = graph.derived(_Producers)
    made: list[tuple[int, int, int]] = []  # (tensor, made by, last use up to the turn)
    crossing = [0] * (ops + 2)
    for t, users in enumerate(graph.users):
        if (
            not graph.survives[t]
            and producers.writes[t]
            and users[0] < turn
            and t not in producers.initial
        ):
            last = producers.last_use(t, turn + 1)
            made.append((t, users[0], last))
            crossing[users[0] + 1] += graph.tensors[t].size_bytes
            crossing[last + 1] -= graph.tensors[t].size_bytes
    crossing = list(accumulate(crossing))
    cuts = [0, *_cuts(problem, recomputable, turn, crossing, count), turn + 1]
    end = cuts[max(0, len(cuts) - 1 - stay)]
    return frozenset(
        (t, last)
        for t, first, last in made
        if last < end and bisect_left(cuts, first + 1) == bisect_left(cuts, last + 1)
    )


def _cuts(
    problem: Problem,
    recomputable: Sequence[Candidate],
    turn: int,
    crossing: Sequence[int],
    count: int,
) -> list[int]:
    """Positions before which a segment begins: near equal shares of the waiting bytes, where the
    fewest bytes cross.
    """
    weight = [0] * (turn + 2)
    for candidate in recomputable:
        if candidate.gap.after < turn < candidate.gap.before:
            weight[candidate.gap.after + 1] += problem.graph.tensors[
                candidate.gap.tensor
            ].size_bytes
    weight = list(accumulate(weight))
    total = weight[-1]
    cuts: list[int] = []
    for k in range(1, count):
        low = bisect_left(weight, total * (4 * k - 1) // (4 * count))
        high = min(turn, bisect_left(weight, total * (4 * k + 1) // (4 * count)))
        begin = max(low, cuts[-1] + 1 if cuts else 1)
        if begin <= high:
            cuts.append(
                min(
                    (crossing[i], abs(weight[i] * count - total * k), i)
                    for i in range(begin, high + 1)
                )[2]
            )
    return cuts
