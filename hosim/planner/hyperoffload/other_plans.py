"""The plans of others beside the planner's own, replayed as they come: only those that their transfers alone leave a chance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice

from hosim.cache_plan import Plan
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.planner.hyperoffload.soonest_end import soonest_end_ns
from hosim.planner.hyperoffload.tensor_choices import Evaluation, Evaluator, PlanCost, moved_bytes

Others = Callable[[Graph, Hardware, int, Callable[[], int | None], bool], Iterable[tuple[str, Plan | None]]]
"""Plans of other origin for a graph, a machine and a budget, each with its name: static ones, which the planner replays. None stands for a
plan that need not be made, since it would take longer than what there is to beat.

Then come what says the makespan in nanoseconds that they have to beat by now (None: nothing fits so far), and whether waits are left, so
that it pays to look further than at the most likely ones.
"""


class OtherPlans:
    """The plans of others, in their order; each is made when it is asked for, and replayed once.

    ``tried`` are the names of those that were asked for, ``name`` is that of the best (empty: none was better than the planner's own).
    """

    def __init__(self, evaluate: Evaluator, others: Others) -> None:
        self.tried: list[str] = []
        self.name = ""
        self._evaluate = evaluate
        self._others = others
        self._plans: Iterator[tuple[str, Plan | None]] | None = None
        self._best: Evaluation | None = None

    def first(self, count: int) -> Evaluation | None:
        """The best of the first ``count``, which take no sweep either; none if nothing fits. They are asked for where ops wait."""
        self._ask(waits=True, count=count)
        return self._best

    def best(self, own: Evaluation, *, waits: bool) -> Evaluation:
        """The best of ``own``, what was replayed before, and all that are left; ``waits`` as :data:`Others` have it."""
        if self._best is None or (own is not self._best and not self._best.cost < own.cost):
            self._best, self.name = own, ""
        self._ask(waits=waits, count=None)
        return self._best

    def _ask(self, *, waits: bool, count: int | None) -> None:
        if self._plans is None:
            problem = self._evaluate.problem
            self._plans = iter(self._others(problem.graph, problem.hardware, self._evaluate.budget_bytes, self._to_beat_ns, waits))
        for name, other in islice(self._plans, count):
            self.tried.append(name)
            if other is not None and self._may_win(other):
                outcome = self._evaluate.plan(replace(other, policy=self._evaluate.policy))
                if self._best is None or outcome.cost < self._best.cost:
                    self._best, self.name = outcome, name

    def _to_beat_ns(self) -> int | None:
        return None if self._best is None else self._best.result.makespan_ns

    def _may_win(self, other: Plan) -> bool:
        if self._best is None:
            return True
        return PlanCost(False, soonest_end_ns(other, self._evaluate.problem.hardware), moved_bytes(other)) < self._best.cost
