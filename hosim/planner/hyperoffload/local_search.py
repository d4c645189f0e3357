"""Local search on small plans: it changes one decision at a time, by simulated annealing and then by descent to a local optimum.

A neighbour of a plan differs in a few decisions: a prefetch issued elsewhere in its gap; a store issued earlier or later; an absence
dropped, or a gap used that was not; another start, or another tier below. It needs a fast judge;
:mod:`hosim.planner.hyperoffload.pipeline` limits the number of calls.

Annealing (Kirkpatrick, Gelatt and Vecchi 1983) takes a worse neighbour with a probability that falls with what it loses and with
time, since what helps is often two or three changes that each alone do not. It starts from what the sweeps found, so it ends no worse.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace

from hosim.analysis.gaps import Gap, initial_set
from hosim.cache_plan import AT_START
from hosim.planner.hyperoffload.choices import BELOW, COPY, HOME, Choices, TensorChoice
from hosim.planner.hyperoffload.problem import Problem, gaps_by_tensor

PlanCost = tuple[int, int, int]
"""Less is better: ops that never start (0: feasible), makespan in nanoseconds, bytes moved."""

Judge = Callable[[Choices], PlanCost]
"""What choices cost."""

_HEATS = (0.6, 0.6, 1.0, 0.3, 1.0, 0.6, 0.3, 0.3)
"""Temperature at the start of each round, in mean op durations.

A round begins from the best there is; what one heat misses another finds.
"""
_NEVER = 1 << 62


def improve(problem: Problem, judge: Judge, choices: Choices, floor_ns: int, tries: int, seed: int) -> Choices:
    """The best choices found from ``choices`` on, in about ``tries`` calls of ``judge``; none can beat ``floor_ns``."""
    search = _LocalSearch(problem, judge, choices, floor_ns, tries, seed)
    for k, heat in enumerate(_HEATS, 1):
        if not search.gaps or search.done:
            break
        search.anneal(heat, tries * k // len(_HEATS))
        search.descend()
    search.tidy()
    return search.best


class _LocalSearch:
    """The best choices so far and their cost; ``left`` counts down."""

    def __init__(self, problem: Problem, judge: Judge, choices: Choices, floor_ns: int, tries: int, seed: int) -> None:
        self.problem = problem
        self.judge = judge
        self.floor_ns = floor_ns
        self.spent, self.tries = 0, tries
        self.rng = random.Random(seed)
        self.gaps = gaps_by_tensor(problem)
        self.tensors = sorted(self.gaps)
        self.mean_ns = sum(problem.durations) / max(1, len(problem.durations))
        self.best = choices
        self.cost = judge(choices)

    @property
    def done(self) -> bool:
        """Whether nothing better can be, or all is spent."""
        return self.spent >= self.tries or (not self.cost[0] and self.cost[1] <= self.floor_ns)

    def anneal(self, hot: float, until: int) -> None:
        """From the best on, cooling down from ``hot`` mean op durations until ``until`` calls are spent."""
        rng = self.rng
        current, cost = self.best, self.cost
        begin = self.spent
        while self.spent < until and not self.done:
            what = rng.random()
            changed = self.exchange(current) if what < 0.1 else self.neighbour(current)
            if what > 0.7:
                changed = self.neighbour(changed)
            self.spent += 1
            found = self.judge(changed)
            heat = hot * self.mean_ns * (1 - (self.spent - begin) / (until - begin)) ** 2
            loss = found[1] - cost[1] if found[0] == cost[0] else _NEVER * (found[0] - cost[0])
            if loss <= 0 or (heat > 0 and loss < 30 * heat and rng.random() < math.exp(-loss / heat)):
                current, cost = changed, found
                if cost < self.cost:
                    self.best, self.cost = current, cost

    def descend(self) -> None:
        """First improvement over all neighbours, until none is better."""
        improved = True
        while improved and not self.done:
            improved = False
            neighbours = list(neighbours_of(self.problem, self.best, self.gaps))
            self.rng.shuffle(neighbours)
            for changed in neighbours:
                self.spent += 1
                found = self.judge(changed)
                if found < self.cost:
                    self.best, self.cost, improved = changed, found, True
                if self.done or improved:
                    break

    def tidy(self) -> None:
        """Let what moves for nothing stay: drop every absence whose loss makes the plan no longer."""
        for t, choice in sorted(self.best.items()):
            forced = t in self.problem.starts_below
            for after in choice.away:
                held = self.best.get(t)
                if held is None or (forced and after == AT_START):
                    continue
                changed = _changed(self.best, t, replace(held.without(after), start=HOME if after == AT_START else held.start))
                found = self.judge(changed)
                if found < self.cost:
                    self.best, self.cost = changed, found

    def exchange(self, choices: Choices) -> Choices:
        """A random tensor that moves stays, and another one does what it did, as far as its gaps allow."""
        rng = self.rng
        moving = [t for t in choices if t not in self.problem.starts_below]
        others = [t for t in self.tensors if t not in choices]
        if not moving or not others:
            return choices
        t, u = rng.choice(moving), rng.choice(others)
        gap = rng.choice(self.gaps[u])
        return self.used({v: c for v, c in choices.items() if v != t}, gap, choices[t].below)

    def used(self, choices: Choices, gap: Gap, below: str) -> Choices:
        """With one more gap used; a tensor that can start below does so for its first gap."""
        begins = gap.after == AT_START and self.problem.graph.tensors[gap.tensor].persistent
        back = self.rng.randrange(gap.after, gap.before) if gap.returns and gap.after < gap.before else None
        return {**choices, gap.tensor: TensorChoice(below, BELOW if begins else HOME, {gap.after: back})}

    def neighbour(self, choices: Choices) -> Choices:
        """A random one: a return moved, a store moved, or anything else, at about equal odds."""
        rng = self.rng
        t = rng.choice(self.tensors)
        gaps = self.gaps[t]
        choice = choices.get(t)
        what = rng.random()
        if choice is not None and choice.away and what < 0.6:
            gap = rng.choice([gap for gap in gaps if gap.after in choice.away] or gaps)
            back = choice.away.get(gap.after)
            if back is not None and what < 0.4:
                near = back + rng.choice((-3, -2, -1, 1, 2, 3))
                back = near if rng.random() < 0.5 else rng.randrange(gap.after, gap.before)
                return {**choices, t: choice.with_return(gap.after, max(gap.after, min(gap.before - 1, back)))}
            if choice.start != BELOW or gap.after != AT_START:
                return {**choices, t: choice.with_store(gap.after, rng.randint(gap.written, _last_store(gap)))}
        changes = list(_changes(self.problem, t, choice, gaps))
        return _changed(choices, t, rng.choice(changes)) if changes else choices


def neighbours_of(problem: Problem, choices: Choices, gaps: dict[int, list[Gap]]) -> Iterator[Choices]:
    """Every neighbour of ``choices`` that differs in one decision."""
    for t, open_gaps in gaps.items():
        choice = choices.get(t)
        for changed in _changes(problem, t, choice, open_gaps):
            yield _changed(choices, t, changed)
        if choice is None:
            continue
        for gap in open_gaps:
            back = choice.away.get(gap.after)
            if back is not None:
                for position in _shifts(gap, back):
                    yield {**choices, t: choice.with_return(gap.after, position)}
            if gap.after in choice.away and (choice.start != BELOW or gap.after != AT_START):
                for position in _stores(gap, choice.stores.get(gap.after, gap.after)):
                    yield {**choices, t: choice.with_store(gap.after, position)}


def _changed(choices: Choices, t: int, changed: TensorChoice | None) -> Choices:
    if changed is None or not (changed.away or changed.start == BELOW):
        return {u: c for u, c in choices.items() if u != t}
    return {**choices, t: changed}


def _changes(problem: Problem, t: int, choice: TensorChoice | None, gaps: list[Gap]) -> Iterator[TensorChoice | None]:
    """Other absences, starts and tiers of one tensor; ``None``: it stays."""
    forced = t in problem.starts_below
    tiers = [problem.starts_below[t]] if forced else [b.name for b in problem.below]
    if not tiers:
        return
    base = choice or TensorChoice(tiers[0])
    for gap in gaps:
        if gap.after in base.away:
            if not (forced and gap.after == AT_START):
                yield base.without(gap.after)
        elif gap.after == AT_START and not forced:
            yield from _from_the_start(problem, base, gap)
        elif not (base.start == BELOW and gap.before == len(problem.graph.ops)):
            for again in _positions(gap):
                yield base.with_return(gap.after, again)
    if not forced and choice is not None and t in problem.graph.derived(initial_set) and problem.graph.tensors[t].persistent:
        for start in (HOME, COPY):
            if start != base.start:
                yield replace(base, start=start)
    if base.start == BELOW:
        yield None
    if choice is not None:
        for tier in tiers:
            if tier != base.below:
                yield replace(base, below=tier)


def _from_the_start(problem: Problem, base: TensorChoice, gap: Gap) -> Iterator[TensorChoice]:
    """Ways to be away before the first use: to start below, or to leave at once (where starting below means a store at the end)."""
    t = gap.tensor
    last = max(problem.graph.users[t], default=AT_START)
    persistent = problem.graph.tensors[t].persistent
    for again in _positions(gap):
        if persistent:
            yield replace(base.without(last), start=BELOW).with_return(AT_START, again)
        if not persistent or problem.graph.writers[t]:
            yield replace(base, start=HOME).with_return(AT_START, again)


def _positions(gap: Gap) -> list[int | None]:
    """Where a new absence might return: late, in the middle, at once."""
    if not gap.returns:
        return [None]
    last = gap.before - 1
    return list(dict.fromkeys([last, max(gap.after, last - 1), max(gap.after, last - 2), (gap.after + last) // 2, gap.after]))


def _shifts(gap: Gap, back: int) -> list[int]:
    moved = (back - 1, back + 1, back - 2, back + 2, back - 3, back + 3, back - 4, back + 4, gap.after, gap.before - 1)
    return [p for p in dict.fromkeys(moved) if gap.after <= p < gap.before and p != back]


def _stores(gap: Gap, now: int) -> list[int]:
    """Where else its store might be issued: as soon as the contents are made, at the last place, or near where it is."""
    last = _last_store(gap)
    return [p for p in dict.fromkeys((gap.written, last, now - 1, now + 1)) if gap.written <= p <= last and p != now]


def _last_store(gap: Gap) -> int:
    return gap.before - 1 if gap.after == AT_START else gap.after
