"""The reasons why each tensor moves or stays: what the planner judged, and what the replay of the
plan shows.
"""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.planner.hyperoffload.explanations.explain import (
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
    from hosim.planner.hyperoffload.explanations.observed import ObservedTransfer
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "explain": "Explanation FROM_HOME Line NO_PLACE REASONS Region SEARCH_KEPT "
            "SEARCH_MOVED UNJUDGED_KEPT "
            "UNJUDGED_MOVED explain signed_time",
            "observed": "ObservedTransfer",
        },
    )

__all__ = [
    "FROM_HOME", "NO_PLACE", "REASONS", "SEARCH_KEPT", "SEARCH_MOVED", "UNJUDGED_KEPT",
    "UNJUDGED_MOVED", "Explanation", "Line", "ObservedTransfer", "Region", "explain", "signed_time",
]  # fmt: skip
