"""Rewrites of the graph that a plan may make: another order of its ops, and ops that run again
instead of moving data.
"""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.planner.rewrites.graph_rewrites import Variants, carried, rewriting
    from hosim.planner.rewrites.processor_choice import (
        edits_tried,
        groups_of,
        halfway,
        updated_in_place,
    )
    from hosim.planner.rewrites.recompute import (
        Candidate,
        Checkpoints,
        Reruns,
        candidates,
        cheapest,
        recomputes,
    )
    from hosim.planner.rewrites.reorder import eager, reorder
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "graph_rewrites": "Variants carried rewriting",
            "processor_choice": "edits_tried groups_of halfway updated_in_place",
            "recompute": "Candidate Reruns Checkpoints candidates cheapest recomputes",
            "reorder": "eager reorder",
        },
    )

__all__ = [
    "Candidate", "Checkpoints", "Reruns", "Variants", "candidates", "carried", "cheapest", "eager",
    "edits_tried", "groups_of", "halfway", "recomputes", "reorder", "rewriting",
    "updated_in_place",
]  # fmt: skip
