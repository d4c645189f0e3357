"""A plan's decisions on each tensor that it moves, and the cache ops that follow from them.

Insertion pass of the pipeline: :func:`insert` turns choices into a :class:`Plan` that keeps every
rule of docs/contract.md by construction, for any choices: it says when each tensor is away, and
:mod:`hosim.planner.schedule.insertion` places the cache ops.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple, TypeVar

from hosim.cache_plan import AT_START, DETACH, PREFETCH, STORE, CacheOp, Plan, plain_cache_op
from hosim.planner.hyperoffload.tensor_choices.problem import Problem
from hosim.planner.schedule import Absence, WriteBack, tensor_moves

T = TypeVar("T")

HOME, COPY, BELOW = "home", "copy", "below"
"""Where a persistent tensor starts: in the device tier; there, with a second valid copy below; or
below only.
"""


class TensorChoice(NamedTuple):
    """One tensor's life: the tier ``below`` that it moves to, how it starts, and its absences.

    ``away`` has, by the op that a gap comes after, the op after which the prefetch back is issued
    (:data:`AT_START` for time 0), or None if the tensor never returns; ``stores`` the op after
    which its store is issued where that is before the gap (the tensor is copied while it is still
    used) or, in the gap before the first use, after time 0; by the number of all ops, the op after
    which what the step has written is stored where it is to be at the end, if not right after the
    last write. ``leaves`` has the op after which it leaves the device tier, where that is not as
    soon as can be: on several streams an op that is known to be over by the time of more of what
    follows. ``tiers`` has, by the same ops, the tier of an absence where that is not ``below``.

    What is issued after the same op queues by the ops that are waiting for it. ``turns`` and
    ``store_turns`` put a return and a store elsewhere in that queue: as if twice that number were
    the op's, so that odd numbers lie between two ops.
    """

    below: str
    start: str = HOME
    away: Mapping[int, int | None] = {}
    stores: Mapping[int, int] = {}
    tiers: Mapping[int, str] = {}
    turns: Mapping[int, int] = {}
    store_turns: Mapping[int, int] = {}
    leaves: Mapping[int, int] = {}

    def tier(self, after: int) -> str:
        """The tier below of one absence."""
        return self.tiers.get(after, self.below)

    def without(self, after: int) -> TensorChoice:
        """The choice less one absence."""
        return self._replace(away={a: p for a, p in self.away.items() if a != after})

    def with_return(self, after: int, position: int | None) -> TensorChoice:
        """The choice with one absence set to return after ``position``."""
        return self._replace(away=_set(self.away, after, position))

    def with_store(self, after: int, position: int) -> TensorChoice:
        """The choice with the store before one absence issued after ``position``."""
        return self._replace(stores=_set(self.stores, after, position))

    def with_tier(self, after: int, tier: str) -> TensorChoice:
        """The choice with one absence in a tier."""
        others = {a: other for a, other in self.tiers.items() if a != after}
        return self._replace(tiers=others if tier == self.below else _set(others, after, tier))

    def below_in(self, tier: str) -> TensorChoice:
        """The choice with all absences in a tier."""
        return self._replace(below=tier, tiers={})

    def with_turn(self, after: int, turn: int) -> TensorChoice:
        """The choice with the return of one absence elsewhere in its queue."""
        return self._replace(turns=_set(self.turns, after, turn))

    def with_leave(self, after: int, position: int) -> TensorChoice:
        """The choice with the tensor leaving for one absence after ``position``."""
        others = {a: other for a, other in self.leaves.items() if a != after}
        return self._replace(leaves=others if position == after else _set(others, after, position))


def _set(given: Mapping[int, T], key: int, value: T) -> Mapping[int, T]:
    """The mapping with one more value, keys ascending."""
    found = {**given, key: value}
    return found if key in given or len(found) == 1 else dict(sorted(found.items()))


Choices = Mapping[int, TensorChoice]
"""By tensor position; tensors that stay have none."""


def everything(problem: Problem) -> Choices:
    """Every gap used, every return as late as can be: the least memory at every op, at the price of
    every wait.
    """
    choices: dict[int, TensorChoice] = {}
    count = len(problem.graph.ops)
    for t, tier in problem.starts_below.items():
        first = min(problem.graph.users[t], default=0)
        choices[t] = TensorChoice(tier, HOME, {AT_START: first - 1})
    for gap in problem.gaps:
        if not problem.below:
            break
        t = gap.tensor
        begins = gap.after == AT_START and problem.graph.tensors[t].persistent
        choice = choices.get(t) or TensorChoice(problem.below[0].name, BELOW if begins else HOME)
        if choice.start == BELOW and gap.before == count and gap.after != AT_START:
            continue  # what starts below is there again at the end
        choices[t] = choice.with_return(gap.after, gap.before - 1 if gap.returns else None)
    return choices


Placed = tuple[int, int, int, int, CacheOp]
"""A cache op with its place: (after, rank among those of one place, twice the use or gap it serves
or its turn, tensor, cache op).
"""


def insert(problem: Problem, choices: Choices, policy: str) -> Plan:
    """The plan that follows from choices. Cache ops of one position: stores, then detaches, then
    prefetches by the use they serve.
    """
    placed: list[Placed] = []
    initial: dict[int, tuple[str, ...]] = {}
    for t, choice in sorted(choices.items()):
        if t not in problem.starts_below and choice.start != HOME:
            initial[t] = initial_tiers(problem, t, choice)
        placed += place(problem, t, choice)
    placed.sort(key=itemgetter(0, 1, 2, 3))
    return Plan(problem.graph, policy, tuple(p[4] for p in placed), initial)


def initial_tiers(problem: Problem, t: int, choice: TensorChoice) -> tuple[str, ...]:
    """Return the tiers in which a tensor with this choice has valid copies at time 0, if it has
    any.
    """
    if t not in problem.initial:
        return ()
    if t in problem.starts_below:
        return (problem.starts_below[t],)
    device = problem.hardware.device_tier
    if choice.start == HOME:
        return (device,)
    several = choice.tiers and not problem.graph.writers[t]
    copies = (
        tuple(dict.fromkeys((choice.below, *choice.tiers.values()))) if several else (choice.below,)
    )
    return (device, *copies) if choice.start == COPY else copies


def place(problem: Problem, t: int, choice: TensorChoice) -> list[Placed]:
    """The cache ops of one tensor, each with its place; those of its last choice are kept."""
    known = problem.placed.get(t)
    if known is None or (known[0] is not choice and known[0] != choice):
        known = problem.placed[t] = (
            choice,
            [
                (after, RANK[op], turn, t, plain_cache_op(op, t, source, destination, after))
                for op, source, destination, after, turn in moves_of(
                    problem, t, choice, initial_tiers(problem, t, choice)
                )
            ],
        )
    return known[1]


def moves_of(
    problem: Problem, t: int, choice: TensorChoice, start: tuple[str, ...]
) -> list[tuple[str, str, str | None, int, int]]:
    """The moves of one tensor that is in the tiers ``start`` at time 0: prefetch, store or detach,
    from where, where to, after which op, and twice the use or gap that it serves or its turn.
    """
    placed = []
    for after, before, op, (source,), destination, at in tensor_moves(
        problem.graph,
        problem.hardware.device_tier,
        t,
        start,
        _steps(problem, t, choice, start),
        awaited=True,
    ):
        if op == PREFETCH:
            turn = choice.turns.get(after, 2 * before)
        else:
            turn = 2 * max(after, at)
            if op == STORE and choice.store_turns:
                ends = after == AT_START and before == len(problem.graph.ops)
                turn = choice.store_turns.get(before if ends else after, turn)
        placed.append((op, source, destination, at, turn))
    return placed


RANK = {STORE: 0, DETACH: 1, PREFETCH: 2}
"""The order of cache ops of one place."""


def _steps(
    problem: Problem, t: int, choice: TensorChoice, start: Sequence[str]
) -> Iterator[Absence | WriteBack]:
    """A tensor's absences, and after its last write the copy that is to be valid again at the end
    of the step.
    """
    graph, users, end = problem.graph, problem.graph.users[t], len(problem.graph.ops)
    below, away, at = problem.starts_below.get(t, choice.below), choice.away, choice.stores
    starts_below = below in start and problem.hardware.device_tier not in start
    kept_below = below in start and graph.survives[t]
    written = max(graph.writers[t], default=end)

    def absence(after: int, before: int, store: int, release: int) -> Absence:
        back = away.get(after)
        tier = (
            below
            if t in problem.starts_below or (kept_below and after >= written)
            else choice.tier(after)
        )
        return Absence._make(
            (t, after, before, store, release, after if back is None else back, tier, release, tier)
        )

    if users and (starts_below or AT_START in away):
        leave = min(at.get(AT_START, AT_START), users[0] - 1)
        if leave != AT_START and not problem.order.ended_by(leave, users[0]):
            leave = AT_START
        yield absence(AT_START, users[0], leave, choice.leaves.get(AT_START, leave))
    saved = max(written, at.get(end, written))
    for u, following in pairwise((*users, end)):
        leaves = u in away or (kept_below and starts_below and u == users[-1])
        if not leaves and (not kept_below or u < written):
            continue
        store = at.get(u, u)
        release = choice.leaves.get(u, max(u, store))
        if leaves and saved > release >= written:
            if saved < following and u not in choice.leaves:
                release = saved
            else:  # it leaves before
                saved = release
        if kept_below and u >= written and u <= saved < following:
            yield WriteBack(u + 1, below, saved)
        if leaves:
            yield absence(u, following, store, release)
