"""The metrics of a case, their tolerances, and the verdict on each."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.gate.judged_metrics.metric_verdict import (
        DRIFT,
        IMPROVEMENT,
        MISSING,
        NEW,
        REGRESSION,
        SAME,
        MetricVerdict,
        judge_metrics,
    )
    from hosim.gate.judged_metrics.metrics import (
        COUNT,
        FAMILIES,
        FOUND,
        GOODPUT,
        HOUR,
        LATENCY,
        MAKESPAN,
        MOVED,
        OFF,
        PEAK,
        STALL,
        STATISTICS,
        THROUGHPUT,
        TPOT,
        TTFT,
        WAIT,
        Tolerance,
        family,
        human,
        metrics_of,
        parse_tolerances,
        tolerance_of,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "metric_verdict": "DRIFT IMPROVEMENT MISSING MetricVerdict NEW REGRESSION SAME "
            "judge_metrics",
            "metrics": "COUNT FAMILIES FOUND GOODPUT HOUR LATENCY MAKESPAN MOVED OFF PEAK STALL "
            "STATISTICS THROUGHPUT TPOT "
            "TTFT Tolerance WAIT family human metrics_of parse_tolerances tolerance_of",
        },
    )

__all__ = [
    "COUNT", "DRIFT", "FAMILIES", "FOUND", "GOODPUT", "HOUR", "IMPROVEMENT", "LATENCY", "MAKESPAN",
    "MISSING", "MOVED", "NEW", "OFF", "PEAK", "REGRESSION", "SAME", "STALL", "STATISTICS",
    "THROUGHPUT", "TPOT", "TTFT", "WAIT", "MetricVerdict", "Tolerance", "family", "human",
    "judge_metrics", "metrics_of", "parse_tolerances", "tolerance_of",
]  # fmt: skip
