"""Analyses of a graph, a plan or a result that need no replay."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.analysis.canonical import (
        ascend,
        canonical,
        canonical_places,
        digest,
        graph_fingerprint,
        inverse,
        plan_fingerprint,
    )
    from hosim.analysis.gaps import Gap, initial_set, tensor_gaps
    from hosim.analysis.happens_before import HappensBefore
    from hosim.analysis.liveness import (
        USUAL_DEVICE_TIER,
        StaticPeak,
        held_from_to,
        held_while,
        homes_below,
        idle_below,
        largest_op,
        needed_bytes,
        static_curve,
        static_peak,
    )
    from hosim.analysis.pressure_points import excess_of
    from hosim.analysis.stage_messages import StageExchange, bubbles, exchanges
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "canonical": "ascend canonical canonical_places digest graph_fingerprint inverse "
            "plan_fingerprint",
            "gaps": "Gap initial_set tensor_gaps",
            "happens_before": "HappensBefore",
            "liveness": "StaticPeak USUAL_DEVICE_TIER held_from_to held_while homes_below idle_below "
            "largest_op needed_bytes static_curve static_peak",
            "pressure_points": "excess_of",
            "stage_messages": "StageExchange bubbles exchanges",
        },
    )

__all__ = [
    "USUAL_DEVICE_TIER", "Gap", "HappensBefore", "StageExchange", "StaticPeak", "ascend",
    "bubbles", "canonical", "canonical_places", "digest", "excess_of", "exchanges",
    "graph_fingerprint", "held_from_to", "held_while", "homes_below", "idle_below", "initial_set",
    "inverse", "largest_op", "needed_bytes", "plan_fingerprint", "static_curve", "static_peak",
    "tensor_gaps",
]  # fmt: skip
