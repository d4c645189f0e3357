"""What of the planner's search is compiled: pure functions over integers in arrays."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.planner.hyperoffload.kernels._forms import form_of
    from hosim.planner.hyperoffload.kernels.choice_cells import (
        AT_HOME,
        AWAY,
        BELOW_IN,
        FIELDS,
        LEAVE,
        RETURN,
        SAVE,
        SAVE_TURN,
        START,
        STARTS_BELOW,
        STAYS,
        STORE,
        STORE_TURN,
        TIER,
        TURN,
        UNSET,
        WITH_COPY,
        ChoiceCells,
    )
    from hosim.planner.hyperoffload.kernels.lowered_choices import LoweredChoices
    from hosim.planner.hyperoffload.kernels.rerun_walk import RerunWalk
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "_forms": "form_of",
            "choice_cells": "AT_HOME AWAY BELOW_IN ChoiceCells FIELDS LEAVE RETURN SAVE SAVE_TURN START "
            "STARTS_BELOW STAYS STORE STORE_TURN TIER TURN UNSET WITH_COPY",
            "lowered_choices": "LoweredChoices",
            "rerun_walk": "RerunWalk",
        },
    )

__all__ = [
    "AT_HOME", "AWAY", "BELOW_IN", "FIELDS", "LEAVE", "RETURN", "SAVE", "SAVE_TURN", "START",
    "STARTS_BELOW", "STAYS", "STORE", "STORE_TURN", "TIER", "TURN", "UNSET", "WITH_COPY",
    "ChoiceCells", "LoweredChoices", "RerunWalk", "form_of",
]  # fmt: skip
