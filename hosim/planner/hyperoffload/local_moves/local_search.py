"""Local search from some choices on: one change after the other where ops wait, drawn by how long
they do.

A change is taken if the plan is no slower. Where none has been better for a while, the search goes
back to the best choices, makes a few changes that may be a little slower, and goes on from there
(iterated local search, Lourenço, Martin and Stützle 2003): what is better than the best is often
several changes away. Changes (:mod:`hosim.planner.hyperoffload.local_moves.stall_moves`) are judged
by :mod:`hosim.planner.hyperoffload.local_moves.plan_simulator`.
"""

from __future__ import annotations

from random import Random

from hosim.planner.hyperoffload.local_moves.choice_moves import Changes
from hosim.planner.hyperoffload.local_moves.plan_simulator import PlanSimulator
from hosim.planner.hyperoffload.local_moves.stall_moves import StallMoves
from hosim.planner.hyperoffload.tensor_choices import Choices, TensorChoice, WorkDone

_STUCK = 60
"""Refused changes after which stalls no longer say where to change."""
_STALE, _LEADING, _WORSE = 100, 8, 0.01
"""After so many changes without a better plan, so many lead away from the best choices, each slower
by that part or a usual op at most.
"""
_DRAWN, _CHANGED = 40, 35
"""The work of drawing a change, and for each tensor in it."""


class BestChoices:
    """The best choices of a search while the simulator keeps the present ones, which may be worse.

    Begins with ``choices``; ``cost`` is that of the best ones, and no plan takes less than
    ``floor_ns``.

    ``whole`` is the work of a whole run.
    """

    def __init__(self, simulator: PlanSimulator, choices: Choices, floor_ns: int) -> None:
        self.simulator = simulator
        self.floor_ns = floor_ns
        begun = simulator.work
        self.cost = simulator.begin(choices)
        self.whole = simulator.work - begun
        self._undo: dict[int, TensorChoice | None] = {}
        """The choices of tensors in the best state, where they are others now."""

    def best(self) -> Choices:
        """The best choices."""
        best = {**self.simulator.choices, **self._undo}
        return {t: choice for t, choice in sorted(best.items()) if choice is not None}

    @property
    def at_floor(self) -> bool:
        """Return whether nothing better can be."""
        return not self.cost[0] and self.cost[1] <= self.floor_ns

    def take(self, changes: Changes) -> bool:
        """Make changes the present choices, and the best ones if they are; says whether they
        are.
        """
        choices = self.simulator.choices
        for t in changes:
            self._undo.setdefault(t, choices.get(t))
        found = self.simulator.accept(changes)
        if found >= self.cost:
            return False
        self.cost = found
        self._undo.clear()
        return True

    def back(self) -> None:
        """Make the best choices the present ones."""
        if self._undo:
            self.simulator.accept(dict(self._undo))
            self._undo.clear()


class LocalSearch:
    """Searches from ``choices`` on; none can beat ``floor_ns``. The same ``seed`` finds the
    same.
    """

    def __init__(
        self, simulator: PlanSimulator, choices: Choices, floor_ns: int, seed: int
    ) -> None:
        self._simulator, self._rng = simulator, Random(seed)
        begun = simulator.work
        self._kept = BestChoices(simulator, choices, floor_ns)
        self._owed = simulator.work - begun
        self._present: Choices = simulator.choices
        self._moves = StallMoves(simulator, self._rng, self._kept.whole)
        durations = simulator.problem.durations
        self._usual_ns = sum(durations) // max(1, len(durations))
        self._looked = False
        self._leading = self._stale = self._refused = 0

    @property
    def some(self) -> bool:
        """Return whether anything can be moved."""
        return self._moves.some and not self._kept.at_floor

    def best(self) -> Choices:
        """The best choices so far."""
        return self._kept.best()

    def go_on(self, work: int, spent: WorkDone) -> bool:
        """Search with so much work, which is added to what is ``spent``; says whether the best
        choices are better.
        """
        simulator, before = self._simulator, self._kept.cost
        begun = simulator.work - self._owed
        self._owed = 0
        if simulator.choices is not self._present:  # another search has used the simulator
            simulator.begin(self._present)
            self._looked = False
        while self.some and simulator.work < begun + work:
            self._step()
        self._present = simulator.choices
        spent.done += simulator.work - begun
        return self._kept.cost < before

    def _step(self) -> None:
        """Try one change."""
        kept, simulator, moves = self._kept, self._simulator, self._moves
        if not self._looked:
            moves.look()
            self._looked = True
        changes = moves.draw()
        simulator.work += _DRAWN + _CHANGED * len(changes)
        if not changes:
            return
        cost, begun = simulator.cost, simulator.work
        most = cost[1] + (max(int(_WORSE * cost[1]), self._usual_ns) if self._leading else 0)
        found = simulator.judge(changes, None if cost[0] else most + 1)
        if found[0] < cost[0]:
            taken, gain = True, 1.0
        else:
            taken = (
                found[0] == cost[0]
                and (cost[0] > 0 or found[1] <= most)  # what does not end is not sooner or later
                and (found[1] != cost[1] or self._rng.random() < 0.5)
            )
            gain = max(0.0, 1 - found[1] / cost[1]) if taken and cost[1] else 0.0
        moves.learn(gain, simulator.work - begun)
        self._stale += 1
        self._refused += 1
        if taken:
            self._leading = max(0, self._leading - 1)
            self._take(changes)
        if self._stale > _STALE:
            kept.back()
            self._stale, self._looked = 0, False
            self._leading = _LEADING
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
