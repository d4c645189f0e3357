"""Candidate selection: one sweep over the ops chooses the tensors to evict and the times of their
return, and reserves time on the channels.

The sweep goes through the ops in order and tracks the occupancy of the device tier. At an op that
exceeds the budget it takes the best open gap, again and again until the op fits. It judges a gap on
the channels with the reservations made so far:

- the store takes the earliest free time of the channel down after the last use. The prefetch takes
  the *latest* free time of the channel up that ends before the next use, so that the tensor stays
  away as long as possible at no stall;
- the gain is the over-budget time for which the tensor is away. The cost is the over-budget time
  for which it waits in the device tier after an early return (the channel was full just before its
  use) and, weighed heavily, the stall if a transfer cannot be in time.

If the pressure is a hill (training: activations pile up), gaps that span the hill win. If it is a
plateau (weights streamed through a small budget), the choice spreads evenly over the step, because
only a gap whose prefetch fits just before its use has no wait. Contents with a valid copy below
need no store. A persistent tensor can have such a copy from the start (``copy``), at the cost of a
store after its last write, or start below.
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
# The cost by which the HyperOffload description places cache ops, as a ranking of gaps for sweeps.
#
# ``max(0, C_trans - C_overlap) + alpha * residency``: the transfer time that computation does not
# cover, and the time inside the gap for which the device tier still holds the tensor, before its
# store ends and after its prefetch begins. The description also moves tensors first that are large,
# idle for long and seldom used; so the cost is multiplied by the uses, and divided by the bytes and
# by the time away. Both directions are summed. Source: arXiv 2602.00748 as summarised publicly; the
# combination of the terms is hosim's reading.


class PlainSweep(GapSweep):
    """An interpreted sweep. With an ``alpha`` it scores gaps by the described cost, from 0 (no
    cost) down to the negative of the step's time, on the channels as reserved so far.
    """

    def describe(self, problem: Problem, alpha: float | None) -> None:
        """Set the problem, and ``alpha``, the weight of residency; None: score as usual."""
        columns, tensors = problem.columns, problem.graph.derived(TensorColumns)
        moving = tensors.size[columns.tensor[columns.forced :]].tolist()
        self.alpha, self.usual_bytes = alpha, least_size_that_counts(moving)
        self.problem = problem

    def most(self, g: int, i: int, trip: int) -> int:
        """Return an upper bound on the scores of gap ``g`` at op ``i`` over a trip."""
        return super().most(g, i, trip) if self.alpha is None else 0

    def come_back(self, g: int, i: int, trip: int, way: int) -> None:
        """Place the prefetch of a way, and score the way."""
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
    """The result of a sweep: its choices, and ``short_bytes``, the largest excess of an op over the
    budget (0 if the sweep succeeded).

    ``full`` names as text the lower tiers that had no room for some tensor, and ``judged`` counts
    the judgements of gaps. ``problem``, ``budget_bytes`` and ``weights`` are the sweep's inputs.
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
    """Return choices that keep every op within the budget, in listed order, if the sweep finds
    them; O(gaps log gaps) if few candidates are judged twice.
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
    """Return True if these choices evict the gap's tensor in it; ``count`` is the number of ops.

    A tensor that starts below leaves after its last use; ``away`` does not list that absence.
    """
    choice = choices.get(gap.tensor)
    return choice is not None and (
        gap.after in choice.away or (choice.start == BELOW and gap.before == count)
    )


def _set(ops: Cells) -> list[int]:
    """Return the positions of the gaps for which ``ops`` has an op."""
    found: list[int] = np.flatnonzero(np.asarray(ops) != PRESENT).tolist()
    return found


def _choices(arrays: SweepArrays, count: int) -> Choices:
    """Return the decisions of a finished sweep on its first ``count`` tensors, in its order."""
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
