"""Serving: many requests over time on one engine with a paged key-value cache, iteration by iteration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.serving.disaggregated import PrefillEngine, serve_disaggregated
    from hosim.serving.engine_loop import serve_requests
    from hosim.serving.engine_memory import cache_blocks, weight_room
    from hosim.serving.goodput import beyond, latency_limits, statistic_limits
    from hosim.serving.instances import serve_on_instances
    from hosim.serving.kv_link import KvLink, kv_link, unlike_link
    from hosim.serving.kv_setup import KvSetup, kv_setup
    from hosim.serving.measured_server import as_served, beside_measured, check_measured, fitted_overhead_ns, read_measured_requests
    from hosim.serving.modelled_iterations import ModelledIterations
    from hosim.serving.recorded_iterations import read_recorded_iterations
    from hosim.serving.routers import ROUTERS
    from hosim.serving.scheduler import EngineLimits
    from hosim.serving.served import Sample, Served
    from hosim.serving.sparse_reads import sparse_reads
    from hosim.serving.weight_setup import check_beside_cache, usual_iteration, weight_setup
    from hosim.serving.weight_stream import WeightSetup
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "disaggregated": "PrefillEngine serve_disaggregated",
            "engine_loop": "serve_requests",
            "engine_memory": "cache_blocks weight_room",
            "goodput": "beyond latency_limits statistic_limits",
            "instances": "serve_on_instances",
            "kv_link": "KvLink kv_link unlike_link",
            "kv_setup": "KvSetup kv_setup",
            "measured_server": "as_served beside_measured check_measured fitted_overhead_ns read_measured_requests",
            "modelled_iterations": "ModelledIterations",
            "recorded_iterations": "read_recorded_iterations",
            "routers": "ROUTERS",
            "scheduler": "EngineLimits",
            "served": "Sample Served",
            "sparse_reads": "sparse_reads",
            "weight_setup": "check_beside_cache usual_iteration weight_setup",
            "weight_stream": "WeightSetup",
        },
    )

__all__ = [
    "ROUTERS", "EngineLimits", "KvLink", "KvSetup", "ModelledIterations", "PrefillEngine", "Sample", "Served", "WeightSetup", "as_served",
    "beside_measured", "beyond", "cache_blocks", "check_beside_cache", "check_measured", "fitted_overhead_ns", "kv_link", "kv_setup",
    "latency_limits", "read_measured_requests", "read_recorded_iterations", "serve_disaggregated", "serve_on_instances", "serve_requests",
    "sparse_reads", "statistic_limits", "unlike_link", "usual_iteration", "weight_room", "weight_setup",
]  # fmt: skip
