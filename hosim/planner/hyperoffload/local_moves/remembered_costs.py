"""What choices cost that were judged before: a search over a small graph meets the same ones again and again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hosim.planner.hyperoffload.local_moves.choice_moves import Changes
from hosim.planner.hyperoffload.local_moves.plan_simulator import PlanSimulator, SimulatedCost
from hosim.planner.hyperoffload.local_moves.replayed_choices import ReplayedChoices
from hosim.planner.hyperoffload.tensor_choices import Choices, Problem, TensorChoice

_WORK = 5
"""What it takes to draw a change and to look up what it costs, in instants of the simulator."""


class RememberedCosts:
    """Judges choices by a simulator, as that does, and the same choices once."""

    def __init__(self, simulator: PlanSimulator | ReplayedChoices) -> None:
        self._simulator = simulator
        self.problem: Problem = simulator.problem
        self.budget_bytes: int = simulator.budget_bytes
        self.tiers: Sequence[str] = simulator.tiers
        self._numbers: dict[object, int] = {}
        """A number for each choice of a tensor that was seen."""
        self._present: dict[int, int] = {}
        self._known: dict[frozenset[int], tuple[SimulatedCost, bool]] = {}
        """By the numbers of all choices what they cost, and whether that is all; else they may cost more."""

    @property
    def choices(self) -> Mapping[int, TensorChoice]:
        """The present choices."""
        return self._simulator.choices

    @property
    def cost(self) -> SimulatedCost:
        """What they cost."""
        return self._simulator.cost

    @property
    def work(self) -> int:
        """What all judgements took."""
        return self._simulator.work

    def begin(self, choices: Choices) -> SimulatedCost:
        """Take choices as the present ones."""
        self._present = {t: self._number(t, choice) for t, choice in choices.items()}
        return self._simulator.begin(choices)

    def judge(self, changes: Changes, limit_ns: int | None = None) -> SimulatedCost:
        """The cost of the present choices with these changes; one that is no less than the limit may be found less than it is."""
        key = frozenset(self._with(changes).values())
        known = self._known.get(key)
        if known is not None and (known[1] or (limit_ns is not None and not self.cost[0] and known[0][1] >= limit_ns)):
            self._simulator.work += _WORK
            return known[0]
        self._simulator.work += _WORK
        found = self._simulator.judge(changes, limit_ns)
        self._known[key] = found, limit_ns is None or found[0] > 0 or found[1] < limit_ns
        return found

    def accept(self, changes: Changes) -> SimulatedCost:
        """Take changes over into the present choices."""
        self._present = self._with(changes)
        return self._simulator.accept(changes)

    def stalls(self) -> list[tuple[int, int, int]]:
        """The waits of ops with the present choices, as the simulator tells them."""
        return self._simulator.stalls()

    def fullest(self, after: int, before: int) -> int:
        """The op around which the device tier holds the most, between two ops."""
        return self._simulator.fullest(after, before)

    def _with(self, changes: Changes) -> dict[int, int]:
        present = self._present.copy()
        for t, choice in changes.items():
            if choice is None:
                present.pop(t, None)
            else:
                present[t] = self._number(t, choice)
        return present

    def _number(self, t: int, choice: TensorChoice) -> int:
        return self._numbers.setdefault((t, *choice.key()), len(self._numbers))
