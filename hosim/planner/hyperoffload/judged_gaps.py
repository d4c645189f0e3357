"""The reasons for which selection took or left each gap: its sweep runs once more and takes notes,
so that planning itself takes none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from hosim.analysis import Gap
from hosim.cache_plan import AT_START
from hosim.planner.hyperoffload.kernels import BEST, LOOKED, PARTS
from hosim.planner.hyperoffload.selection import PlainSweep, Selection, uses_gap
from hosim.planner.hyperoffload.sweep_cells import SweepArrays
from hosim.planner.hyperoffload.tensor_choices import STARTS, Problem
from hosim.planner.schedule.tiers_below import LowerTier

BEST_SCORE, STARTS_BELOW = "best_score", "starts_below"
NO_PRESSURE, ENOUGH, NO_TIER, OUTSCORED = "no_pressure", "enough", "no_tier", "outscored"
"""Why selection took a gap (the first two) or left it."""


class Departure(NamedTuple):
    """The departure of a tensor: where it starts, when its store and its store at the end of the
    step begin, and how late they are.
    """

    start: str
    store_at: int | None = None
    final_store_at: int | None = None
    late: int = 0


class GapScore(NamedTuple):
    """A gap's score and the transfers that it would take, in nanoseconds. ``fetch_at`` is None
    where nothing returns.
    """

    score: float
    gap: Gap
    below: LowerTier
    leaves: Departure
    fetch_at: int | None
    stall: int


@dataclass(frozen=True, slots=True)
class JudgedGap:
    """The decision of selection on one gap, and the reason for it.

    A gap that is ``taken`` for :data:`BEST_SCORE` had the best ``score`` at ``op``, where the
    device tier held ``over_bytes`` more than the budget; one that is left as :data:`OUTSCORED` was
    compared there last. ``rival_score`` is the score of the best other candidate that was looked at
    there (None: there was none). ``op`` is -1 where the gap was compared with no other.
    """

    gap: Gap
    taken: bool
    reason: str
    score: GapScore | None
    op: int = -1
    over_bytes: int = 0
    rival_score: float | None = None


def judged_gaps(selection: Selection) -> tuple[JudgedGap, ...]:
    """Return the verdict on every gap of a tensor that has bytes, in the problem's order."""
    problem, weights = selection.problem, selection.weights
    arrays = SweepArrays(problem, selection.budget_bytes, weights)
    sweep = arrays.begin(_NotedSweep, plain=True)
    sweep.describe(problem, weights.alpha)
    sweep.run()
    verdicts, first = _Verdicts(sweep, selection), problem.columns.forced
    sizes = [tensor.size_bytes for tensor in problem.graph.tensors]
    return tuple(
        [verdicts.of(g, gap) for g, gap in enumerate(problem.gaps, first) if sizes[gap.tensor]]
    )


class _NotedSweep(PlainSweep):
    """A sweep that notes what it judges, compares and takes, by gap."""

    def describe(self, problem: Problem, alpha: float | None) -> None:
        """Begin without notes."""
        super().describe(problem, alpha)
        self.judgements: dict[int, GapScore | None] = {}  # the last one
        self.comparisons: dict[
            int, tuple[int, GapScore | None, float | None]
        ] = {}  # the last one: at which op, with whom
        self.over_bytes: dict[int, int] = {}  # how far over budget the op was at which it was taken
        self.pressed = bytearray(self.ops + 1)  # ops at which something had to leave

    def judge(self, g: int, i: int) -> bool:
        """As selection judges, noted."""
        found = super().judge(g, i)
        self.judgements[g] = self.score_of(g, BEST) if found else None
        return found

    def find_candidates(self, i: int) -> None:
        """As selection finds them, each noted with the best score among the others."""
        self.pressed[i] = 1
        super().find_candidates(i)
        scores = [_ns(self.score[LOOKED + k]) for k in range(self.looked_count)]
        for k, item in enumerate(self.looked[: self.looked_count]):
            if not item & 1:
                others = max([*scores[:k], *scores[k + 1 :]], default=None)
                self.comparisons[item >> 1] = i, self.score_of(item >> 1, LOOKED + k), others

    def take_gap(self, g: int, i: int) -> int:
        """As selection takes, with how far over budget the op was."""
        self.over_bytes[g] = self.held[i] + self.moved - self.budget
        return super().take_gap(g, i)

    def score_of(self, g: int, way: int) -> GapScore:
        """A way to spend a gap."""
        store_at, final_at, fetch_at = [
            None if at[way] < 0 else at[way] for at in (self.store_at, self.final_at, self.fetch_at)
        ]
        return GapScore(
            _ns(self.score[way]),
            self.problem.gaps[g - self.forced],
            self.problem.below[self.in_tier[way]],
            Departure(STARTS[self.starts[way]], store_at, final_at, self.late_by[way]),
            fetch_at,
            self.stalls[way],
        )


def _ns(score: float) -> float:
    """A score of the sweep in nanoseconds, a whole number where it is one."""
    return score / PARTS if score % PARTS else score // PARTS


class _Verdicts:
    """The verdicts of a sweep that has run and has notes."""

    def __init__(self, sweep: _NotedSweep, selection: Selection) -> None:
        problem = selection.problem
        self._sweep, self._choices, self._problem = sweep, selection.choices, problem
        held = problem.held_bytes
        self._over = [0, *accumulate(there > selection.budget_bytes for there in held)]
        self._pressed = [0, *accumulate(sweep.pressed)]
        """How many positions before each one would be over budget if nothing moved, and were when
        the sweep came to them."""

    def of(self, g: int, gap: Gap) -> JudgedGap:
        """Return the verdict on a gap."""
        notes = self._sweep
        op, score, rival = notes.comparisons.get(g, (-1, notes.judgements.get(g), None))
        if g in notes.over_bytes:
            return JudgedGap(gap, True, BEST_SCORE, score, op, notes.over_bytes[g], rival)
        if uses_gap(self._choices, gap, notes.ops):
            return JudgedGap(gap, True, STARTS_BELOW, None)
        if not self._at_any(self._over, gap):
            return JudgedGap(gap, False, NO_PRESSURE, score)
        if score is None:
            return JudgedGap(gap, False, NO_TIER, None)
        if not self._at_any(self._pressed, gap):
            return JudgedGap(gap, False, ENOUGH, score)
        return JudgedGap(gap, False, OUTSCORED, score, op, 0, rival)

    def _at_any(self, before: Sequence[int], gap: Gap) -> bool:
        """Return whether ``before`` counts any of the positions at which the sweep could take a
        gap.
        """
        graph, count = self._problem.graph, len(self._problem.graph.ops)
        users = graph.users[gap.tensor]
        end = count + 1 if gap.before == count and not gap.returns else gap.before
        inside = before[end] - before[gap.after + 1]
        if gap.after == AT_START and users and graph.tensors[gap.tensor].persistent:
            inside += (
                before[count + 1] - before[users[-1] + 1]
            )  # what starts below is below again after its last use
        return inside > 0
