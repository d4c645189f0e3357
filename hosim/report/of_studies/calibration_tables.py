"""Tables of ``hosim calibrate``: the fitted figures, how well they fit, and the held-out
predictions.
"""

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType

from hosim.plain_text import counted
from hosim.report.printing import NOTHING, open_table, paragraph
from hosim.units import human_percent, human_rate, human_size, human_time

_RESIDUALS = {"median error": "median", "P95": "p95"}


def calibration(data: Mapping[str, Any]) -> RenderableType:
    """Everything in a ``hosim.calibration/1``."""
    parts: list[RenderableType] = []
    if data["channels"]:
        parts.append(_channels(data))
    for way in data["channels"]:
        total = (
            f"{_figure(way['total_ns'], human_time)} in total by the fit, "
            f"{human_time(way['recorded_ns'])} recorded"
        )
        parts.append(paragraph(f"{way['direction']}, {way['memory']} memory: {total}", space=True))
    launch = data["launch"]
    if launch["launch_ns"] is not None:
        gap = launch["gap_ns"]
        line = (
            f"launch of an op: {human_time(launch['launch_ns'])}, of which "
            f"{_figure(gap, human_time)} (n={gap['samples']:,}) between ops"
        )
        parts.append(paragraph(line, space=True))
    if launch["host_ns"] is not None:
        host = launch["host_ns"]
        parts.append(
            paragraph(
                f"a launch occupies the host for {_figure(host, human_time)} "
                f"(n={host['samples']:,})",
                space=True,
            )
        )
    if data["efficiency"]:
        parts.append(_efficiency(data))
    parts += [paragraph(f"not fitted: {line}", style="yellow") for line in data["missing"]]
    parts += [_held_out(held) for held in data["held_out"]]
    return Group(*parts)


def kernels(data: Mapping[str, Any]) -> RenderableType:
    """Everything in a ``hosim.kernel_calibration/1``."""
    return open_table(
        f"Kernels, on the processor of {data['base']}",
        *("kernel", "dtype", "rows", "median error", "P90", "worst"),
        left=2,
        rows=[
            (
                fit["kernel"],
                fit["dtype"],
                f"{fit['errors']['rows']:,}",
                *[_percent(fit["errors"][name]) for name in ("median", "p90", "worst")],
            )
            for fit in data["kernels"]
        ],
    )


def _channels(data: Mapping[str, Any]) -> RenderableType:
    columns = ("way", "host memory", "copies", "sizes", "bandwidth", "latency")
    return open_table(
        f"Channels{_on(data)}",
        *columns,
        *_RESIDUALS,
        left=2,
        rows=[
            (
                way["direction"],
                way["memory"],
                f"{way['bandwidth_bytes_per_s']['samples']:,}",
                f"{human_size(way['smallest_bytes'])} to {human_size(way['largest_bytes'])}",
                _figure(way["bandwidth_bytes_per_s"], human_rate),
                _figure(way["latency_ns"], human_time) if way["latency_ns"] else NOTHING,
                *[_percent(way["residuals"][name]) for name in _RESIDUALS.values()],
            )
            for way in data["channels"]
        ],
    )


def _efficiency(data: Mapping[str, Any]) -> RenderableType:
    return open_table(
        f"Efficiency, against {data['base']}",
        *("kind", "dtype", "ops", "time", "efficiency"),
        *_RESIDUALS,
        left=2,
        rows=[
            (
                row["kind"],
                row["dtype"],
                f"{row['efficiency']['samples']:,}",
                human_time(row["time_ns"]),
                _figure(row["efficiency"], _three),
                *[_percent(row["residuals"][name]) for name in _RESIDUALS.values()],
            )
            for row in sorted(data["efficiency"], key=lambda row: -row["time_ns"])
        ],
    )


def _held_out(held: Mapping[str, Any]) -> RenderableType:
    counts = held["iterations"]
    learned = counts["learned"] if counts else 0
    parts = (
        f"{counted(learned, 'iteration')} {'predicts' if learned == 1 else 'predict'} "
        f"{counts['held_out']}, "
        if learned
        else ""
    )
    table = open_table(
        f"Unseen: {held['trace']} ({parts}{held['parted']})",
        "what",
        "number",
        "median error",
        "P95",
        "in total",
    )
    for name in ("ops", "transfers"):
        row = held[name]
        if row["samples"]:
            table.add_row(
                name,
                f"{row['samples']:,}",
                _percent(row["median"]),
                _percent(row["p95"]),
                _signed(row["total"]),
            )
            if row["resolved"] and row["resolved"] < row["samples"] + row["zeros"]:
                table.add_row(
                    f"{name} of 20 clock steps or more",
                    f"{row['resolved']:,}",
                    _percent(row["resolved_median"]),
                    NOTHING,
                    NOTHING,
                )
    total = held["ops"].get("by_profile")
    if total is not None and total["error"] is not None:
        span = (
            f"{human_time(total['predicted_ns'])} ({human_time(total['low_ns'])} to "
            f"{human_time(total['high_ns'])})"
        )
        table.add_row(
            f"all ops by the profile, {human_time(total['measured_ns'])} measured",
            span,
            NOTHING,
            NOTHING,
            _signed(total["error"]),
        )
    makespan = held["makespan"]
    if makespan["error"] is not None:
        span = f"makespan, {human_time(makespan['measured_ns'])} measured"
        table.add_row(
            span, human_time(makespan["predicted_ns"]), NOTHING, NOTHING, _signed(makespan["error"])
        )
    return Group(
        table, *(paragraph(f"not predicted: {line}", style="yellow") for line in held["missing"])
    )


def _on(data: Mapping[str, Any]) -> str:
    return f" of {data['device']}" if data["device"] else ""


def _figure(figure: Mapping[str, float], text: Any) -> str:
    value, low, high = (text(_bounded(figure[key])) for key in ("value", "low", "high"))
    return str(value) if value == low == high else f"{value} ({low} to {high})"


def _bounded(value: float) -> float:
    return value if value < 2 else round(min(value, 10**18))


def _three(value: float) -> str:
    return f"{value:.3g}"


def _percent(value: float | None) -> str:
    return NOTHING if value is None else human_percent(value)


def _signed(value: float | None) -> str:
    return NOTHING if value is None else human_percent(value, signed=True)
