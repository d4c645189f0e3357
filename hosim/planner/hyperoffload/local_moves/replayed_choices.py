"""What choices cost, by the engine: in the place of the plan simulator on small graphs whose tensors take several channels."""

from __future__ import annotations

from collections.abc import Sequence

from hosim.engine import replay
from hosim.planner.hyperoffload.local_moves.choice_moves import Changes
from hosim.planner.hyperoffload.local_moves.plan_simulator import SimulatedCost
from hosim.planner.hyperoffload.tensor_choices import Choices, Problem, TensorChoice, insert, plan_cost

_WORK_OF_AN_OP = 10
"""What a replay takes for each op, in instants of the simulator."""


class ReplayedChoices:
    """Judges choices by whole replays, as :class:`~hosim.planner.hyperoffload.local_moves.PlanSimulator` does by simulation."""

    def __init__(self, problem: Problem, budget_bytes: int) -> None:
        self.problem = problem
        self.budget_bytes = budget_bytes
        self.tiers: Sequence[str] = [tier.name for tier in problem.below]
        self.choices: dict[int, TensorChoice] = {}
        self.cost: SimulatedCost = (1, 0, 0)
        self.work = 0
        self._last: tuple[Changes, SimulatedCost] = ({}, self.cost)

    def begin(self, choices: Choices) -> SimulatedCost:
        """Replay choices, and keep them as the best."""
        self.choices = dict(choices)
        self.cost = self._replayed(choices)
        return self.cost

    def judge(self, changes: Changes, limit_ns: int | None = None) -> SimulatedCost:
        """The cost of the best choices with these changes, whatever the limit."""
        cost = self._replayed(self._with(changes)) if changes else self.cost
        self._last = changes, cost
        return cost

    def accept(self, changes: Changes) -> SimulatedCost:
        """Take changes over into the best choices."""
        judged, cost = self._last
        self.cost = cost if judged is changes else self._replayed(self._with(changes))
        self.choices = self._with(changes)
        return self.cost

    def stalls(self) -> list[tuple[int, int, int]]:
        """None are told: a small graph is one window."""
        return []

    def fullest(self, after: int, before: int) -> int:
        """Not told: the op in the middle."""
        return max(0, (after + before) // 2)

    def _with(self, changes: Changes) -> dict[int, TensorChoice]:
        return {t: choice for t, choice in {**self.choices, **changes}.items() if choice is not None}

    def _replayed(self, choices: Choices) -> SimulatedCost:
        self.work += _WORK_OF_AN_OP * (1 + len(self.problem.graph.ops))
        plan = insert(self.problem, choices, "")
        cost = plan_cost(plan, replay(plan, self.problem.hardware, self.budget_bytes))
        return int(cost.infeasible), cost.makespan_ns, cost.moved_bytes
