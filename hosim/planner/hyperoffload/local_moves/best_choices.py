"""The best choices of a search while the simulator keeps the present ones, which may be worse."""

from __future__ import annotations

from hosim.planner.hyperoffload.local_moves.choice_moves import Changes
from hosim.planner.hyperoffload.local_moves.plan_simulator import PlanSimulator, SimulatedCost
from hosim.planner.hyperoffload.tensor_choices import Choices, TensorChoice


class BestChoices:
    """Begins with ``choices``; ``cost`` is that of the best ones, and no plan takes less than
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
        """What tensors did in the best choices, where that is not what they do now."""

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

    def better(self, changes: Changes) -> bool:
        """Take changes of the best choices if they are better."""
        found: SimulatedCost = self.simulator.judge(
            changes, None if self.cost[0] else self.cost[1] + 1
        )
        if found < self.cost:
            self.take(changes)
            return True
        return False
