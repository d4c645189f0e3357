"""The tensors that leave, and the times at which they come back: one sweep over the ops that
reserves time on the channels.

Candidate selection. The sweep goes through the ops in order with what the device tier holds. Where
that exceeds the budget, it takes the best of the gaps that are open there, until it fits. A gap is
judged on the channels as they are then, not on idle ones:

- its store takes the earliest free time of the channel down after its last use, its prefetch the
  *latest* free time of the channel up that ends before its next use, so that it stays away as long
  as the prefetch stays hidden;
- what it gains is the over-budget time that it is away for; what it costs is the over-budget time
  that it waits in the device tier after coming back too early (because the channel was full just
  before its use), and, weighed heavily, the stall where a transfer cannot be in time at all.

So where pressure is a hill (training: activations pile up), gaps that reach over the hill win;
where it is a plateau (weights streamed through a small budget), the choice spreads evenly over the
step, as only a gap whose prefetch fits just before its use does not wait. Contents that have a
valid copy below leave for nothing. A persistent tensor can be given one from the start (``copy``),
at the price of a store after its last write, or start below altogether.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np

from hosim.analysis import Gap
from hosim.engine.cells import Cells
from hosim.planner.hyperoffload.kernels import (
    NO_RETURN,
    PARTS,
    PRESENT,
    GapSweep,
    form_of,
)
from hosim.planner.hyperoffload.sweep_cells import SweepArrays, Weights
from hosim.planner.hyperoffload.tensor_choices import (
    BELOW,
    STARTS,
    Choices,
    Problem,
    TensorChoice,
    TensorColumns,
    least_size_that_counts,
)

# -- described cost
# --------------------------------------------------------------------------------------------------
# The cost by which the HyperOffload description places cache ops, as a ranking of gaps: a sweep
# may judge by it.
#
# ``max(0, C_trans - C_overlap) + alpha * residency``: what a transfer takes beyond the
# computation that it overlaps with, and how long the tensor lies in the device tier all the same,
# until its store has ended and after its prefetch has begun. The description also wants what is
# large, idle for long and seldom used to move first; so the cost counts for each byte and
# nanosecond away, once for each use. Both directions are summed up. Source: arXiv 2602.00748 as
# summarised publicly; how the terms combine is hosim's reading.


class PlainSweep(GapSweep):
    """A sweep that runs interpreted. With an ``alpha`` its scores go from 0 (costs nothing) down to
    the negative of the step's time, by the described cost, with the channels as they are occupied
    so far.
    """

    def describe(self, problem: Problem, alpha: float | None) -> None:
        """Let ``alpha`` be the weight of residency."""
        columns, tensors = problem.columns, problem.graph.derived(TensorColumns)
        moving = tensors.size[columns.tensor[columns.forced :]].tolist()
        self.alpha, self.usual_bytes = alpha, least_size_that_counts(moving)
        self.problem = problem

    def most(self, g: int, i: int, trip: int) -> int:
        """No score of this gap over this trip is better."""
        return super().most(g, i, trip) if self.alpha is None else 0

    def come_back(self, g: int, i: int, trip: int, way: int) -> None:
        """Place the prefetch of a way, and score it."""
        super().come_back(g, i, trip, way)
        if self.alpha is None:
            return
        t, ends = self.tensor[g], self.begins[self.before[g]]
        left = begins = self.end_ns[self.after[g]] if self.after[g] >= 0 else 0
        if self.store_at[way] >= 0:
            left = max(begins, self.store_at[way] + self.trip_ns[self.trips + trip])
        back = there = ends
        if self.fetch_at[way] >= 0:
            back = self.fetch_at[way]
            there = max(ends, back + self.trip_ns[trip])
        cost = self.stalls[way] + self.alpha * (left - begins + there - back)
        uses = max(1, len(self.problem.graph.users[t]))
        relative = cost * uses * self.usual_bytes / max(1, self.size[t]) / max(1, back - left)
        score: Any = self.score
        score[way] = -self.horizon * PARTS * relative / (1 + relative)


@dataclass(frozen=True, slots=True)
class Selection:
    """Choices, and the largest number of bytes by which an op still exceeds the budget (0 where the
    sweep succeeded).

    ``full`` names the tiers below that had no room for something, in words, ``judged`` counts how
    often a gap was. ``problem``, ``budget_bytes`` and ``weights`` are what was asked for.
    """

    choices: Choices
    short_bytes: int
    expected_stall_ns: int
    full: str
    problem: Problem
    budget_bytes: int
    weights: Weights
    judged: int = 0


def select(problem: Problem, budget_bytes: int, weights: Weights) -> Selection:
    """Choices that keep every op within the budget, in listed order; O(gaps log gaps) with few
    candidates judged twice.
    """
    arrays = SweepArrays(problem, budget_bytes, weights)
    plain = weights.alpha is not None or arrays.are_large()
    sweep = arrays.begin(PlainSweep if plain else form_of(GapSweep), plain=plain)
    if isinstance(sweep, PlainSweep):
        sweep.describe(problem, weights.alpha)
    sweep.run()
    return Selection(
        _choices(arrays, sweep.chosen_count),
        sweep.short,
        sweep.stall,
        arrays.full(),
        problem,
        budget_bytes,
        weights,
        sweep.judged,
    )


def uses_gap(choices: Choices, gap: Gap, count: int) -> bool:
    """Return whether the tensor is away in a gap by these choices; ``count`` is the number of ops.

    A tensor that starts below leaves again after its last use, without an absence of its own.
    """
    choice = choices.get(gap.tensor)
    return choice is not None and (
        gap.after in choice.away or (choice.start == BELOW and gap.before == count)
    )


def _set(ops: Cells) -> list[int]:
    """The gaps for which there is an op."""
    found: list[int] = np.flatnonzero(np.asarray(ops) != PRESENT).tolist()
    return found


def _choices(arrays: SweepArrays, count: int) -> Choices:
    """What a sweep that has run has decided on so many tensors, in the order in which it did."""
    cells, below = arrays.cells, arrays.problem.below
    tensor, after, backs, stores = [cells[name] for name in ("tensor", "after", "back", "store")]
    away = defaultdict[int, dict[int, int | None]](dict)
    stored = defaultdict[int, dict[int, int]](dict)
    for g in _set(backs):
        away[tensor[g]][after[g]] = None if backs[g] == NO_RETURN else backs[g]
    for g in _set(stores):
        stored[tensor[g]][after[g]] = stores[g]
    return {
        t: TensorChoice(
            below[cells["tier_of"][t]].name,
            STARTS[cells["start_of"][t]],
            away.get(t, {}),
            stored.get(t, {}),
        )
        for t in list(cells["chosen"][:count])
    }
