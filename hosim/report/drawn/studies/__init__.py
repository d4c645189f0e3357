"""Figures of several replays: comparisons, frontiers, sweeps, fits, and runs with varied times."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.report.drawn.studies.study_figures import (
        comparison_figure,
        curve_figure,
        frontier,
        frontier_figure,
        spread_figure,
        sweep_figure,
        sweep_heat_map,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "study_figures": "comparison_figure curve_figure frontier frontier_figure spread_figure "
            "sweep_figure sweep_heat_map",
        },
    )

__all__ = [
    "comparison_figure", "curve_figure", "frontier", "frontier_figure", "spread_figure",
    "sweep_figure", "sweep_heat_map",
]  # fmt: skip
