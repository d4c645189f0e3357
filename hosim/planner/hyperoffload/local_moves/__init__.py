"""Local search: one choice changed at a time, judged by a simulator of plans, for as long as its
work lasts.
"""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.planner.hyperoffload.local_moves.choice_arrays import ChoiceArrays
    from hosim.planner.hyperoffload.local_moves.choice_moves import Changes, ChoiceMoves
    from hosim.planner.hyperoffload.local_moves.local_search import LocalSearch
    from hosim.planner.hyperoffload.local_moves.plan_simulator import PlanSimulator
    from hosim.planner.hyperoffload.local_moves.stall_moves import StallMoves
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "choice_arrays": "ChoiceArrays",
            "choice_moves": "Changes ChoiceMoves",
            "local_search": "LocalSearch",
            "plan_simulator": "PlanSimulator",
            "stall_moves": "StallMoves",
        },
    )

__all__ = [
    "Changes",
    "ChoiceArrays",
    "ChoiceMoves",
    "LocalSearch",
    "PlanSimulator",
    "StallMoves",
]
