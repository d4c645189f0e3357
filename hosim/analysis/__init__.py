"""What can be said of a graph, a plan or a result without running a replay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.analysis.any_processor import durations_by_processor
    from hosim.analysis.bounded_result import bound_of_result_ns, bounded
    from hosim.analysis.bounds import LowerBounds, lower_bound_ns
    from hosim.analysis.canonical import ascend, canonical, canonical_places, digest, graph_fingerprint, inverse, plan_fingerprint
    from hosim.analysis.edited_curve import Numbers, edited_curve
    from hosim.analysis.finding import Finding
    from hosim.analysis.free_order_bound import free_order_bound_ns
    from hosim.analysis.gaps import Gap, initial_set, tensor_gaps
    from hosim.analysis.happens_before import HappensBefore
    from hosim.analysis.liveness import USUAL_DEVICE_TIER, idle_below, largest_op, needed_bytes, static_curve, static_peak
    from hosim.analysis.pipeline_bubble import bubbles
    from hosim.analysis.stage_messages import StageExchange, exchanges
    from hosim.analysis.verifier import verify
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "any_processor": "durations_by_processor",
            "bounded_result": "bound_of_result_ns bounded",
            "bounds": "LowerBounds lower_bound_ns",
            "canonical": "ascend canonical canonical_places digest graph_fingerprint inverse plan_fingerprint",
            "edited_curve": "Numbers edited_curve",
            "finding": "Finding",
            "free_order_bound": "free_order_bound_ns",
            "gaps": "Gap initial_set tensor_gaps",
            "happens_before": "HappensBefore",
            "liveness": "USUAL_DEVICE_TIER idle_below largest_op needed_bytes static_curve static_peak",
            "pipeline_bubble": "bubbles",
            "stage_messages": "StageExchange exchanges",
            "verifier": "verify",
        },
    )

__all__ = [
    "USUAL_DEVICE_TIER", "Finding", "Gap", "HappensBefore", "LowerBounds", "Numbers", "StageExchange", "ascend", "bound_of_result_ns",
    "bounded", "bubbles", "canonical", "canonical_places", "digest", "durations_by_processor", "edited_curve", "exchanges",
    "free_order_bound_ns", "graph_fingerprint", "idle_below", "initial_set", "inverse", "largest_op", "lower_bound_ns", "needed_bytes",
    "plan_fingerprint", "static_curve", "static_peak", "tensor_gaps", "verify",
]  # fmt: skip
