"""Local search: one choice changed at a time, judged by a simulator of plans, for as long as its work lasts."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.planner.hyperoffload.local_moves.alike_descent import descend
    from hosim.planner.hyperoffload.local_moves.best_choices import BestChoices
    from hosim.planner.hyperoffload.local_moves.choice_moves import Changes, ChoiceMoves
    from hosim.planner.hyperoffload.local_moves.local_search import improve
    from hosim.planner.hyperoffload.local_moves.many_starts import FEW, ManyStarts, Restarts
    from hosim.planner.hyperoffload.local_moves.plan_simulator import PlanSimulator
    from hosim.planner.hyperoffload.local_moves.remembered_costs import RememberedCosts
    from hosim.planner.hyperoffload.local_moves.replayed_choices import ReplayedChoices
    from hosim.planner.hyperoffload.local_moves.stall_moves import StallMoves
    from hosim.planner.hyperoffload.local_moves.stall_search import SMALL, StallSearch
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "alike_descent": "descend",
            "best_choices": "BestChoices",
            "choice_moves": "Changes ChoiceMoves",
            "local_search": "improve",
            "many_starts": "FEW ManyStarts Restarts",
            "plan_simulator": "PlanSimulator",
            "remembered_costs": "RememberedCosts",
            "replayed_choices": "ReplayedChoices",
            "stall_moves": "StallMoves",
            "stall_search": "SMALL StallSearch",
        },
    )

__all__ = [
    "FEW", "SMALL", "BestChoices", "Changes", "ChoiceMoves", "ManyStarts", "PlanSimulator", "RememberedCosts", "ReplayedChoices",
    "Restarts", "StallMoves", "StallSearch", "descend", "improve",
]  # fmt: skip
