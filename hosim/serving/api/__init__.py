"""The serving functions that ``import hosim`` offers: requests and an engine in; the served
requests and pandas frames out.
"""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.serving.api.serve_setup import ServeSetup, read_setup
    from hosim.serving.api.serving_points import COLUMNS, FIGURES, check_options
    from hosim.serving.api.serving_run import in_draw, serve, served
    from hosim.serving.api.serving_studies import (
        COSTS,
        RATES,
        seed_percentiles,
        serve_fit,
        serve_frontier,
        serve_sweep,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "serve_setup": "ServeSetup read_setup",
            "serving_points": "COLUMNS FIGURES check_options",
            "serving_run": "in_draw serve served",
            "serving_studies": "COSTS RATES seed_percentiles serve_fit serve_frontier serve_sweep",
        },
    )

__all__ = [
    "COLUMNS", "COSTS", "FIGURES", "RATES", "ServeSetup", "check_options", "in_draw",
    "read_setup", "seed_percentiles", "serve", "serve_fit",
    "serve_frontier", "serve_sweep", "served",
]  # fmt: skip
