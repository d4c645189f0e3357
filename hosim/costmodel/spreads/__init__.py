"""Describe how far real times spread about the model's, and intervals of makespans."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.costmodel.spreads.fitted_spreads import GAP_NS, SHARED, SPREADS, STEP_SHARE
    from hosim.costmodel.spreads.intervals import interval, makespan_interval, makespan_spread
    from hosim.costmodel.spreads.time_spread import (
        ATTENTION,
        COLLECTIVES,
        OTHER_MODEL,
        OTHERS,
        PRODUCTS,
        Spreads,
        StreamSpread,
        StreamTimes,
        pooled,
        stream_times,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "fitted_spreads": "GAP_NS SHARED SPREADS STEP_SHARE",
            "intervals": "interval makespan_interval makespan_spread",
            "time_spread": "ATTENTION COLLECTIVES OTHERS OTHER_MODEL PRODUCTS Spreads "
            "StreamSpread StreamTimes pooled stream_times",
        },
    )

__all__ = [
    "ATTENTION", "COLLECTIVES", "GAP_NS", "OTHERS", "OTHER_MODEL", "PRODUCTS", "SHARED", "SPREADS",
    "STEP_SHARE", "Spreads", "StreamSpread", "StreamTimes", "interval", "makespan_interval",
    "makespan_spread", "pooled", "stream_times",
]  # fmt: skip
