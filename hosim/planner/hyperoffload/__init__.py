"""HyperOffload's refinement: candidates, selection, placement, local search, and the loop that
keeps the budget.
"""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.planner.hyperoffload.arms import spreading, stretched, sweeping, swept
    from hosim.planner.hyperoffload.gap_figures import GapFigures, gap_figures
    from hosim.planner.hyperoffload.judged_gaps import (
        STARTS_BELOW,
        GapScore,
        JudgedGap,
        judged_gaps,
    )
    from hosim.planner.hyperoffload.judgement import (
        EVERYTHING,
        LOCAL_SEARCH,
        RIVAL,
        SELECTION,
        Judgement,
    )
    from hosim.planner.hyperoffload.least_traffic import (
        least_traffic,
        nearer_tiers,
        with_least_traffic,
    )
    from hosim.planner.hyperoffload.pipeline import plan, search
    from hosim.planner.hyperoffload.search import Arm, Found, PlannedGraph, Search
    from hosim.planner.hyperoffload.selection import Selection, select, uses_gap
    from hosim.planner.hyperoffload.soonest_end import soonest_end_ns
    from hosim.planner.hyperoffload.sweep_cells import Weights
    from hosim.planner.hyperoffload.unneeded_moves import without_unneeded
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "arms": "spreading stretched sweeping swept",
            "gap_figures": "GapFigures gap_figures",
            "judged_gaps": "GapScore JudgedGap STARTS_BELOW judged_gaps",
            "judgement": "EVERYTHING Judgement LOCAL_SEARCH RIVAL SELECTION",
            "least_traffic": "least_traffic nearer_tiers with_least_traffic",
            "pipeline": "plan search",
            "search": "Arm Found PlannedGraph Search",
            "selection": "Selection select uses_gap",
            "soonest_end": "soonest_end_ns",
            "sweep_cells": "Weights",
            "unneeded_moves": "without_unneeded",
        },
    )

__all__ = [
    "EVERYTHING", "LOCAL_SEARCH", "RIVAL", "SELECTION", "STARTS_BELOW", "Arm", "Found",
    "GapFigures", "GapScore", "JudgedGap", "Judgement", "PlannedGraph", "Search", "Selection",
    "Weights", "gap_figures", "judged_gaps", "least_traffic", "nearer_tiers", "plan", "search",
    "select", "soonest_end_ns", "spreading", "stretched", "sweeping", "swept", "uses_gap",
    "with_least_traffic", "without_unneeded",
]  # fmt: skip
