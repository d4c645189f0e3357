"""What of the planner's search is compiled: pure functions over integers in arrays."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
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
    from hosim.planner.hyperoffload.kernels.choice_search import ChoiceSearch
    from hosim.planner.hyperoffload.kernels.stall_changes import SHARES
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "choice_cells": "AT_HOME AWAY BELOW_IN ChoiceCells FIELDS LEAVE RETURN SAVE SAVE_TURN START "
            "STARTS_BELOW STAYS STORE STORE_TURN TIER TURN UNSET WITH_COPY",
            "choice_search": "ChoiceSearch",
            "stall_changes": "SHARES",
        },
    )

__all__ = [
    "AT_HOME", "AWAY", "BELOW_IN", "FIELDS", "LEAVE", "RETURN", "SAVE", "SAVE_TURN", "SHARES",
    "START", "STARTS_BELOW", "STAYS", "STORE", "STORE_TURN", "TIER", "TURN", "UNSET", "WITH_COPY",
    "ChoiceCells", "ChoiceSearch",
]  # fmt: skip
