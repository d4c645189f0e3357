"""Local search: one choice changed at a time, judged by a simulator of plans, for as long as its
work lasts.
"""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.planner.hyperoffload.local_moves.local_search import LocalSearch
    from hosim.planner.hyperoffload.local_moves.plan_simulator import PlanSimulator
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {"local_search": "LocalSearch", "plan_simulator": "PlanSimulator"},
    )

__all__ = ["LocalSearch", "PlanSimulator"]
