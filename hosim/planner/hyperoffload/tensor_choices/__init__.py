"""The planner's decisions: the gaps of each tensor, a choice for each, the plan that choices make,
and its cost.
"""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.planner.hyperoffload.tensor_choices.channel_reservations import (
        least_size_that_counts,
        left_rates,
        timelines,
    )
    from hosim.planner.hyperoffload.tensor_choices.choices import (
        BELOW,
        COPY,
        HOME,
        RANK,
        Choices,
        TensorChoice,
        everything,
        initial_tiers,
        insert,
        moves_of,
    )
    from hosim.planner.hyperoffload.tensor_choices.choices_of_plan import choices_of
    from hosim.planner.hyperoffload.tensor_choices.evaluation import (
        Evaluation,
        Evaluator,
        Judge,
        PlanCost,
        WorkDone,
        moved_bytes,
        of_all_devices,
        of_another,
        plan_cost,
        work_of,
    )
    from hosim.planner.hyperoffload.tensor_choices.gap_columns import TensorColumns
    from hosim.planner.hyperoffload.tensor_choices.problem import (
        Problem,
        analyse,
        check_floor,
        unhindered,
        with_gaps_between_neighbours,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "channel_reservations": "least_size_that_counts left_rates timelines",
            "choices": "BELOW COPY Choices HOME RANK TensorChoice everything initial_tiers insert "
            "moves_of",
            "choices_of_plan": "choices_of",
            "evaluation": "Evaluation Evaluator Judge PlanCost WorkDone moved_bytes "
            "of_all_devices of_another plan_cost work_of",
            "gap_columns": "TensorColumns",
            "problem": "Problem analyse check_floor unhindered with_gaps_between_neighbours",
        },
    )

__all__ = [
    "BELOW", "COPY", "HOME", "RANK", "Choices", "Evaluation", "Evaluator", "Judge",
    "PlanCost", "Problem", "TensorChoice", "TensorColumns", "WorkDone", "analyse", "check_floor",
    "choices_of", "everything", "initial_tiers", "insert", "least_size_that_counts", "left_rates",
    "moved_bytes", "moves_of", "of_all_devices", "of_another", "plan_cost", "timelines",
    "unhindered", "with_gaps_between_neighbours", "work_of",
]  # fmt: skip
