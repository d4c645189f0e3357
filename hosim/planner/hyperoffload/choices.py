"""What a plan decides for each tensor that it moves, and the cache ops that follow from it.

Insertion pass of the pipeline: :func:`insert` turns choices into a :class:`Plan` that keeps every rule of docs/contract.md by
construction, for any choices: it says when each tensor is away, and :mod:`hosim.schedule.insertion` places the cache ops.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import itemgetter

from hosim.analysis.gaps import initial_set
from hosim.analysis.happens_before import HappensBefore
from hosim.cache_plan import AT_START, DETACH, PREFETCH, STORE, CacheOp, Plan
from hosim.planner.hyperoffload.problem import Problem
from hosim.schedule.insertion import Absence, WriteBack, tensor_cache_ops

HOME, COPY, BELOW = "home", "copy", "below"
"""Where a persistent tensor starts: in the device tier; there, with a second valid copy below; or below only."""


@dataclass(frozen=True, slots=True)
class TensorChoice:
    """One tensor's life: the tier ``below`` that it moves to, how it starts, and its absences.

    ``away`` has, by the op that a gap comes after, the op after which the prefetch back is issued
    (:data:`AT_START` for time 0), or None if the tensor never returns; ``stores`` the op after which its store is issued where
    that is before the gap (the tensor is copied while it is still used) or, in the gap before the first use, after time 0.
    """

    below: str
    start: str = HOME
    away: Mapping[int, int | None] = field(default_factory=dict)
    stores: Mapping[int, int] = field(default_factory=dict)

    def without(self, after: int) -> TensorChoice:
        """The choice less one absence."""
        return replace(self, away={a: p for a, p in self.away.items() if a != after})

    def with_return(self, after: int, position: int | None) -> TensorChoice:
        """The choice with one absence set to return after ``position``."""
        return replace(self, away=dict(sorted({**self.away, after: position}.items())))

    def with_store(self, after: int, position: int) -> TensorChoice:
        """The choice with the store before one absence issued after ``position``."""
        return replace(self, stores=dict(sorted({**self.stores, after: position}.items())))


Choices = Mapping[int, TensorChoice]
"""By tensor position; tensors that stay have none."""


def everything(problem: Problem) -> Choices:
    """Every gap used, every return as late as can be: the least memory at every op, at the price of every wait."""
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
"""A cache op with its place: (after, rank among those of one place, the use or gap it serves, tensor, cache op)."""


def insert(problem: Problem, choices: Choices, policy: str) -> Plan:
    """The plan that follows from choices. Cache ops of one position: stores, then detaches, then prefetches by the use they serve."""
    placed: list[Placed] = []
    initial: dict[int, tuple[str, ...]] = {}
    for t, choice in sorted(choices.items()):
        if t not in problem.starts_below and choice.start != HOME:
            initial[t] = initial_tiers(problem, t, choice)
        placed += place(problem, t, choice)
    placed.sort(key=itemgetter(0, 1, 2, 3))
    return Plan(problem.graph, policy, tuple(p[4] for p in placed), initial)


def initial_tiers(problem: Problem, t: int, choice: TensorChoice) -> tuple[str, ...]:
    """Where a tensor with this choice has valid copies at time 0, if it has any."""
    if t not in problem.graph.derived(initial_set):
        return ()
    if t in problem.starts_below:
        return (problem.starts_below[t],)
    device = problem.hardware.device_tier
    return {HOME: (device,), COPY: (device, choice.below), BELOW: (choice.below,)}[choice.start]


def place(problem: Problem, t: int, choice: TensorChoice) -> list[Placed]:
    """The cache ops of one tensor, each with its place."""
    start = initial_tiers(problem, t, choice)
    steps = _steps(problem, t, choice, start)
    found = tensor_cache_ops(problem.graph, problem.hardware.device_tier, _direct, t, start, steps, awaited=True)
    return [(op.after, _RANK[op.op], before if op.op == PREFETCH else max(after, op.after), t, op) for after, before, op in found]


_RANK = {STORE: 0, DETACH: 1, PREFETCH: 2}


def _direct(sources: Iterable[str], destination: str) -> Sequence[str]:
    """The one source and the destination: a tensor moves in a single cache op."""
    return *sources, destination


def _steps(problem: Problem, t: int, choice: TensorChoice, start: Sequence[str]) -> Iterator[Absence | WriteBack]:
    """A tensor's absences, and right after its last write the copy that is to be valid again at the end of the step."""
    graph, users = problem.graph, problem.graph.users[t]
    below = problem.starts_below.get(t, choice.below)
    starts_below = below in start and problem.hardware.device_tier not in start
    kept_below = below in start and graph.survives[t]

    def absence(after: int, before: int, store: int, release: int) -> Absence:
        back = choice.away.get(after)
        return Absence(t, after, before, store, release, after if back is None else back, below, release)

    if users and (starts_below or AT_START in choice.away):
        leave = min(choice.stores.get(AT_START, AT_START), users[0] - 1)
        if not graph.derived(HappensBefore).ended_by(leave, users[0]):
            leave = AT_START
        yield absence(AT_START, users[0], leave, leave)
    for u, following in pairwise((*users, len(graph.ops))):
        if kept_below and u in graph.writers[t][-1:]:
            yield WriteBack(u + 1, below)
        if u in choice.away or (kept_below and starts_below and u == users[-1]):
            yield absence(u, following, choice.stores.get(u, u), u)
