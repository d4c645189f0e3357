"""Choices for the least traffic: what can stay in the device tier stays, and the rest lies as near
as there is room.

A sweep moves what is over the budget at each op, and lets it return as early as there is room
again. Where a tier below takes several channels to reach, as NVMe behind host memory does, its
transfers may take many times as long as the ops. Then it does not matter when they are issued, but
how many bytes cross the slowest channel: what returns early keeps the place of what need not have
left.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hosim.engine import replay
from hosim.notes import Note
from hosim.planner.hyperoffload.choice_passes import (
    absences,
    account,
    advance,
    ops_away,
)
from hosim.planner.hyperoffload.judgement import LEAST_TRAFFIC
from hosim.planner.hyperoffload.tensor_choices import (
    HOME,
    Choices,
    Evaluation,
    Evaluator,
    Problem,
    TensorChoice,
    everything,
    of_all_devices,
)
from hosim.planner.schedule.tiers_below import has_hops

_FILLED = (1.0, 0.98, 0.95, 0.9, 0.8, 0.6, 0.3)
"""Parts of the tiers that are filled by the listed order, until what is on its way finds room,
too.
"""
_UNSURE = str(
    Note("search", "devices wait for room in tiers that they share: all of them were not replayed")
)


def with_least_traffic(
    evaluate: Evaluator, problem: Problem, best: Evaluation, source: str
) -> tuple[Evaluation, str]:
    """The best outcome and what made it: ``best``, or where it uses routes of several channels, the
    same with the least traffic.
    """
    apart = {tier.name for tier in problem.below if has_hops(problem.hardware, tier)}
    if best.cost.infeasible or apart.isdisjoint([choice.below for choice in best.choices.values()]):
        return best, source
    budget = evaluate.budget_bytes
    refused: list[
        Choices
    ] = []  # replays of the whole machine take long, and several parts may come to the same
    for part in _FILLED:
        choices = least_traffic(problem, best.choices, part, budget)
        for found in sorted(
            [evaluate(choices), evaluate(advance(problem, choices, budget))],
            key=lambda outcome: outcome.cost,
        ):
            if found.cost < best.cost and found.choices not in refused:
                if _holds(evaluate, found):
                    return found, LEAST_TRAFFIC
                refused.append(found.choices)
    return best, source


def from_the_farthest(
    evaluate: Evaluator, problem: Problem, best: Evaluation, source: str
) -> tuple[Evaluation, str]:
    """The best outcome and what made it: ``best``, or if all fits below with the tiers filled from
    the farthest on, that.

    Where it is not known of any whether all devices find room, the fastest for a share.
    """
    far = {t: choice.below_in(problem.below[-1].name) for t, choice in everything(problem).items()}
    unsure = []
    for part in _FILLED if len(problem.below) > 1 else ():
        found = evaluate(least_traffic(problem, far, part, evaluate.budget_bytes))
        holds = _holds(evaluate, found)
        if holds:
            return found, LEAST_TRAFFIC
        unsure += [found] if holds is None else []
    if not unsure:
        return best, source
    found = min(unsure, key=lambda outcome: outcome.cost)
    return replace(found, plan=replace(found.plan, notes=(_UNSURE,))), LEAST_TRAFFIC


def _holds(evaluate: Evaluator, outcome: Evaluation) -> bool | None:
    """Return whether an outcome fits, on the whole machine, too, if that can be known: where tiers
    are full, devices that share them do not all find room at once.
    """
    if outcome.cost.infeasible or evaluate.problem.hardware.whole is evaluate.problem.hardware:
        return not outcome.cost.infeasible
    result = of_all_devices(replay, outcome.plan, evaluate.problem.hardware, evaluate.budget_bytes)
    return None if result is None else result.feasible


def least_traffic(problem: Problem, choices: Choices, part: float, budget_bytes: int) -> Choices:
    """The choices with returns as late as can be, less those of tensors that can stay, and with the
    others in nearer tiers.

    By the listed order, the device tier and the tiers below hold no more than this part of the
    budget, or of their capacity, for it. O(tensors * ops).
    """
    late = _returning_late(problem, choices)
    return nearer_tiers(
        problem, _without_those_that_stay(problem, late, int(part * budget_bytes)), part
    )


def _returning_late(problem: Problem, choices: Choices) -> dict[int, TensorChoice]:
    gaps = problem.gaps_of
    found = {}
    for t, choice in choices.items():
        returns = {
            gap.after: gap.before - 1
            for gap in gaps.get(t, ())
            if choice.away.get(gap.after) is not None
        }
        found[t] = choice._replace(away={**choice.away, **returns})
    return found


def _without_those_that_stay(problem: Problem, choices: Choices, budget_bytes: int) -> Choices:
    """Those in the farthest tier stay first, and of these those that are away the shortest, for as
    long as all fits.
    """
    count, gaps = len(problem.graph.ops), problem.gaps_of
    level = account(problem, choices)[:count]
    near = {tier.name: k for k, tier in enumerate(problem.below)}
    away = {
        t: [ops_away(gap, back) for gap, back in absences(problem, t, choice, gaps.get(t, ()))]
        for t, choice in choices.items()
        if t not in problem.starts_below
    }
    left = dict(choices)
    for t in sorted(
        away,
        key=lambda t: (
            -near[choices[t].below],
            sum([min(end, count) - begin for begin, end in away[t]]),
            t,
        ),
    ):
        size = problem.graph.tensors[t].size_bytes
        if all([level[begin:end].max(initial=0) + size <= budget_bytes for begin, end in away[t]]):
            for begin, end in away[t]:
                level[begin:end] += size
            del left[t]
    return left


def nearer_tiers(problem: Problem, choices: Choices, part: float) -> Choices:
    """The choices with those in far tiers in nearer ones, large ones first, while these hold no
    more than a part of their capacity.

    What a tier holds is by the listed order. What is away at all is there from when it first leaves
    to its last use, or all the time.
    """
    place = {tier.name: k for k, tier in enumerate(problem.below)}
    sizes = [tensor.size_bytes for tensor in problem.graph.tensors]
    away = {
        t: _away(problem, t, choice)
        for t, choice in choices.items()
        if t not in problem.starts_below
    }
    held = {
        tier.name: np.full(len(problem.graph.ops), _lives_there(problem, tier.name))
        for tier in problem.below
    }
    for t, (begin, end) in away.items():
        held[choices[t].below][begin:end] += sizes[t]
    found = dict(choices)
    for t in sorted(away, key=lambda t: (-place[choices[t].below], -sizes[t], t)):
        begin, end = away[t]
        for tier in problem.below[: place[choices[t].below]]:
            level = held[tier.name][begin:end]
            if level.max(initial=0) + sizes[t] <= part * tier.capacity_bytes:
                level += sizes[t]
                found[t] = choices[t].below_in(tier.name)
                break
    return found


def _lives_there(problem: Problem, tier: str) -> int:
    return sum(
        problem.graph.tensors[t].size_bytes
        for t, home in problem.starts_below.items()
        if home == tier
    )


def _away(problem: Problem, t: int, choice: TensorChoice) -> tuple[int, int]:
    """Op positions from and up to which the tier below holds a tensor's copy."""
    users, count = problem.graph.users[t], len(problem.graph.ops)
    if choice.start != HOME or not choice.away or problem.graph.survives[t]:
        return 0, count
    return max(0, min(choice.away)), users[-1] + 1 if users else count
