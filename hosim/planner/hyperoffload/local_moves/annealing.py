"""Simulated annealing over all decisions of a small graph, and a descent from the best there is after each round.

Changes of any decision (:mod:`hosim.planner.hyperoffload.local_moves.choice_moves`), or around what waits
(:mod:`hosim.planner.hyperoffload.local_moves.stall_moves`), are judged by the simulator of plans. Annealing (Kirkpatrick, Gelatt and Vecchi
1983) takes a worse one with a probability that falls with what it loses and with time, since what helps is often two or three changes that
each alone do not. Every other round is over the order of returns alone, each of them as early as there is room
(:mod:`hosim.planner.hyperoffload.choice_passes.ordered_returns`).
"""

from __future__ import annotations

import math
import random
from collections import ChainMap
from collections.abc import Callable

from hosim.planner.hyperoffload.choice_passes import OrderedReturns
from hosim.planner.hyperoffload.local_moves.best_choices import BestChoices
from hosim.planner.hyperoffload.local_moves.choice_moves import Changes, ChoiceMoves
from hosim.planner.hyperoffload.local_moves.plan_simulator import WORK_OF_A_JUDGEMENT, SimulatedCost
from hosim.planner.hyperoffload.local_moves.remembered_costs import RememberedCosts
from hosim.planner.hyperoffload.local_moves.stall_moves import StallMoves
from hosim.planner.hyperoffload.tensor_choices import Choices, TensorChoice

_HEATS = (0.6, 1.0, 1.0, 1.0, 1.0, 0.6, 0.6, 0.3)
"""Temperature at the start of each round, in mean op durations; what one heat misses another finds."""
_ROUND = 80
"""Judgements of whole runs that a round has at least: with little work to spend there are fewer rounds."""
_AGAIN = (1, 2, 3, 4, 5)
"""The rounds that begin from other choices than the best: where these are a trap, no change of two decisions leads out of it."""
_ORDERED = (0, 2, 4, 6)
"""The rounds that search over the order of returns, each as early as there is room."""
_OTHERS = 12
"""Other choices of which such a round takes the best."""
_NEVER = 1 << 62
_NEAR = 0.5
"""How often a change is drawn where ops wait."""


Restart = Callable[[random.Random], Choices]
"""Gives other choices to begin from, at random."""


class Annealing:
    """Searches from ``choices`` on until ``work`` is spent, and from others that ``restart`` gives; none can beat ``floor_ns``."""

    def __init__(
        self,
        simulator: RememberedCosts,
        choices: Choices,
        floor_ns: int,
        work: int,
        seed: int,
        restart: Restart | None = None,
    ) -> None:
        self.simulator = simulator
        self.work = work
        self.restart = restart
        self.rng = random.Random(seed)
        problem = simulator.problem
        self.moves = ChoiceMoves(problem, simulator.tiers)
        self.near = StallMoves(simulator, self.rng, 1)
        self.gaps = [gap for t in sorted(self.moves.gaps) for gap in self.moves.gaps[t]]
        self.mean_ns = sum(problem.durations) / max(1, len(problem.durations))
        self.kept = BestChoices(simulator, choices, floor_ns)
        self.descended: SimulatedCost | None = None
        """The cost of the best choices when no change of one decision was better."""
        self.until = simulator.work + work

    @property
    def done(self) -> bool:
        """Whether nothing better can be, or all is spent."""
        return self.simulator.work >= self.until or self.kept.at_floor

    def run(self) -> Choices:
        """The best choices when all is spent."""
        if not self.gaps:
            return self.kept.best()
        begin, whole = self.simulator.work, self.kept.whole
        heats = _HEATS[: max(2, self.work // (_ROUND * (whole + WORK_OF_A_JUDGEMENT)))]
        for k, heat in enumerate(heats, 1):
            if self.done:
                break
            self.kept.back()
            if k - 1 in _AGAIN and self.restart is not None and self.work > 4 * len(_HEATS) * _OTHERS * whole:
                self.elsewhere(self.restart)
            ordered = OrderedReturns(self.simulator.problem, self.simulator.budget_bytes) if k - 1 in _ORDERED else None
            self.anneal(heat, begin + self.work * k // len(heats), ordered)
            self.descend()
        self.kept.tidy(self.moves, sorted(self.simulator.choices), self.until + self.work)
        return self.kept.best()

    def settled(self, ordered: OrderedReturns, changes: Changes) -> dict[int, TensorChoice | None]:
        """The present choices with changes, all returns as early as there is room, as changes."""
        present = self.simulator.choices
        wanted = {t: choice for t, choice in {**present, **changes}.items() if choice is not None}
        found = ordered(wanted)
        return {t: found.get(t) for t in {**present, **found} if found.get(t) != present.get(t)}

    def anneal(self, hot: float, until: int, ordered: OrderedReturns | None = None) -> None:
        """From the present choices on, cooling down from ``hot`` mean op durations until so much work is spent.

        With ``ordered`` all returns are as early as there is room, after each change.
        """
        rng, simulator, gaps = self.rng, self.simulator, self.gaps
        begin = simulator.work
        span = max(1, until - begin)
        looked = False
        while simulator.work < until and not self.done:
            if rng.random() < _NEAR:
                if not looked:
                    self.near.look()
                    looked = True
                changes = dict(self.near.draw())
            else:
                changes = dict(self.moves.random(rng, simulator.choices, rng.choice(gaps), gaps))
            if rng.random() < 0.3:
                present: ChainMap[int, TensorChoice | None] = ChainMap(changes, simulator.choices)  # type: ignore[arg-type]
                changes |= self.moves.random(rng, present, rng.choice(gaps), gaps)
            if ordered is not None:
                changes = self.settled(ordered, changes)
            cost = simulator.cost
            heat = hot * self.mean_ns * (1 - (simulator.work - begin) / span) ** 2
            allowed = -heat * math.log(1 - rng.random()) if heat > 0 else 0.0
            limit = None if cost[0] else cost[1] + int(allowed) + 1
            found = simulator.judge(changes, limit)
            loss = found[1] - cost[1] if found[0] == cost[0] else _NEVER * (found[0] - cost[0])
            if loss <= allowed and loss < 30 * max(heat, 1):
                self.kept.take(changes)
                looked = False

    def elsewhere(self, restart: Restart) -> None:
        """Begin from the best of some other choices."""
        found: tuple[SimulatedCost, Changes] | None = None
        present = self.simulator.choices
        for _ in range(_OTHERS):
            other = restart(self.rng)
            changes = {t: other.get(t) for t in sorted({*present, *other}) if other.get(t) != present.get(t)}
            cost = self.simulator.judge(changes)
            if changes and (found is None or cost < found[0]):
                found = cost, changes
        if found is not None:
            self.kept.take(found[1])

    def descend(self) -> None:
        """First improvement over all changes of one decision, until none is better; the same choices are not gone over twice."""
        self.kept.back()
        improved = self.kept.cost != self.descended
        while improved and not self.done:
            improved = False
            neighbours = list(self.moves.neighbours(self.simulator.choices, self.gaps))
            self.rng.shuffle(neighbours)
            for changes in neighbours:
                improved = self.kept.better(changes)
                if improved or self.simulator.work >= self.until:
                    break
            else:
                self.descended = self.kept.cost
