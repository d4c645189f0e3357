"""The planner's decisions: the gaps of each tensor, its choice, the plan made from all choices, and
the cost of that plan.
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
        Choices,
        TensorChoice,
        everything,
    )
    from hosim.planner.hyperoffload.tensor_choices.choices_of_plan import choices_of
    from hosim.planner.hyperoffload.tensor_choices.evaluation import (
        Evaluation,
        Evaluator,
        Judge,
        PlanCost,
        WorkDone,
        of_all_devices,
        of_another,
        plan_cost,
        work_of,
    )
    from hosim.planner.hyperoffload.tensor_choices.gap_columns import TensorColumns
    from hosim.planner.hyperoffload.tensor_choices.lowering import (
        STARTS,
        ChoiceCoding,
        SlotColumns,
        insert,
        lowering_cells,
    )
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
            "choices": "BELOW COPY Choices HOME TensorChoice everything",
            "choices_of_plan": "choices_of",
            "evaluation": "Evaluation Evaluator Judge PlanCost WorkDone "
            "of_all_devices of_another plan_cost work_of",
            "gap_columns": "TensorColumns",
            "lowering": "ChoiceCoding STARTS SlotColumns insert lowering_cells",
            "problem": "Problem analyse check_floor unhindered with_gaps_between_neighbours",
        },
    )

__all__ = [
    "BELOW", "COPY", "HOME", "STARTS", "ChoiceCoding", "Choices", "Evaluation", "Evaluator", "Judge",
    "PlanCost", "Problem", "SlotColumns", "TensorChoice", "TensorColumns", "WorkDone", "analyse",
    "check_floor", "choices_of", "everything", "insert", "least_size_that_counts", "left_rates",
    "lowering_cells", "of_all_devices", "of_another", "plan_cost", "timelines",
    "unhindered", "with_gaps_between_neighbours", "work_of",
]  # fmt: skip
