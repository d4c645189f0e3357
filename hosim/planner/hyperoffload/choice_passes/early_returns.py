"""Returns as early as there is room: for steps in which the channels are what takes the time, so
that none of them idles.

The sweep of the selection lets a tensor return as late as its transfer is still hidden. Where
transfers take longer than the ops do, nothing hides them all, and what counts is that a channel
never waits for room that is there. :func:`advance` moves every return of a plan ahead, the first
one needed first, as far as the device tier has room by the listed order.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from hosim.analysis import Gap
from hosim.cache_plan import AT_START
from hosim.engine.cells import ints, longs, made_cells
from hosim.planner.hyperoffload.kernels import ReturnsAhead, form_of
from hosim.planner.hyperoffload.tensor_choices import (
    BELOW,
    Choices,
    Problem,
    TensorChoice,
    TensorColumns,
)
from hosim.planner.schedule import Levels
from hosim.units import LARGEST


def advance(problem: Problem, choices: Choices, budget_bytes: int) -> Choices:
    """The choices with each return as early as it can be within the budget, in the order of the
    uses that wait for them.
    """
    away = _AbsenceColumns(problem, choices)
    (order,) = np.nonzero(away.returns)
    order = order[np.lexsort((away.back[order], away.before[order]))]
    tensor, after, back = away.tensor[order], away.after[order], away.back[order]
    tiers: dict[str, int] = {}
    channel = [
        tiers.setdefault(problem.starts_below.get(t, choices[t].tier(op)), len(tiers))
        for t, op in zip(tensor.tolist(), after.tolist(), strict=True)
    ]
    numbers, ahead = {"returns": len(order), "channels": len(tiers)}, ints(back.copy())
    level = away.levels(problem)
    large = level.dtype == object
    given = {
        "level": level.tolist() if large else longs(level),
        "after": ints(after),
        "back": ahead,
        "size": longs(problem.graph.derived(TensorColumns).size[tensor]),
        "channel": ints(channel),
    }
    kernel = ReturnsAhead if large else form_of(ReturnsAhead)
    kernel(numbers | given | made_cells(ReturnsAhead, numbers), budget_bytes).run()
    moved = dict(choices)
    for k in np.flatnonzero(np.asarray(ahead)[: len(order)] != back).tolist():
        t = int(tensor[k])
        moved[t] = moved[t].with_return(int(after[k]), ahead[k])
    return moved


def account(problem: Problem, choices: Choices) -> Levels:
    """Return the bytes of the device tier by position with these choices."""
    return _AbsenceColumns(problem, choices).levels(problem)


class _AbsenceColumns:
    """The absences of choices as columns; ``returns`` says which ones end, each after ``back``."""

    def __init__(self, problem: Problem, choices: Choices) -> None:
        open_gaps = problem.gaps_of
        rows = [
            (t, gap.after, gap.before, gap.before - 1 if back is None else back, back is not None)
            for t, choice in choices.items()
            for gap, back in absences(problem, t, choice, open_gaps.get(t, ()))
        ]
        columns = np.fromiter(chain.from_iterable(rows), "i", 5 * len(rows)).reshape(-1, 5)
        self.tensor, self.after, self.before, self.back, self.returns = columns.T

    def levels(self, problem: Problem) -> Levels:
        """Bytes of the device tier by position; Python's numbers where 64 bits may not hold them."""
        size, count = problem.graph.derived(TensorColumns).size, len(problem.graph.ops)
        most = max(problem.held_bytes) + size.sum(dtype=float)
        kind = np.int64 if most < LARGEST // 2 else object
        size, change = size.astype(kind), np.zeros(count + 2, kind)
        np.subtract.at(change, self.after + 1, size[self.tensor])
        np.add.at(change, np.maximum(self.back, self.after) + 1, size[self.tensor])
        if problem.starts_below:
            # the account of the problem has what starts below from its first use on
            below = np.fromiter(problem.starts_below, "q", len(problem.starts_below))
            first = np.maximum(np.asarray(problem.graph.compact_users.first)[below], 0)
            change[0] += size[below].sum()
            np.subtract.at(change, first, size[below])
        held: Levels = np.array(problem.held_bytes, kind) + np.cumsum(change)[: count + 1]
        return held


def ops_away(gap: Gap, back: int | None) -> tuple[int, int]:
    """The first position at which an absence frees the device tier, and the first at which it does
    so no more.
    """
    until = gap.before - 1 if back is None else back
    return gap.after + 1, max(until, gap.after) + 1


def absences(
    problem: Problem, t: int, choice: TensorChoice, gaps: Sequence[Gap]
) -> list[tuple[Gap, int | None]]:
    """The gaps that a choice uses, each with its return; what starts below is away again after its
    last use.
    """
    away, count = choice.away, len(problem.graph.ops)
    if choice.start != BELOW:
        return [(gap, away[gap.after]) for gap in gaps if gap.after in away]
    return [
        (gap, away.get(gap.after))
        for gap in gaps
        if gap.after in away or (gap.before == count and gap.after != AT_START)
    ]
