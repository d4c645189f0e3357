"""Tables, figures and pages of serving."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.serving.report.serving_figures import curves, queue_growth, serving_figure
    from hosim.serving.report.serving_page import serving_page, serving_widget
    from hosim.serving.report.serving_studies_table import (
        serving_fit,
        serving_fit_answer,
        serving_frontier,
        serving_frontier_answer,
        serving_sweep,
        serving_sweep_answer,
    )
    from hosim.serving.report.serving_table import serving, serving_answer, tiers_and_channels
    from hosim.serving.report.serving_trace import serving_trace
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "serving_figures": "curves queue_growth serving_figure",
            "serving_page": "serving_page serving_widget",
            "serving_studies_table": "serving_fit serving_fit_answer serving_frontier "
            "serving_frontier_answer serving_sweep serving_sweep_answer",
            "serving_table": "serving serving_answer tiers_and_channels",
            "serving_trace": "serving_trace",
        },
    )

__all__ = [
    "curves", "queue_growth", "serving", "serving_answer", "serving_figure", "serving_fit",
    "serving_fit_answer", "serving_frontier", "serving_frontier_answer", "serving_page",
    "serving_sweep", "serving_sweep_answer", "serving_trace", "serving_widget", "tiers_and_channels",
]  # fmt: skip
