"""The reasons for which selection took or left each gap: its sweep runs once more and takes notes,
so that planning itself takes none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from hosim.analysis import Gap
from hosim.cache_plan import AT_START
from hosim.planner.hyperoffload.gap_scoring import GapScore, Weights
from hosim.planner.hyperoffload.selection import GapSweep, Selection, uses_gap
from hosim.planner.hyperoffload.tensor_choices import Problem

BEST_SCORE, STARTS_BELOW = "best_score", "starts_below"
NO_PRESSURE, ENOUGH, NO_TIER, OUTSCORED = "no_pressure", "enough", "no_tier", "outscored"
"""Why selection took a gap (the first two) or left it."""


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
    sweep = _NotedSweep(selection.problem, selection.budget_bytes, selection.weights)
    sweep.run()
    return tuple([sweep.verdict(gap) for gap in selection.problem.gaps if sweep.sizes[gap.tensor]])


class _NotedSweep(GapSweep):
    """A sweep that notes what it judges, compares and takes; by tensor and the op that a gap comes
    after.
    """

    def __init__(self, problem: Problem, budget: int, weights: Weights) -> None:
        super().__init__(problem, budget, weights)
        self.judgements: dict[tuple[int, int], GapScore | None] = {}  # the last one
        self.compared: dict[
            tuple[int, int], tuple[int, GapScore, float | None]
        ] = {}  # the last comparison: at which op, with whom
        self.over_bytes: dict[
            tuple[int, int], int
        ] = {}  # how far over budget the op was at which a gap was taken
        self.pressed = bytearray(self.count + 1)  # ops at which something had to leave

    def judge(self, gap: Gap, i: int) -> GapScore | None:
        """As selection judges, noted."""
        scored = super().judge(gap, i)
        self.judgements[gap.tensor, gap.after] = scored
        return scored

    def candidates(self, i: int) -> list[tuple[float, Gap, GapScore | None]]:
        """As selection finds them, each noted with the best score among the others."""
        self.pressed[i] = 1
        looked = super().candidates(i)
        for k, (_, gap, scored) in enumerate(looked):
            if scored is not None:
                others = [score for score, _, _ in (*looked[:k], *looked[k + 1 :])]
                self.compared[gap.tensor, gap.after] = i, scored, max(others, default=None)
        return looked

    def take(self, scored: GapScore, i: int) -> int | None:
        """As selection takes, with how far over budget the op was."""
        self.over_bytes[scored.gap.tensor, scored.gap.after] = (
            self.problem.held_bytes[i] + self.moved - self.budget
        )
        return super().take(scored, i)

    def verdict(self, gap: Gap) -> JudgedGap:
        """Return the verdict of the sweep, which has run, on a gap."""
        key = gap.tensor, gap.after
        op, score, rival = self.compared.get(key, (-1, self.judgements.get(key), None))
        if key in self.over_bytes:
            return JudgedGap(gap, True, BEST_SCORE, score, op, self.over_bytes[key], rival)
        if uses_gap(self.choices, gap, self.count):
            return JudgedGap(gap, True, STARTS_BELOW, None)
        if not self._at_any(self._over, gap):
            return JudgedGap(gap, False, NO_PRESSURE, score)
        if score is None:
            return JudgedGap(gap, False, NO_TIER, None)
        if not self._at_any(self._pressed, gap):
            return JudgedGap(gap, False, ENOUGH, score)
        return JudgedGap(gap, False, OUTSCORED, score, op, 0, rival)

    @cached_property
    def _over(self) -> list[int]:
        """Return the number of positions before each one that would be over budget if nothing
        moved.
        """
        return [0, *accumulate(held > self.budget for held in self.problem.held_bytes)]

    @cached_property
    def _pressed(self) -> list[int]:
        """Return the number of positions before each one that were over budget when the sweep came
        to them.
        """
        return [0, *accumulate(self.pressed)]

    def _at_any(self, before: Sequence[int], gap: Gap) -> bool:
        """Return whether ``before`` counts any of the positions at which the sweep could take a
        gap.
        """
        users = self.problem.graph.users[gap.tensor]
        end = self.count + 1 if gap.before == self.count and not gap.returns else gap.before
        inside = before[end] - before[gap.after + 1]
        if gap.after == AT_START and users and self.problem.graph.tensors[gap.tensor].persistent:
            inside += (
                before[self.count + 1] - before[users[-1] + 1]
            )  # what starts below is below again after its last use
        return inside > 0
