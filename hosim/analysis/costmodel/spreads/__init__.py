"""The spread of real times about the model's, and draws of what is uncertain."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.analysis.costmodel.spreads.drawn_times import (
        INFERENCE,
        LARGEST_FACTOR,
        TRAINING,
        UNMEASURED_MACHINE,
        DrawnTimes,
        Factor,
        StepSpread,
        normal_draws,
    )
    from hosim.analysis.costmodel.spreads.drawn_worlds import drawn_machine, drawn_world
    from hosim.analysis.costmodel.spreads.fitted_spreads import GAP_NS, SHARED, SPREADS, STEP_SHARE
    from hosim.analysis.costmodel.spreads.time_spread import (
        ATTENTION,
        COLLECTIVES,
        OTHER_MODEL,
        OTHERS,
        PRODUCTS,
        Spreads,
        alike_ops,
        has_draws,
        pooled,
        spread_of,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "drawn_times": "DrawnTimes Factor INFERENCE LARGEST_FACTOR StepSpread TRAINING "
            "UNMEASURED_MACHINE normal_draws",
            "drawn_worlds": "drawn_machine drawn_world",
            "fitted_spreads": "GAP_NS SHARED SPREADS STEP_SHARE",
            "time_spread": "ATTENTION COLLECTIVES OTHERS OTHER_MODEL PRODUCTS Spreads alike_ops "
            "has_draws pooled spread_of",
        },
    )

__all__ = [
    "ATTENTION", "COLLECTIVES", "GAP_NS", "INFERENCE", "LARGEST_FACTOR", "OTHERS", "OTHER_MODEL",
    "PRODUCTS", "SHARED", "SPREADS", "STEP_SHARE", "TRAINING", "UNMEASURED_MACHINE", "DrawnTimes",
    "Factor", "Spreads", "StepSpread", "alike_ops", "drawn_machine", "drawn_world", "has_draws",
    "normal_draws", "pooled", "spread_of",
]  # fmt: skip
