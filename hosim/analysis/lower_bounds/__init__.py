"""Lower bounds of makespans, whatever the plan."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.analysis.lower_bounds.any_processor import durations_by_processor
    from hosim.analysis.lower_bounds.bounded_result import bound_of_result_ns, bounded
    from hosim.analysis.lower_bounds.bounds import (
        LowerBounds,
        critical_path,
        lower_bound_ns,
        tails,
    )
    from hosim.analysis.lower_bounds.free_order_bound import free_order_bound_ns, step_traffic_ns
    from hosim.analysis.lower_bounds.processor_bound import processor_bound_ns
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "any_processor": "durations_by_processor",
            "bounded_result": "bound_of_result_ns bounded",
            "bounds": "LowerBounds critical_path lower_bound_ns tails",
            "free_order_bound": "free_order_bound_ns step_traffic_ns",
            "processor_bound": "processor_bound_ns",
        },
    )

__all__ = [
    "LowerBounds", "bound_of_result_ns", "bounded", "critical_path", "durations_by_processor",
    "free_order_bound_ns", "lower_bound_ns", "processor_bound_ns", "step_traffic_ns", "tails",
]  # fmt: skip
