"""The metrics of a case, their tolerances, and the verdict on each."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.gate.judged_metrics.metrics import (
        COUNT,
        DRIFT,
        FAMILIES,
        FOUND,
        GOODPUT,
        HOUR,
        IMPROVEMENT,
        LATENCY,
        MAKESPAN,
        MISSING,
        MOVED,
        NEW,
        OFF,
        PEAK,
        REGRESSION,
        SAME,
        STALL,
        STATISTICS,
        THROUGHPUT,
        TPOT,
        TTFT,
        WAIT,
        MetricVerdict,
        Tolerance,
        family,
        human,
        judge_metrics,
        metrics_of,
        parse_tolerances,
        tolerance_of,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "metrics": "COUNT DRIFT FAMILIES FOUND GOODPUT HOUR IMPROVEMENT LATENCY MAKESPAN "
            "MISSING MOVED NEW OFF PEAK REGRESSION SAME STALL STATISTICS THROUGHPUT "
            "TPOT TTFT WAIT MetricVerdict Tolerance family human judge_metrics "
            "metrics_of parse_tolerances tolerance_of",
        },
    )

__all__ = [
    "COUNT", "DRIFT", "FAMILIES", "FOUND", "GOODPUT", "HOUR", "IMPROVEMENT", "LATENCY", "MAKESPAN",
    "MISSING", "MOVED", "NEW", "OFF", "PEAK", "REGRESSION", "SAME", "STALL", "STATISTICS",
    "THROUGHPUT", "TPOT", "TTFT", "WAIT", "MetricVerdict", "Tolerance", "family", "human",
    "judge_metrics", "metrics_of", "parse_tolerances", "tolerance_of",
]  # fmt: skip
