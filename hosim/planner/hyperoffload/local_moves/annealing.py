"""Simulated annealing over all decisions, and a descent from the best there is after it: for graphs
with few of them.

Changes of any decision (:mod:`hosim.planner.hyperoffload.local_moves.choice_moves`), or around what
waits (:mod:`hosim.planner.hyperoffload.local_moves.stall_moves`), are judged by the simulator of
plans. Annealing (Kirkpatrick, Gelatt and Vecchi 1983) takes a worse one with a probability that
falls with what it loses and with time, since what helps is often two or three changes that each
alone do not.
"""

from __future__ import annotations

import math
import random
from collections import ChainMap

from hosim.planner.hyperoffload.local_moves.best_choices import BestChoices
from hosim.planner.hyperoffload.local_moves.choice_moves import Changes, ChoiceMoves
from hosim.planner.hyperoffload.local_moves.plan_simulator import PlanSimulator
from hosim.planner.hyperoffload.local_moves.stall_moves import StallMoves
from hosim.planner.hyperoffload.tensor_choices import Choices, TensorChoice, WorkDone

_NEAR, _SECOND = 0.5, 0.3
"""How often a change is drawn where ops wait, and how often a second one with it."""
_OF_A_CHANGE = 150
"""The work of drawing a change."""
_OF_A_NEIGHBOUR = 12
"""The work of listing one change of one decision."""


class Annealing:
    """Searches from ``choices`` on, beginning at a heat of so many mean op durations; none can beat
    ``floor_ns``.
    """

    def __init__(
        self,
        simulator: PlanSimulator,
        choices: Choices,
        floor_ns: int,
        heat: float,
        seed: int,
    ) -> None:
        self._simulator, self._rng = simulator, random.Random(seed)
        self._moves = ChoiceMoves(simulator.problem, simulator.tiers)
        self._near = StallMoves(simulator, self._rng, 1)
        self._gaps = [gap for t in sorted(self._moves.gaps) for gap in self._moves.gaps[t]]
        durations = simulator.problem.durations
        self._hot_ns = heat * sum(durations) / max(1, len(durations))
        self._begun = simulator.work
        self._kept = BestChoices(simulator, choices, floor_ns)

    def run(self, work: int, spent: WorkDone) -> Choices:
        """The best choices when so much work is done, which is added to what is ``spent``; a half
        at most is for the descent.
        """
        simulator = self._simulator
        if self._gaps:
            self._anneal(self._begun + work // 2)
            self._descend(self._begun + work)
        spent.done += simulator.work - self._begun
        return self._kept.best()

    def _anneal(self, until: int) -> None:
        rng, simulator, gaps = self._rng, self._simulator, self._gaps
        span, looked = max(1, until - simulator.work), False
        while simulator.work < until and not self._kept.at_floor:
            if rng.random() < _NEAR:
                if not looked:
                    self._near.look()
                    looked = True
                changes = dict(self._near.draw())
            else:
                changes = dict(self._moves.random(rng, simulator.choices, rng.choice(gaps), gaps))
            if rng.random() < _SECOND:
                present: ChainMap[int, TensorChoice | None] = ChainMap(changes, simulator.choices)  # type: ignore[arg-type]
                changes |= self._moves.random(rng, present, rng.choice(gaps), gaps)
            simulator.work += _OF_A_CHANGE
            heat = self._hot_ns * ((until - simulator.work) / span) ** 2
            if changes and self._accepted(changes, heat):
                self._kept.take(changes)
                looked = False

    def _accepted(self, changes: Changes, heat: float) -> bool:
        cost = self._simulator.cost
        allowed = -heat * math.log(1 - self._rng.random()) if heat > 0 else 0.0
        found = self._simulator.judge(changes, None if cost[0] else cost[1] + int(allowed) + 1)
        return found[0] < cost[0] or (found[0] == cost[0] and found[1] - cost[1] <= allowed)

    def _descend(self, until: int) -> None:
        """First improvement over all changes of one decision, tensor by tensor, until none is
        better.
        """
        self._kept.back()
        simulator, moves = self._simulator, self._moves
        tensors = sorted(moves.gaps)
        improved = True
        while improved and not self._kept.at_floor:
            improved = False
            self._rng.shuffle(tensors)
            lines = moves.queues(simulator.choices)
            for t in tensors:
                neighbours = list(moves.neighbours(simulator.choices, moves.gaps[t], lines))
                simulator.work += _OF_A_NEIGHBOUR * len(neighbours)
                self._rng.shuffle(neighbours)
                for changes in neighbours:
                    if simulator.work >= until:
                        return
                    if self._kept.better(changes):
                        improved = True
                        break
                if improved:
                    break
