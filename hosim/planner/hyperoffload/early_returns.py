"""Returns as early as there is room: for steps in which the channels are what takes the time, so that none of them idles.

The sweep of the selection lets a tensor return as late as its transfer is still hidden. Where transfers take longer than the ops do,
nothing hides them all, and what counts is that a channel never waits for room that is there. :func:`advance` moves every return of a plan
ahead, the first one needed first, as far as the device tier has room by the listed order. :func:`evenly` makes the choices that such a
step wants: persistent tensors that start below and leave again after each use, spread evenly over the step, and all others stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction

import numpy as np

from hosim.analysis.gaps import Gap, initial_set
from hosim.cache_plan import AT_START
from hosim.costmodel.memory_traffic import machine_of_copies
from hosim.planner.hyperoffload.channel_reservations import left_rates
from hosim.planner.hyperoffload.choices import BELOW, HOME, Choices, TensorChoice
from hosim.planner.hyperoffload.problem import Problem, gaps_by_tensor
from hosim.schedule.even_spread import LARGE, evenly_spread, usual_size
from hosim.schedule.idle_intervals import Levels, fits_from


def advance(problem: Problem, choices: Choices, budget_bytes: int) -> Choices:
    """The choices with each return as early as it can be within the budget, in the order of the uses that wait for them."""
    level, returning = _account(problem, choices)
    sizes = [tensor.size_bytes for tensor in problem.graph.tensors]
    last: dict[str, int] = {}
    moved = {t: dict(choice.away) for t, choice in choices.items()}
    for gap, back in sorted(returning, key=lambda item: (item[0].before, item[1])):
        t = gap.tensor
        tier = problem.starts_below.get(t, choices[t].tier(gap.after))
        first = max(gap.after, last.get(tier, AT_START))
        ahead = min(fits_from(level, sizes[t], budget_bytes, first + 1, back + 1) - 1, back)
        if ahead < back:
            level[ahead + 1 : back + 1] += sizes[t]
            moved[t][gap.after] = ahead
        last[tier] = max(first, min(ahead, back))
    return {t: replace(choice, away=moved[t]) for t, choice in choices.items()}


def _account(problem: Problem, choices: Choices) -> tuple[Levels, list[tuple[Gap, int]]]:
    """What the device tier holds by position with these choices, and the absences that end, each with the op after which it does."""
    graph, count = problem.graph, len(problem.graph.ops)
    change = np.zeros(count + 2, dtype=np.int64)
    returning: list[tuple[Gap, int]] = []
    open_gaps = gaps_by_tensor(problem)
    for t, choice in choices.items():
        size = graph.tensors[t].size_bytes
        for gap, back in _absences(problem, t, choice, open_gaps.get(t, ())):
            until = gap.before - 1 if back is None else back
            change[max(gap.after + 1, 0)] -= size
            change[max(until, gap.after) + 1] += size
            if back is not None and gap.before <= count:
                returning.append((gap, back))
    for t in problem.starts_below:  # the account of the problem has what starts below from its first use on
        first = min(graph.users[t], default=0)
        change[0] += graph.tensors[t].size_bytes
        change[first] -= graph.tensors[t].size_bytes
    return np.array(problem.held_bytes, dtype=np.int64) + np.cumsum(change)[: count + 1], returning


def _absences(problem: Problem, t: int, choice: TensorChoice, gaps: list[Gap] | tuple[()]) -> Iterator[tuple[Gap, int | None]]:
    """The gaps that a choice uses, each with its return; what starts below is away again after its last use."""
    count = len(problem.graph.ops)
    for gap in gaps:
        if gap.after in choice.away:
            yield gap, choice.away[gap.after]
        elif choice.start == BELOW and gap.before == count and gap.after != AT_START:
            yield gap, None


def evenly(problem: Problem, budget_bytes: int, ahead_bytes: int | None, written: bool, tiers: int) -> Choices | None:
    """Persistent tensors that only the step's own uses bring up, spread evenly, so many that all fits with ``ahead_bytes`` to spare.

    With ``None`` to spare these are all of them.

    ``written`` says whether those that the step writes may be among them, ``tiers`` how many tiers below take them, the fastest first:
    each the bytes that its channel can bring up in the same time. None if there are not enough tensors, or not enough room below. Returns
    are as late as can be: :func:`advance` moves them.
    """
    graph, count = problem.graph, len(problem.graph.ops)
    forced = _forced(problem)
    if not problem.below:
        return None
    parts = _Parts(problem, tiers)
    open_gaps = gaps_by_tensor(problem)
    free = _spreadable(problem, open_gaps, written)
    sizes = [graph.tensors[t].size_bytes for _, t in free]
    total = sum(sizes)
    excess = total if ahead_bytes is None else max(problem.held_bytes) + ahead_bytes - budget_bytes
    if excess <= 0:
        return forced
    if total < excess:
        return None
    choices: dict[int, TensorChoice] = dict(forced)
    for k in evenly_spread(sizes, excess):
        t, tier = free[k][1], parts.next(sizes[k])
        if tier is None:
            return None
        away = {gap.after: gap.before - 1 for gap in open_gaps[t] if gap.returns and gap.before < count}
        choices[t] = TensorChoice(tier, BELOW, {AT_START: graph.users[t][0] - 1, **away})
    return choices


def _spreadable(problem: Problem, open_gaps: Mapping[int, list[Gap]], written: bool) -> list[tuple[int, int]]:
    """The first use and the position of the persistent tensors that may start below, in the order of their first uses."""
    graph, initial = problem.graph, problem.graph.derived(initial_set)
    most, found = LARGE * usual_bytes(problem), []
    for t in open_gaps:
        tensor, users = graph.tensors[t], graph.users[t]
        starts_up = tensor.persistent and t in initial and t not in problem.starts_below
        if starts_up and users and 0 < tensor.size_bytes <= most and (written or not graph.writers[t]):
            found.append((users[0], t))
    return sorted(found)


class _Parts:
    """Bytes for each of several tiers, so that their channels up are busy for equally long."""

    def __init__(self, problem: Problem, tiers: int) -> None:
        ups = {b.name: b.up.name for b in problem.below[:tiers]}
        self._rate = left_rates(machine_of_copies(problem.graph, problem.hardware), ups)
        self._free = {b.name: b.capacity_bytes for b in problem.below[:tiers]}
        for t, tier in problem.starts_below.items():
            if tier in self._free:
                self._free[tier] -= problem.graph.tensors[t].size_bytes
        self._busy = dict.fromkeys(ups, Fraction(0))

    def next(self, size: int) -> str | None:
        """The tier that is done first with a tensor of this size, of those with room."""
        fitting = [tier for tier in self._busy if self._free[tier] >= size]
        if not fitting:
            return None
        tier = min(fitting, key=lambda name: self._busy[name] + Fraction(size, self._rate[name]))
        self._busy[tier] += Fraction(size, self._rate[tier])
        self._free[tier] -= size
        return tier


def usual_bytes(problem: Problem) -> int:
    """The size that half of all bytes of tensors with gaps are in tensors of at most."""
    return usual_size([problem.graph.tensors[t].size_bytes for t in {gap.tensor for gap in problem.gaps}])


def _forced(problem: Problem) -> Mapping[int, TensorChoice]:
    """What lives below comes up for its first use."""
    graph = problem.graph
    return {t: TensorChoice(tier, HOME, {AT_START: graph.users[t][0] - 1}) for t, tier in problem.starts_below.items() if graph.users[t]}
