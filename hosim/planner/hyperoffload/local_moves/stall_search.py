"""Search around the stalls: one change after the other where ops wait, drawn by how long they do.

A change is taken if the plan is no slower. Where none has been better for a while, the search goes back to the best choices, makes a few
changes that may be a little slower, and goes on from there (iterated local search, Lourenço, Martin and Stützle 2003): what is better than
the best is often several changes away. Changes (:mod:`hosim.planner.hyperoffload.local_moves.stall_moves`) are judged by
:mod:`hosim.planner.hyperoffload.local_moves.plan_simulator`. Where the search gains too little, there is a descent on large graphs
(:mod:`hosim.planner.hyperoffload.local_moves.alike_descent`). Both go on only while that pays.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from hosim.planner.hyperoffload.local_moves.alike_descent import descend
from hosim.planner.hyperoffload.local_moves.best_choices import BestChoices
from hosim.planner.hyperoffload.local_moves.choice_moves import Changes
from hosim.planner.hyperoffload.local_moves.plan_simulator import PlanSimulator, SimulatedCost
from hosim.planner.hyperoffload.local_moves.stall_moves import StallMoves
from hosim.planner.hyperoffload.tensor_choices import Choices

SMALL = 200
"""Ops up to which a graph is small."""
_STUCK = 60
"""Refused changes after which stalls no longer say where to change."""
_BLOCKS = 4
"""Blocks that all work is divided into."""
_LITTLE, _PAYS = 20_000, 400
"""A block that gains less than one part in so many gains nothing; a round that gains more than one part in so many is followed by one."""
_DESCENT, _DESCENT_PAYS = 4, 1_000
"""The descents after a round take so many times all work at most; one that gains more than one part in so many is followed by one."""


@dataclass(frozen=True)
class _Pace:
    """How a search goes.

    After ``stale`` changes without a better plan, ``leading`` ones lead away from the best choices, each slower by the part ``worse`` at
    most. All work is spent up to ``rounds`` times. A round ends after ``barren`` blocks in a row that gain nothing; a search that
    ``descends`` does so where a round gains too little for another one.
    """

    stale: int
    leading: int
    worse: float
    rounds: int
    barren: int
    descends: bool = False


_ON_LARGE, _ON_SMALL = _Pace(100, 8, 0.01, 8, 2, descends=True), _Pace(50, 4, 0.1, 1, _BLOCKS)
_BRIEF = _Pace(100, 8, 0.01, 1, 1)
"""The pace of a search that is to say where a longer one would lead to."""
_FEWEST = 200
"""Changes that are drawn in a block at least."""
_RUNS = 20
"""Whole runs that there has to be work for: where long lines wait for the channels, a change delays all that follows."""
_NO_JUDGEMENT = 2
"""The work of drawing a change that changes nothing."""
_TIDYING = 4
"""What moves for nothing is looked for with such a part of all work at most, before and after."""


class StallSearch:
    """Searches from ``choices`` on until ``work`` is spent; none can beat ``floor_ns``. A ``brief`` one ends where it gains nothing."""

    def __init__(self, simulator: PlanSimulator, choices: Choices, floor_ns: int, work: int, seed: int, *, brief: bool = False) -> None:
        self._simulator = simulator
        self._work = work
        self._rng = Random(seed)
        self._pace = _BRIEF if brief else _ON_SMALL if len(simulator.problem.graph.ops) <= SMALL else _ON_LARGE
        self._kept = BestChoices(simulator, choices, floor_ns)
        self._moves = StallMoves(simulator, self._rng, self._kept.whole)
        self._looked = False
        self._leading = 0
        """Changes that are still to lead away from the best choices."""
        self._trials = self._stale = self._refused = 0

    @property
    def pays(self) -> bool:
        """Whether anything can be moved, and the work is enough for some whole runs."""
        return self._moves.some and self._kept.whole * _RUNS <= self._work

    def run(self) -> Choices:
        """The best choices when all is spent, or it does not pay any more."""
        kept = self._kept
        if not self.pays:
            return kept.best()
        self._tidy()
        for _ in range(self._pace.rounds):
            before = kept.cost
            self._round()
            if self._pace.descends and not _gained(before, kept.cost, _PAYS):
                self._descend()
            if kept.at_floor or not _gained(before, kept.cost, _PAYS):
                break
        self._tidy()
        return kept.best()

    def _round(self) -> None:
        """Spend all work once, less if nothing much comes of it."""
        kept, simulator = self._kept, self._simulator
        begin, trials = simulator.work, self._trials
        barren = 0
        for k in range(1, _BLOCKS + 1):
            before = kept.cost
            while not kept.at_floor and (simulator.work < begin + k * self._work // _BLOCKS or self._trials < trials + k * _FEWEST):
                self._step()
            barren = 0 if _gained(before, kept.cost, _LITTLE) else barren + 1
            if kept.at_floor or barren == self._pace.barren:
                break

    def _descend(self) -> None:
        """Descend for as long as that pays, with several times the work of a round at most."""
        kept, simulator = self._kept, self._simulator
        until, paid = simulator.work + _DESCENT * self._work, True
        while paid and not kept.at_floor:
            before = kept.cost
            descend(kept, self._moves.decisions, self._moves.alike, until)
            paid = _gained(before, kept.cost, _DESCENT_PAYS)
        self._looked, self._stale, self._refused = False, 0, 0

    def _tidy(self) -> None:
        simulator = self._simulator
        self._kept.tidy(self._moves.decisions, list(simulator.choices), simulator.work + self._work // _TIDYING)

    def _step(self) -> None:
        """Try one change."""
        kept, simulator, moves = self._kept, self._simulator, self._moves
        self._trials += 1
        if not self._looked:
            moves.look()
            self._looked = True
        changes = moves.draw()
        if not changes:
            simulator.work += _NO_JUDGEMENT
            return
        cost, begun = simulator.cost, simulator.work
        most = cost[1] + (int(self._pace.worse * cost[1]) if self._leading else 0)
        found = simulator.judge(changes, None if cost[0] else most + 1)
        if found[0] < cost[0]:
            taken, gain = True, 1.0
        else:
            taken = found[0] == cost[0] and found[1] <= most and (found[1] != cost[1] or self._rng.random() < 0.5)
            gain = max(0.0, 1 - found[1] / cost[1]) if taken and cost[1] else 0.0
        moves.learn(gain, simulator.work - begun)
        self._stale += 1
        self._refused += 1
        if taken:
            self._leading = max(0, self._leading - 1)
            self._take(changes)
        if self._stale > self._pace.stale:
            kept.back()
            self._stale, self._looked = 0, False
            self._leading = self._pace.leading
        if self._refused > _STUCK:
            moves.anywhere()
            self._refused = 0

    def _take(self, changes: Changes) -> None:
        better = self._kept.take(changes)
        self._refused = 0
        if better:
            self._stale = 0
        if better or self._rng.random() < 0.2:
            self._looked = False


def _gained(before: SimulatedCost, now: SimulatedCost, part: int) -> bool:
    """Whether more than one part in so many of the time was saved, or more ops start."""
    return now[0] < before[0] or (not now[0] and (before[1] - now[1]) * part > now[1])
