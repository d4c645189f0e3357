"""HyperOffload's refinement: candidates, selection, placement, local search, and the loop that keeps the budget."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.planner.hyperoffload.arms import stretched, swept
    from hosim.planner.hyperoffload.explain import (
        FROM_HOME,
        NO_PLACE,
        REASONS,
        SEARCH_KEPT,
        SEARCH_MOVED,
        UNJUDGED_KEPT,
        UNJUDGED_MOVED,
        Explanation,
        Line,
        Region,
        explain,
        signed_time,
    )
    from hosim.planner.hyperoffload.gap_figures import GapFigures, gap_figures
    from hosim.planner.hyperoffload.gap_scoring import GapScore, Weights
    from hosim.planner.hyperoffload.judged_gaps import STARTS_BELOW, JudgedGap, judged_gaps
    from hosim.planner.hyperoffload.judgement import EVERYTHING, LOCAL_SEARCH, RIVAL, Judgement
    from hosim.planner.hyperoffload.observed import ObservedTransfer
    from hosim.planner.hyperoffload.pipeline import plan, search
    from hosim.planner.hyperoffload.search import Arm, Found, PlannedGraph, Search
    from hosim.planner.hyperoffload.selection import select
    from hosim.planner.hyperoffload.soonest_end import moving_ns, soonest_end_ns
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "arms": "stretched swept",
            "explain": "Explanation FROM_HOME Line NO_PLACE REASONS Region SEARCH_KEPT SEARCH_MOVED UNJUDGED_KEPT "
            "UNJUDGED_MOVED explain signed_time",
            "gap_figures": "GapFigures gap_figures",
            "gap_scoring": "GapScore Weights",
            "judged_gaps": "JudgedGap STARTS_BELOW judged_gaps",
            "judgement": "EVERYTHING Judgement LOCAL_SEARCH RIVAL",
            "observed": "ObservedTransfer",
            "pipeline": "plan search",
            "search": "Arm Found PlannedGraph Search",
            "selection": "select",
            "soonest_end": "moving_ns soonest_end_ns",
        },
    )

__all__ = [
    "EVERYTHING",
    "FROM_HOME",
    "LOCAL_SEARCH",
    "NO_PLACE",
    "REASONS",
    "RIVAL",
    "SEARCH_KEPT",
    "SEARCH_MOVED",
    "STARTS_BELOW",
    "UNJUDGED_KEPT",
    "UNJUDGED_MOVED",
    "Arm",
    "Explanation",
    "Found",
    "GapFigures",
    "GapScore",
    "JudgedGap",
    "Judgement",
    "Line",
    "ObservedTransfer",
    "PlannedGraph",
    "Region",
    "Search",
    "Weights",
    "explain",
    "gap_figures",
    "judged_gaps",
    "moving_ns",
    "plan",
    "search",
    "select",
    "signed_time",
    "soonest_end_ns",
    "stretched",
    "swept",
]  # fmt: skip
