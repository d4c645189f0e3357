"""What a plan decides for each tensor that it moves, and the cache ops that follow from it.

Insertion pass of the pipeline: :func:`insert` turns choices into a :class:`Plan` that keeps every rule of docs/contract.md by
construction, for any choices: each version is stored once, before its first absence; a detach follows its store (what is written anew
needs none); a prefetch follows the detach; and at the end of the step each persistent tensor is valid again where the plan's initial
residency has it. On several streams, where the listed order does not say what has ended when, detaches and prefetches move to the nearest
place that is safe (:mod:`hosim.analysis.happens_before`), and an absence that has none is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hosim.analysis.gaps import initial_set
from hosim.analysis.happens_before import HappensBefore
from hosim.cache_plan import AT_START, DETACH, PREFETCH, STORE, CacheOp, Plan
from hosim.planner.hyperoffload.problem import Problem

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
    placed.sort(key=lambda p: p[:4])
    return Plan(problem.graph, policy, tuple(p[4] for p in placed), initial)


def initial_tiers(problem: Problem, t: int, choice: TensorChoice) -> tuple[str, ...]:
    """Where a tensor with this choice has valid copies at time 0, if it has any."""
    if t in problem.starts_below:
        return (problem.starts_below[t],)
    device = problem.hardware.device_tier
    return {HOME: (device,), COPY: (device, choice.below), BELOW: (choice.below,)}[choice.start]


def place(problem: Problem, t: int, choice: TensorChoice) -> list[Placed]:
    """The cache ops of one tensor, each with its place."""
    placed: list[Placed] = []
    _one(problem, t, choice, initial_tiers(problem, t, choice), placed)
    return placed


def _one(problem: Problem, t: int, choice: TensorChoice, initial: tuple[str, ...], placed: list[Placed]) -> None:
    """Append the cache ops of one tensor."""
    graph, device, count = problem.graph, problem.hardware.device_tier, len(problem.graph.ops)
    users = graph.users[t]
    below = problem.starts_below.get(t, choice.below)
    valid_below = below in initial
    starts_there = t in graph.derived(initial_set)
    order = graph.derived(HappensBefore)

    def store(after: int, free: int | None = None) -> None:
        placed.append((after, 0, after if free is None else free, t, CacheOp(STORE, t, device, below, after)))

    def detach(after: int) -> None:
        placed.append((after, 1, after, t, CacheOp(DETACH, t, device, None, after)))

    def prefetch(after: int, use: int) -> None:
        placed.append((after, 2, use, t, CacheOp(PREFETCH, t, below, device, after)))

    if starts_there and device not in initial:
        if users and t in graph.ops[users[0]].reads:
            back = choice.away.get(AT_START)
            prefetch(AT_START if back is None else back, users[0])
    elif AT_START in choice.away and users:
        leave = min(choice.stores.get(AT_START, AT_START), users[0] - 1)
        if not order.ended_by(leave, users[0]):
            leave = AT_START
        if not valid_below and t in graph.ops[users[0]].reads:
            store(leave)
            valid_below = True
        detach(leave)
        back = choice.away[AT_START]
        if back is not None:
            prefetch(order.last_before(leave, max(leave, back)), users[0])
    last_write = problem.last_write.get(t, AT_START)
    wanted_below = below in initial and graph.survives[t]
    since = 0  # the users from the last write on: together they follow all others
    written = AT_START
    for k, u in enumerate(users):
        if t in graph.ops[u].writes:
            valid_below = False
            since, written = k, u
        following = users[k + 1] if k + 1 < len(users) else count
        if u == last_write and wanted_below and not valid_below:
            store(u)
            valid_below = True
        if u not in choice.away:
            continue
        release = u if order.single else order.first_after(users[since : k + 1], u)
        if release is None or release >= following:
            continue  # on several streams no place is surely between the two uses: it stays
        dead = following < count and t not in graph.ops[following].reads  # written anew: nothing to keep
        if dead and not order.ended_by(release, following):
            continue  # nothing keeps that op from writing before the detach
        if not valid_below and not dead:
            early = order.first_after((written,), max(choice.stores.get(u, u), written))
            store(early if early is not None and order.ended_by(early, release) and early < u else u, u)
            valid_below = True
        detach(release)
        back = choice.away[u]
        if back is not None:
            prefetch(back if order.single else order.last_before(release, back), following)
    if wanted_below and device not in initial and users and users[-1] not in choice.away:
        release = users[-1] if order.single else order.first_after(users[since:], users[-1])
        if release is not None:
            detach(release)
