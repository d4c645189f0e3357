"""Refinement of small plans: change one decision at a time, replay, keep what is better.

Hill climbing over the choices of each tensor, with seeded restarts from a disturbed best. Neighbours of a plan are: a
prefetch issued one op (or as far as can be) earlier or later; an absence dropped; a gap used that was not; another start or another tier
for a persistent tensor. Only where replays are cheap: :mod:`hosim.planner.pipeline` says how many there may be.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from hosim.planner.choices import BELOW, COPY, HOME, Choice, Choices
from hosim.planner.evaluation import Evaluator, Outcome
from hosim.planner.problem import START, Gap, Problem, initial_set

_IDLE = 3
"""Restarts in a row that find nothing they have not seen before the search ends: a tiny plan has few neighbours."""


def improve(evaluate: Evaluator, best: Outcome, floor_ns: int, seed: int) -> Outcome:
    """The best outcome found from ``best`` on; stops at ``floor_ns``, which no plan can beat, or when the replays are used up."""
    rng = random.Random(seed)
    problem = evaluate.problem
    current = best
    idle = 0
    while evaluate.left > 0 and idle < _IDLE:
        before = evaluate.left
        current = _climb(evaluate, current, floor_ns, rng)
        idle = idle + 1 if evaluate.left == before else 0
        if current.worth < best.worth:
            best = current
        if _done(best, floor_ns) or evaluate.left <= 0:
            break
        current = evaluate(_disturb(problem, best.choices, rng))
    return best


def _done(outcome: Outcome, floor_ns: int) -> bool:
    return not outcome.worth.infeasible and outcome.worth.makespan_ns <= floor_ns


def _climb(evaluate: Evaluator, current: Outcome, floor_ns: int, rng: random.Random) -> Outcome:
    """First-improvement hill climbing until no neighbour is better."""
    improved = True
    while improved and not _done(current, floor_ns):
        improved = False
        neighbours = list(_neighbours(evaluate.problem, current.choices))
        rng.shuffle(neighbours)
        for choices in neighbours:
            if evaluate.left <= 0:
                return current
            outcome = evaluate(choices)
            if outcome.worth < current.worth:
                current, improved = outcome, True
                break
    return current


def _disturb(problem: Problem, choices: Choices, rng: random.Random) -> Choices:
    """A few random neighbours in a row."""
    for _ in range(rng.randint(2, 4)):
        neighbours = list(_neighbours(problem, choices))
        if neighbours:
            choices = rng.choice(neighbours)
    return choices


def _neighbours(problem: Problem, choices: Choices) -> Iterator[Choices]:
    gaps = problem.graph.derived(_gaps_by_tensor, problem.gaps)
    for t, open_gaps in gaps.items():
        choice = choices.get(t)
        for changed in _changes(problem, t, choice, open_gaps):
            if changed is None or not (changed.away or changed.start == BELOW):
                yield {u: c for u, c in choices.items() if u != t}
            else:
                yield {**choices, t: changed}


def _gaps_by_tensor(graph: object, gaps: tuple[Gap, ...]) -> dict[int, list[Gap]]:
    by_tensor: dict[int, list[Gap]] = {}
    for gap in gaps:
        by_tensor.setdefault(gap.tensor, []).append(gap)
    return by_tensor


def _changes(problem: Problem, t: int, choice: Choice | None, gaps: list[Gap]) -> Iterator[Choice | None]:
    forced = t in problem.starts_below
    tiers = [problem.starts_below[t]] if forced else [b.name for b in problem.below]
    if not tiers:
        return
    base = choice or Choice(tiers[0])
    for gap in gaps:
        if gap.after in base.away:
            back = base.away[gap.after]
            if not (forced and gap.after == START):
                yield base.without(gap.after)
            if back is not None:
                for position in _shifts(gap, back):
                    yield base.with_return(gap.after, position)
        elif gap.after != START or not forced:
            if gap.after == START:
                below = Choice(base.below, BELOW, {a: p for a, p in base.away.items() if a != problem.graph.users[t][-1]})
                for again in _positions(gap):
                    yield below.with_return(START, again)
            elif not (base.start == BELOW and gap.before == len(problem.graph.ops)):
                for again in _positions(gap) if gap.returns else [None]:
                    yield base.with_return(gap.after, again)
    if forced or choice is None or t not in problem.graph.derived(initial_set):
        starts: tuple[str, ...] = ()
    else:
        starts = (HOME, COPY)
    for start in starts:
        if start != base.start and START not in base.away and problem.graph.tensors[t].persistent:
            yield Choice(base.below, start, base.away)
    if base.start == BELOW:
        yield None
    for tier in tiers:
        if choice is not None and tier != base.below:
            yield Choice(tier, base.start, base.away)


def _positions(gap: Gap) -> list[int | None]:
    """Where a new absence might return: late, in the middle, at once."""
    last = gap.before - 1
    return list(dict.fromkeys([last, max(gap.after, last - 1), max(gap.after, last - 2), (gap.after + last) // 2, gap.after]))


def _shifts(gap: Gap, back: int) -> list[int]:
    moved = (back - 1, back + 1, back - 2, back + 2, back - 4, back + 4, gap.after, gap.before - 1)
    return [p for p in dict.fromkeys(moved) if gap.after <= p < gap.before and p != back]
