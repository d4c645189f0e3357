"""Caches of experts: what they keep, and what they predict."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.planner.schedule.experts.expert_cache import (
        HOTTEST,
        KEEPS,
        LFU,
        LRU,
        PREDICTORS,
        ExpertCache,
        ExpertTable,
        Fetch,
        Predictor,
        Rule,
        expert_table,
        hottest,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "expert_cache": "ExpertCache ExpertTable Fetch HOTTEST KEEPS LFU LRU PREDICTORS "
            "Predictor Rule expert_table hottest",
        },
    )

__all__ = [
    "HOTTEST", "KEEPS", "LFU", "LRU", "PREDICTORS", "ExpertCache", "ExpertTable", "Fetch",
    "Predictor", "Rule", "expert_table", "hottest",
]  # fmt: skip
