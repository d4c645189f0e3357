"""Returns as early as there is room: for steps in which the channels are what takes the time, so
that none of them idles.

The sweep of the selection lets a tensor return as late as its transfer is still hidden. Where
transfers take longer than the ops do, nothing hides them all, and what counts is that a channel
never waits for room that is there. :func:`advance` moves every return of a plan ahead, the first
one needed first, as far as the device tier has room by the listed order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from hosim.analysis import Gap
from hosim.cache_plan import AT_START
from hosim.planner.hyperoffload.tensor_choices import BELOW, Choices, Problem, TensorChoice
from hosim.planner.schedule import Levels, fits_from


def advance(problem: Problem, choices: Choices, budget_bytes: int) -> Choices:
    """The choices with each return as early as it can be within the budget, in the order of the
    uses that wait for them.
    """
    level, returning = account(problem, choices)
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
    return {t: choice._replace(away=moved[t]) for t, choice in choices.items()}


def account(problem: Problem, choices: Choices) -> tuple[Levels, list[tuple[Gap, int]]]:
    """Return the bytes of the device tier by position with these choices, and the absences that
    end, each with the op after which it does.
    """
    graph, count = problem.graph, len(problem.graph.ops)
    change = np.zeros(count + 2, dtype=np.int64)
    returning: list[tuple[Gap, int]] = []
    open_gaps = problem.gaps_of
    for t, choice in choices.items():
        size = graph.tensors[t].size_bytes
        for gap, back in absences(problem, t, choice, open_gaps.get(t, ())):
            begin, end = ops_away(gap, back)
            change[begin] -= size
            change[end] += size
            if back is not None and gap.before <= count:
                returning.append((gap, back))
    for t in (
        problem.starts_below
    ):  # the account of the problem has what starts below from its first use on
        first = min(graph.users[t], default=0)
        change[0] += graph.tensors[t].size_bytes
        change[first] -= graph.tensors[t].size_bytes
    return np.array(problem.held_bytes, dtype=np.int64) + np.cumsum(change)[: count + 1], returning


def ops_away(gap: Gap, back: int | None) -> tuple[int, int]:
    """The first position at which an absence frees the device tier, and the first at which it does
    so no more.
    """
    until = gap.before - 1 if back is None else back
    return max(gap.after + 1, 0), max(until, gap.after) + 1


def absences(
    problem: Problem, t: int, choice: TensorChoice, gaps: Sequence[Gap]
) -> Iterator[tuple[Gap, int | None]]:
    """The gaps that a choice uses, each with its return; what starts below is away again after its
    last use.
    """
    count = len(problem.graph.ops)
    for gap in gaps:
        if gap.after in choice.away:
            yield gap, choice.away[gap.after]
        elif choice.start == BELOW and gap.before == count and gap.after != AT_START:
            yield gap, None
