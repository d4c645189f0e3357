"""Serving: simulate many requests over time on engines with a paged KV cache, iteration by
iteration.
"""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.serving.disaggregated import ServingEngine, serve_disaggregated
    from hosim.serving.engine_memory import cache_blocks, cache_room, engine_limits, weight_room
    from hosim.serving.instances import ROUTERS, serve_on_instances, serve_requests
    from hosim.serving.measured_server import (
        MeasuredRequests,
        as_served,
        beside_measured,
        check_measured,
        fitted_overhead_ns,
        overhead_warning,
        read_measured_requests,
    )
    from hosim.serving.modelled_iterations import ModelledIterations
    from hosim.serving.recorded_iterations import read_recorded_iterations
    from hosim.serving.scheduler import EngineLimits, Iteration, Scheduler, WaitingByPriority
    from hosim.serving.serve_options import serve_defaults
    from hosim.serving.served import (
        MANY_ITERATIONS,
        Sample,
        Served,
        beyond,
        end_columns,
        latency_limits,
        statistic_limits,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "disaggregated": "ServingEngine serve_disaggregated",
            "engine_memory": "cache_blocks cache_room engine_limits weight_room",
            "instances": "ROUTERS serve_on_instances serve_requests",
            "measured_server": "MeasuredRequests as_served beside_measured check_measured "
            "fitted_overhead_ns overhead_warning read_measured_requests",
            "modelled_iterations": "ModelledIterations",
            "recorded_iterations": "read_recorded_iterations",
            "scheduler": "EngineLimits Iteration Scheduler WaitingByPriority",
            "serve_options": "serve_defaults",
            "served": "MANY_ITERATIONS Sample Served beyond end_columns latency_limits "
            "statistic_limits",
        },
    )

__all__ = [
    "MANY_ITERATIONS", "ROUTERS", "EngineLimits", "Iteration", "MeasuredRequests", "ModelledIterations",
    "Sample", "Scheduler", "Served", "ServingEngine", "WaitingByPriority", "as_served",
    "beside_measured", "beyond", "cache_blocks", "cache_room", "check_measured", "end_columns", "engine_limits",
    "fitted_overhead_ns", "latency_limits", "overhead_warning", "read_measured_requests",
    "read_recorded_iterations", "serve_defaults", "serve_disaggregated", "serve_on_instances", "serve_requests",
    "statistic_limits", "weight_room",
]  # fmt: skip
