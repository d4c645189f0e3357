"""Pictures of one replay with its timeline: what ran and what waited when, what each tier held,
what each channel did.

Functions take Axes and return them; pictures are readable without colour. A timeline of very many
ops is drawn in columns that show the shares of their time or their maximum, so that nothing is too
short to be seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.plain_text import printable
from hosim.report.drawn import figures
from hosim.report.drawn.figures import (
    CAUSE_STYLES,
    KIND_STYLES,
    LINES,
    OP_STYLE,
    TRANSFER_STYLE,
    Style,
)
from hosim.report.timelines import (
    OP,
    TRANSFER,
    Row,
    end_ns,
    rows,
    sampled,
    stacked,
    thinned,
    timeline_of,
    used_channels,
)
from hosim.result import STALL_CAUSES, Result
from hosim.timeline import Spans, busy, queued_bytes
from hosim.units import human_in, human_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 800
"""The most steps of a curve: more than a picture has points across."""

_BARS = 3000
"""The most bars of a row that are drawn one by one."""

_SHARE_COLUMNS = 400
_STYLES = {OP: OP_STYLE, **CAUSE_STYLES, TRANSFER: TRANSFER_STYLE}
_LABELS = {
    OP: "op runs",
    **{cause: f"waits: {cause}" for cause in STALL_CAUSES},
    TRANSFER: "transfer",
}


def timeline(axes: Axes, graph: Graph, result: Result) -> Axes:
    """Streams and channels, one row each: ops, transfers, and stalls by their cause."""
    labelled = [(row.label, row) for row in rows(graph, timeline_of(result))]
    draw_rows(axes, labelled, end_ns(result), _STYLES)
    axes.set_title("Streams and channels")
    return axes


def draw_rows(
    axes: Axes, labelled: Sequence[tuple[str, Row]], end: int, styles: Mapping[str, Style]
) -> None:
    """Rows of bars one below the other, each with its name, filled as ``styles`` say."""
    unit, name = figures.time_unit(end)
    for y, (_, row) in enumerate(labelled):
        _draw_row(axes, row, -y, end, unit, styles)
    seen = {bar.what for _, row in labelled for bar in row.bars}
    for what, style in styles.items():
        if what in seen:
            axes.bar([0], [0], width=0, label=_LABELS.get(what, what), **style)
    axes.set_yticks([-y for y in range(len(labelled))], [printable(name) for name, _ in labelled])
    axes.set_ylim(-len(labelled) + 0.4, 0.6)
    axes.tick_params(axis="y", length=0)
    figures.over_time(axes, end, unit, name)
    figures.legend_beside(axes, handleheight=1.4)


def _draw_row(
    axes: Axes, row: Row, y: float, end: int, unit: int, styles: Mapping[str, Style]
) -> None:
    """A row of bars at a height, filled as ``styles`` say; of very many their shares of time."""
    whats = [what for what in styles if any(bar.what == what for bar in row.bars)]
    by_what = {
        what: [(bar.start_ns, bar.end_ns) for bar in row.bars if bar.what == what] for what in whats
    }
    if len(row.bars) <= _BARS:
        edge = {"edgecolor": "white", "linewidth": 0.4} if len(row.bars) <= 200 else {}
        for what, intervals in by_what.items():
            own = {**styles[what], **({} if what in STALL_CAUSES else edge)}
            axes.broken_barh(
                [(start / unit, (stop - start) / unit) for start, stop in intervals],
                (y - 0.38, 0.76),
                **own,
            )
        return
    columns = [k * end / _SHARE_COLUMNS / unit for k in range(_SHARE_COLUMNS + 1)]
    bottom = np.zeros(_SHARE_COLUMNS)
    for what, intervals in by_what.items():
        top = bottom + Spans(intervals).shares(end, _SHARE_COLUMNS)
        low, high = (y - 0.38 + 0.76 * _closed(edge) for edge in (bottom, top))
        axes.fill_between(columns, low, high, step="post", **styles[what])
        bottom = top


def _closed(values: Any) -> Any:
    """The values with the last one twice, for steps that have an end."""
    return np.append(values, values[-1:])


def memory(axes: Axes, graph: Graph, hardware: Hardware, result: Result, tier: str) -> Axes:
    """Return the bytes that a tier holds over time, stacked by kind of tensor, with the budget (of
    another tier: its capacity) and the peak.

    A limit far above the peak is only named.
    """
    end = end_ns(result)
    times, by_kind = stacked(graph, timeline_of(result), tier)
    times, curves = thinned(times, list(by_kind.values()), end, COLUMNS)
    limit, called = figures.limit_of(result, hardware, tier)
    peak, at = result.peak_bytes.get(tier, 0), result.peak_at_ns.get(tier, 0)
    top = max([peak, *([limit] if figures.is_near(limit, peak) else []), 1])
    of_time, of_size = figures.time_unit(end), figures.size_unit(top)
    (unit, name), (size, size_name) = of_time, of_size
    x = [*(times / unit), end / unit]
    bottom = None
    for kind, curve in zip(by_kind, curves, strict=True):
        upper = curve if bottom is None else bottom + curve
        axes.fill_between(
            x,
            0 if bottom is None else _closed(bottom) / size,
            _closed(upper) / size,
            step="post",
            label=kind.replace("_", " "),
            **KIND_STYLES[kind],
        )
        bottom = upper
    if bottom is not None:
        axes.step(x, _closed(bottom) / size, where="post", color="black", linewidth=0.7)
    figures.limit_line(axes, limit, peak, of_size, called)
    axes.plot(
        at / unit,
        peak / size,
        "v",
        color="white",
        markeredgecolor="black",
        markersize=8,
        clip_on=False,
        label=f"peak {human_in(peak, of_size)} at {human_in(at, of_time)}",
    )
    axes.set_ylim(0, 1.08 * top / size)
    axes.set_ylabel(size_name)
    figures.over_time(axes, end, unit, name)
    axes.set_title(printable(f"Memory: {tier}"))
    figures.legend_beside(axes, handleheight=1.2, reverse=True)  # as they lie one upon the other
    return axes


def channel_utilization(axes: Axes, result: Result) -> Axes:
    """The share of time for which each channel carries a transfer, in equal parts of the
    makespan.
    """
    end = end_ns(result)
    unit, name = figures.time_unit(end)
    parts = 100
    edges = [k * end / parts / unit for k in range(parts + 1)]
    for k, (channel, carried) in enumerate(sorted(busy(timeline_of(result)).items())):
        part = 100 * carried.total_ns / end if end else 0.0
        axes.step(
            edges,
            _closed(100 * np.array(carried.shares(end, parts))),
            where="post",
            linewidth=1.3,
            label=printable(f"{channel}: {part:.0f} %"),
            **LINES[k % len(LINES)],
        )
    axes.set_ylim(0, 104)
    axes.set_ylabel("busy, %")
    figures.over_time(axes, end, unit, name)
    axes.set_title(f"Channels: utilization (each step {human_time(end // parts)})")
    figures.legend_beside(axes)
    return axes


def channel_queue(axes: Axes, result: Result) -> Axes:
    """The bytes of the transfers of each channel that have been issued and have not started."""
    end = end_ns(result)
    unit, name = figures.time_unit(end)
    recorded = timeline_of(result)
    queues = {}
    for channel in used_channels(recorded):
        waiting = queued_bytes(recorded, channel)
        at = np.unique(np.array([0, *waiting.at_ns, end], np.int64))
        times, (values,) = thinned(at, [sampled(waiting, at)], end, COLUMNS)
        queues[channel] = times, values
    most = max((int(values.max()) for _, values in queues.values()), default=0)
    size, size_name = figures.size_unit(most)
    for k, (channel, (times, values)) in enumerate(queues.items()):
        waits = human_in(int(values.max()), (size, size_name))
        axes.step(
            [*(times / unit), end / unit],
            _closed(values) / size,
            where="post",
            linewidth=1.3,
            label=printable(f"{channel}: at most {waits}"),
            **LINES[k % len(LINES)],
        )
    axes.set_ylim(0, 1.08 * max(most, 1) / size)
    axes.set_ylabel(f"waiting, {size_name}")
    figures.over_time(axes, end, unit, name)
    axes.set_title("Channels: queue")
    figures.legend_beside(axes)
    return axes


def replay_figure(graph: Graph, hardware: Hardware, result: Result) -> Figure:
    """The picture of ``hosim replay --plot``: the timeline, every tier that holds something, and
    the channels that moved something.
    """
    recorded = timeline_of(result)
    tiers = [tier.name for tier in hardware.tiers if result.peak_bytes.get(tier.name)]
    moved = bool(recorded.transfers)
    heights = [1.2 + 0.42 * len(rows(graph, recorded)), *[2.6] * len(tiers), *[2.1] * (2 * moved)]
    with figures.style():
        figure, axes = figures.blank(heights)
        timeline(axes[0], graph, result)
        for tier, own in zip(tiers, axes[1:], strict=False):
            memory(own, graph, hardware, result, tier)
        if moved:
            channel_utilization(axes[-2], result)
            channel_queue(axes[-1], result)
        took = (
            f"makespan {human_time(result.makespan_ns)}"
            if result.makespan_ns is not None
            else "does not fit"
        )
        title = printable(f"{result.workload} on {result.hardware}, {result.policy}: {took}")
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
    return figure


def memory_figure(graph: Graph, hardware: Hardware, result: Result) -> Figure | None:
    """The memory over time of every tier that holds something; none where no tier does."""
    tiers = [tier.name for tier in hardware.tiers if result.peak_bytes.get(tier.name)]
    if not tiers:
        return None
    with figures.style():
        figure, axes = figures.blank([2.6] * len(tiers))
        for tier, own in zip(tiers, axes, strict=True):
            memory(own, graph, hardware, result, tier)
    return figure
