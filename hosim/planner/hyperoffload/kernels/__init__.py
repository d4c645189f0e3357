"""What of the planner's search is compiled: pure functions over integers in arrays."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.planner.hyperoffload.kernels._forms import form_of
    from hosim.planner.hyperoffload.kernels.choice_search import ChoiceSearch
    from hosim.planner.hyperoffload.kernels.gap_judging import (
        BEST,
        LOOKED,
        NO_RETURN,
        PARTS,
        PRESENT,
        SHARE,
        STALL_WEIGHT,
    )
    from hosim.planner.hyperoffload.kernels.gap_sweep import GapSweep
    from hosim.planner.hyperoffload.kernels.lowered_choices import (
        AT_HOME,
        AWAY,
        BELOW_IN,
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
        LoweredChoices,
    )
    from hosim.planner.hyperoffload.kernels.rerun_walk import RerunWalk
    from hosim.planner.hyperoffload.kernels.returns_ahead import ReturnsAhead
    from hosim.planner.hyperoffload.kernels.stall_changes import SHARES
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "_forms": "form_of",
            "lowered_choices": "AT_HOME AWAY BELOW_IN LEAVE RETURN SAVE SAVE_TURN START "
            "STARTS_BELOW STAYS STORE STORE_TURN TIER TURN UNSET WITH_COPY "
            "LoweredChoices",
            "gap_judging": "BEST LOOKED NO_RETURN PARTS PRESENT SHARE STALL_WEIGHT",
            "gap_sweep": "GapSweep",
            "rerun_walk": "RerunWalk",
            "choice_search": "ChoiceSearch",
            "stall_changes": "SHARES",
            "returns_ahead": "ReturnsAhead",
        },
    )

__all__ = [
    "AT_HOME", "AWAY", "BELOW_IN", "BEST", "LEAVE", "LOOKED", "NO_RETURN", "PARTS", "PRESENT",
    "RETURN", "SAVE", "SAVE_TURN", "SHARE", "SHARES", "STALL_WEIGHT", "START",
    "STARTS_BELOW", "STAYS", "STORE", "STORE_TURN", "TIER", "TURN", "UNSET", "WITH_COPY",
    "ChoiceSearch", "GapSweep", "LoweredChoices", "RerunWalk", "ReturnsAhead", "form_of",
]  # fmt: skip
