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
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from hosim.analysis import Gap, idle_below
from hosim.analysis.costmodel.transfers import alone_ns
from hosim.cache_plan import AT_START
from hosim.data.columns import NONE, READS, WRITES
from hosim.edits import Recompute, why_once
from hosim.engine.cells import fill, flags, ints, longs, made_cells
from hosim.graph import Graph
from hosim.planner.hyperoffload.kernels import RerunWalk, form_of
from hosim.planner.hyperoffload.tensor_choices import Problem
from hosim.units import LARGEST

Numbers = npt.NDArray[Any]
Drop = tuple[int, int]
"""(tensor, op position): the tensor is let go after that op."""
Rerun = tuple[int, int]
"""(op position, op position): the first op runs again just before the other."""

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
    graph, below = problem.graph, problem.below[:1]
    reruns = graph.derived(Reruns, problem.hardware.device_tier)

    @cache
    def transfer_ns(size: int) -> int | None:
        ways = [alone_ns(problem.hardware, c.name, size) for t in below for c in (t.down, t.up)]
        return sum(ways) if ways else None

    sizes = graph.tensors.column(lambda tensor: tensor.size_bytes)
    found = []
    for gap in problem.gaps:
        t, after, *_ = gap
        size = sizes[t]
        if not size or after == AT_START or graph.survives[t] or not gap.returns:
            continue
        chain, drops, kept_bytes = again = reruns.filling(gap, True)
        simple = chain and not drops and not kept_bytes  # no input is dead
        ways = (again,) if simple else (again, reruns.filling(gap, False))
        fillings = [
            Candidate(
                gap,
                ((t, after), *drops),
                chain,
                sum([problem.durations[f] for f in chain]),
                size - kept_bytes,
                transfer_ns(size),
            )
            for chain, drops, kept_bytes in ways
            if chain and kept_bytes < size
        ]
        if fillings:
            found.append(
                min(fillings, key=lambda filling: (filling.ns_per_byte, len(filling.drops)))
            )
    return tuple(found)


def countable(graph: Graph) -> bool:
    """Return whether 64 bits hold all that :class:`Reruns` adds up: each tensor up to three times
    at once, and a workspace.
    """
    sizes = graph.tensors.column(lambda tensor: tensor.size_bytes)
    return (
        4 * sum(sizes) + max(graph.ops.column(lambda op: op.workspace_bytes), default=0) < LARGEST
    )


class Reruns:
    """What runs again in a graph if tensors are dropped, and what the device holds then; for
    :meth:`Graph.derived`. ``form`` is that of the kernel: the one that runs here.
    """

    def __init__(self, graph: Graph, device_tier: str, form: type[RerunWalk] | None = None) -> None:
        ops, tensors, users = graph.ops, graph.tensors, graph.compact_users
        starts = np.zeros(len(tensors), bool)
        starts[list(set(graph.initial) - idle_below(graph, device_tier))] = True
        survives = np.array(graph.survives, bool)
        of, used, does = _uses(graph)
        given: dict[str, Any] = {
            "ops": len(ops),
            "tensors": len(tensors),
            "uses": len(used),
            "use_from": ints(np.searchsorted(of, np.arange(len(ops) + 1))),
            "use_tensor": ints(used),
            "use_flags": flags(does),
            "user_from": ints(np.array(users.begin)),
            "user": ints(np.array(users.listed)),
            "user_flags": flags(np.array(users.flags)),
            "survives": flags(survives),
            "size": longs(tensors.numbers(lambda tensor: tensor.size_bytes, "q")),
            "workspace": longs(ops.numbers(lambda op: op.workspace_bytes, "q")),
            "pure": flags([not why_once(graph, op) for op in ops]),
            "starts": flags(starts),
            "ends": flags(survives | (starts & (np.array(users.first) == NONE))),
        }
        self._cells = given | made_cells(RerunWalk, given)
        self._walk = (form or form_of(RerunWalk))(self._cells)

    def __call__(self, drops: Iterable[Drop]) -> tuple[tuple[Rerun, ...], Numbers, Numbers]:
        """The ops that run again if ``drops`` are made, in the order in which they do; the bytes
        that the device then holds while each op runs, and which op that is; O(uses).
        """
        ordered = sorted([(after, t) for t, after in drops])
        for k, name in enumerate(("drop_after", "drop_tensor")):
            fill(self._cells[name], [drop[k] for drop in ordered])
        self._walk.walk(len(ordered))
        rerun, before = self._listed(self._walk.reruns, "rerun", "rerun_before")
        held, ran = [np.array(self._cells[name][: self._walk.places]) for name in ("held", "ran")]
        return tuple(zip(rerun, before, strict=True)), held, ran

    def filling(self, gap: Gap, again: bool) -> tuple[tuple[int, ...], tuple[Drop, ...], int]:
        """The ops that make a tensor again at the end of a gap, the drops of dead inputs that they
        make ``again``, too, and the bytes of those that are kept instead; no ops if that cannot be.
        """
        count = self._walk.fill(gap.tensor, gap.before, _CHAIN, again)
        (chain,) = self._listed(count, "chain")
        tensors, ops = self._listed(self._walk.drops, "drop_tensor", "drop_after")
        return tuple(sorted(chain)), tuple(zip(tensors, ops, strict=True)), self._walk.kept

    def _listed(self, count: int, *names: str) -> list[list[int]]:
        return [list(self._cells[name][:count]) for name in names]


def _uses(graph: Graph) -> tuple[Numbers, Numbers, Numbers]:
    """The ops that use tensors, in their order, with each tensor once; and what each does with
    it.
    """
    lists, number = graph.ops.listed(), len(graph.ops.lists)
    listed = lists % number < graph.ops.lists.index("deps")
    of, used = lists[listed] // number, np.asarray(graph.ops.named)[listed]
    does = np.array([READS, WRITES, READS | WRITES], "B")[lists[listed] % number]
    if len(graph.compact_users.flags) < len(used):  # some tensors are in two lists of an op
        _, first, which = np.unique(
            of * np.int64(len(graph.tensors)) + used, return_index=True, return_inverse=True
        )
        together = np.zeros(len(first), "B")
        np.bitwise_or.at(together, which, does)
        order = np.argsort(first)
        of, used, does = of[first[order]], used[first[order]], together[order]
    return of, used, does


def recomputes(graph: Graph, reruns: Iterable[Rerun]) -> tuple[Recompute, ...]:
    """Reruns by name; each gets the first name that is free."""
    ops, times, found = graph.ops, dict[int, int](), []
    for f, before in reruns:
        count = times.get(f, 1) + 1
        while f"{ops[f].name}~{count}" in graph.op_index:
            count += 1
        times[f] = count
        found.append(Recompute(ops[f].name, ops[before].name, f"{ops[f].name}~{count}"))
    return tuple(found)


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


class Checkpoints:
    """Activation checkpointing: what is made and used within one segment of the step before its
    turn is dropped.

    The turn is where most bytes of candidates wait. Segments weigh about the same in these bytes,
    and are cut where the fewest bytes cross. Tensors that cross are the checkpoints. O(tensors +
    ops), and each set of drops O(tensors).
    """

    def __init__(self, problem: Problem, recomputable: Sequence[Candidate]) -> None:
        graph, sizes = problem.graph, [t.size_bytes for t in problem.graph.tensors.each()]
        count = len(graph.ops)
        gaps = [candidate.gap for candidate in recomputable]
        waits = [(sizes[gap.tensor], gap.after + 1, gap.before) for gap in gaps]
        level = _level(count, waits)
        self._turn = turn = max(range(count), key=level.__getitem__, default=0)
        self._made: list[tuple[int, int, int]] = []
        """Tensors, each with what makes it, and its last use up to the turn."""
        for t, users in enumerate(graph.users):
            if (
                users
                and users[0] < turn
                and not graph.survives[t]
                and graph.writers[t]
                and t not in problem.initial
            ):
                self._made.append((t, users[0], users[bisect_right(users, turn) - 1]))
        self._crossing = _level(count, [(sizes[t], f + 1, last + 1) for t, f, last in self._made])
        weight = [0] * (turn + 2)
        for size, after, before in waits:
            if after <= turn < before:
                weight[after] += size
        self._weight = list(accumulate(weight))

    def drops(self, count: int, stay: int = 1) -> frozenset[Drop]:
        """The drops of ``count`` segments, but for those in the last ``stay``."""
        cuts = [0, *self._cuts(count), self._turn + 1]
        end = cuts[max(0, len(cuts) - 1 - stay)]
        return frozenset(
            [
                (t, last)
                for t, first, last in self._made
                if last < end and bisect_left(cuts, first + 1) == bisect_left(cuts, last + 1)
            ]
        )

    def _cuts(self, count: int) -> list[int]:
        """Positions before which a segment begins: near equal shares of the waiting bytes, where
        the fewest bytes cross.
        """
        weight, crossing, turn = self._weight, self._crossing, self._turn
        total = weight[-1]
        cuts: list[int] = []
        for k in range(1, count):
            low = bisect_left(weight, total * (4 * k - 1) // (4 * count))
            high = min(turn, bisect_left(weight, total * (4 * k + 1) // (4 * count)))
            begin = max(low, cuts[-1] + 1 if cuts else 1)
            if begin <= high:
                cuts.append(
                    min(
                        range(begin, high + 1),
                        key=lambda i: (crossing[i], abs(weight[i] * count - total * k)),
                    )
                )
        return cuts


def _level(count: int, held: Iterable[tuple[int, int, int]]) -> list[int]:
    """The bytes at each of ``count`` positions and the one after them, of what is held from one
    position up to another.
    """
    change = [0] * (count + 2)
    for size, begin, end in held:
        change[begin] += size
        change[end] -= size
    return list(accumulate(change))
