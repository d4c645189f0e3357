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

import heapq
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

from hosim.analysis import Gap
from hosim.cache_plan import AT_START
from hosim.planner.hyperoffload.gap_scoring import (
    Departure,
    GapScore,
    GapScoring,
    RoundTrip,
    Weights,
)
from hosim.planner.hyperoffload.tensor_choices import BELOW, HOME, Choices, Problem, TensorChoice
from hosim.planner.schedule.tiers_below import LowerTier

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


class DescribedCost(GapScoring):
    """Scores gaps from 0 (costs nothing) down to the negative of the step's time, with the channels
    as they are occupied so far.
    """

    def _most(self, gap: Gap, i: int, trip: RoundTrip) -> float:
        return 0.0

    def _with_return(
        self, gap: Gap, i: int, below: LowerTier, trip: RoundTrip, leaves: Departure
    ) -> GapScore:
        scored = super()._with_return(gap, i, below, trip, leaves)
        begins = 0 if gap.after == AT_START else self.end_ns[gap.after]
        left = begins if leaves.store_at is None else max(begins, leaves.store_at + trip.down)
        ends = self.begins[gap.before]
        back, there = ends, ends
        if scored.fetch_at is not None:
            back, there = scored.fetch_at, max(ends, scored.fetch_at + trip.up)
        alpha = self.weights.alpha or 0.0
        cost = scored.stall + alpha * (left - begins + there - back)
        uses = max(1, len(self.problem.graph.users[gap.tensor]))
        relative = (
            cost * uses * self.usual_bytes / max(1, self.sizes[gap.tensor]) / max(1, back - left)
        )
        return scored._replace(score=-self.horizon * relative / (1 + relative))


_LOOK = 4
"""Candidates that are judged anew before one is taken, as their place in the heap may be stale."""


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
    return GapSweep(problem, budget_bytes, weights).run()


def uses_gap(choices: Choices, gap: Gap, count: int) -> bool:
    """Return whether the tensor is away in a gap by these choices; ``count`` is the number of ops.

    A tensor that starts below leaves again after its last use, without an absence of its own.
    """
    choice = choices.get(gap.tensor)
    return choice is not None and (
        gap.after in choice.away or (choice.start == BELOW and gap.before == count)
    )


class GapSweep:
    """One sweep over the ops: what is on its way, what is held, and what could leave."""

    def __init__(self, problem: Problem, budget: int, weights: Weights) -> None:
        self.problem = problem
        self.budget = budget
        self.weights = weights
        self.scoring = (GapScoring if weights.alpha is None else DescribedCost)(
            problem, budget, weights
        )
        self.choices = self.scoring.choices
        self.sizes = self.scoring.sizes
        self.count = len(problem.graph.ops)
        self.heap: list[tuple[float, int, int, Gap, bool]] = []
        self.serial = 0
        self.level = [0] * (self.count + 2)
        self.short = 0
        self.stall = self.judged = 0
        self.moved = 0
        """Bytes by which the moves so far change what the present op holds."""
        self.taken: set[tuple[int, int]] = set()
        """The gaps that are taken, by tensor and the op that they come after."""

    # -- the sweep
    # ---------------------------------------------------------------------------------------------

    def run(self) -> Selection:
        """Sweep over all ops."""
        problem = self.problem
        returning: dict[int, list[Gap]] = defaultdict(list)
        self._fetch_what_starts_below(returning)
        opening = self._opening()
        for i in range(self.count + 1):
            for gap in opening.get(i, ()):
                scored = self.judge(gap, i)
                if scored is not None:
                    self._push(gap, scored.score, False)
            for gap in returning.get(i, ()):
                if gap.before - 1 > i:
                    self._push(gap, self._late_score(gap), True)
            self.moved += self.level[i]
            while problem.held_bytes[i] + self.moved > self.budget:
                best = self._best(i)
                if best is None:
                    self.short = max(self.short, problem.held_bytes[i] + self.moved - self.budget)
                    break
                gap, scored = best
                if scored is None:
                    self._delay(gap)
                else:
                    back = self.take(scored, i)
                    if back is not None and i <= back and back + 1 < gap.before:
                        returning[back + 1].append(gap)
                self.moved -= self.sizes[gap.tensor]
        full = self.scoring.space.full()
        return Selection(
            self.choices,
            self.short,
            self.stall,
            full,
            problem,
            self.budget,
            self.weights,
            self.judged,
        )

    def _opening(self) -> Mapping[int, list[Gap]]:
        """The gaps by the ops from which on they are open, without those in which no op can exceed
        the budget. A move only frees room, except for the prefetches of what starts below, which
        ``level`` has.
        """
        problem, graph, count = self.problem, self.problem.graph, self.count
        held = zip(problem.held_bytes, accumulate(self.level), strict=False)
        over = [0, *accumulate([there + early > self.budget for there, early in held])]
        opening: dict[int, list[Gap]] = defaultdict(list)
        for gap in problem.gaps:
            t, first = gap.tensor, gap.after + 1
            if not self.sizes[t]:
                continue
            until = count + 1 if gap.before == count and not gap.returns else gap.before
            if over[until] > over[first]:
                opening[first].append(gap)
            if gap.after == AT_START and graph.tensors[t].persistent and graph.users[t]:
                # what starts below is below again after its last use
                again = graph.users[t][-1] + 1
                if over[-1] > over[again]:
                    opening[again].append(gap)
        return opening

    def judge(self, gap: Gap, i: int) -> GapScore | None:
        """Return the score of taking a gap at op i; None if no tier can have the tensor."""
        self.judged += 1
        return self.scoring.judge(gap, i)

    def _push(self, gap: Gap, score: float, late: bool) -> None:
        self.serial += 1
        heapq.heappush(self.heap, (-score, -self.sizes[gap.tensor], self.serial, gap, late))

    def _best(self, i: int) -> tuple[Gap, GapScore | None] | None:
        """The best candidate at op i, without a score if it is only to be delayed. The others go
        back.
        """
        looked = self.candidates(i)
        if not looked:
            return None
        best = max(looked, key=lambda judged: judged[0])
        for judged in looked:
            if judged is not best:
                self._push(judged[1], judged[0], judged[2] is None)
        return best[1:]

    def candidates(self, i: int) -> list[tuple[float, Gap, GapScore | None]]:
        """Those on top of the heap that can leave at op i, judged anew: score, gap, and the
        judgement unless it is only to be delayed.
        """
        looked: list[tuple[float, Gap, GapScore | None]] = []
        while self.heap and len(looked) < _LOOK:
            _, _, _, gap, late = heapq.heappop(self.heap)
            if not self._open(gap, i) or (not late and (gap.tensor, gap.after) in self.taken):
                continue
            if not late:
                scored = self.judge(gap, i)
                if scored is not None:
                    looked.append((scored.score, gap, scored))
            elif gap.before - 1 >= i:
                looked.append((self._late_score(gap), gap, None))
        return looked

    def _late_score(self, gap: Gap) -> float:
        """Worse than any gap that is not taken yet: its transfer is exposed."""
        return float(-self.scoring.horizon) - self._time_up(gap)

    def _delay(self, gap: Gap) -> None:
        """Let a tensor that is back too early return only for its use."""
        back = gap.before - 1
        self.level[gap.before] += self.sizes[gap.tensor]
        self.choices[gap.tensor] = self.choices[gap.tensor].with_return(gap.after, back)
        self.stall += self._time_up(gap)

    def _open(self, gap: Gap, i: int) -> bool:
        """Return whether a gap spans op i and its tensor has not gone for good by then."""
        if gap.after == AT_START:
            users = self.problem.graph.users[gap.tensor]
            last = users[-1] if users else self.count
            if i <= last or not self.scoring.persistent[gap.tensor]:
                return i < gap.before
            choice = self.choices.get(gap.tensor)
            back = choice.away.get(last, AT_START) if choice is not None else AT_START
            return back is not None and back < i  # not while it is away after its last use already
        if gap.before == self.count:
            choice = self.choices.get(gap.tensor)
            return (i < self.count or not gap.returns) and (choice is None or choice.start != BELOW)
        return i < gap.before

    def _time_up(self, gap: Gap) -> int:
        choice = self.choices.get(gap.tensor)
        name = choice.below if choice is not None else self.problem.below[0].name
        below = next(b for b in self.problem.below if b.name == name)
        return self.scoring.round_trip(below, self.sizes[gap.tensor]).up

    # -- taking
    # ----------------------------------------------------------------------------------------------

    def take(self, scored: GapScore, i: int) -> int | None:
        """Note the choice and reserve its transfers' time; the op after which it returns."""
        problem, scoring, gap, leaves = self.problem, self.scoring, scored.gap, scored.leaves
        t = gap.tensor
        self.taken.add((t, gap.after))
        size = self.sizes[t]
        below = scored.below
        trip = scoring.round_trip(below, size)
        back = scoring.back(scored, i)
        users = problem.graph.users[t]
        choice = self.choices.get(t)
        if choice is None:
            choice = TensorChoice(below.name, leaves.start)
        elif choice.start != leaves.start:
            choice = choice._replace(start=leaves.start)
        if t not in problem.starts_below:
            scoring.space.place(t, scored.below_from, [below.name])
        if gap.after == AT_START and users and leaves.start == BELOW:
            choice = choice.without(users[-1])
        choice = choice.with_return(gap.after, back)
        if leaves.store_at is not None:
            early = bisect_right(scoring.ends, leaves.store_at) - 1
            if early < gap.after or gap.after == AT_START:
                choice = choice.with_store(
                    gap.after, min(max(early, gap.written), i - 1)
                )  # op i needs the room
        self.choices[t] = choice
        down = scoring.down[below.name]
        for at in (leaves.store_at, leaves.final_store_at):
            if at is not None:
                down.reserve(down.earliest(at, trip.down), trip.down)
        if leaves.store_at is not None:
            scoring.versions.add((t, gap.version))
        if scored.fetch_at is not None:
            up = scoring.up[below.name]
            up.reserve(up.earliest(scored.fetch_at, trip.up), trip.up)
        self.stall += scored.stall
        if gap.after == AT_START and i >= gap.before:
            return back
        if back is not None:
            self.level[back + 1] += size
        elif gap.dead(self.count):
            self.level[gap.before] += size
        if gap.after == AT_START and leaves.start == BELOW and users:
            gone = users[-1] + 1
            if leaves.final_store_at is not None:
                gone = max(gone, bisect_right(problem.start_ns, leaves.final_store_at + trip.down))
            if gone <= self.count:
                self.level[gone] -= size
        return back

    def _fetch_what_starts_below(self, returning: dict[int, list[Gap]]) -> None:
        """Prefetches of tensors whose home is below: as late as hides, the latest use first."""
        problem, graph, scoring = self.problem, self.problem.graph, self.scoring
        below = {b.name: b for b in problem.below}
        todo = []
        for t, tier in problem.starts_below.items():
            users = graph.users[t]
            if users and tier in below:
                if t in graph.ops[users[0]].reads:
                    todo.append((users[0], t, tier))
                else:  # made anew, and stored at the end
                    self.choices[t] = TensorChoice(tier, HOME)
        for first, t, tier in sorted(todo, reverse=True):
            length = scoring.round_trip(below[tier], self.sizes[t]).up
            at = scoring.up[tier].latest(problem.start_ns[first], length, 0)
            if at is None:
                back, at = AT_START, scoring.up[tier].earliest(0, length)
            else:
                back = min(bisect_right(scoring.ends, at) - 1, first - 1)
            scoring.up[tier].reserve(scoring.up[tier].earliest(at, length), length)
            self.choices[t] = TensorChoice(tier, HOME, {AT_START: back})
            if back + 1 < first:
                self.level[back + 1] += self.sizes[t]
                self.level[first] -= self.sizes[t]
                returning[back + 1].append(Gap(t, AT_START, first, 0, True))
