"""Pictures of a recording and its replay: Axes in, Axes out, readable without colour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hosim.plain_text import printable
from hosim.report.figures import time_unit

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from matplotlib.axes import Axes

    Curve = npt.NDArray[np.int64]

Interval = tuple[int, int]

_MEASURED: dict[str, Any]
_SIMULATED: dict[str, Any]
_MEASURED, _SIMULATED = {"facecolor": "0.35"}, {"facecolor": "#e08214", "hatch": "////", "edgecolor": "white", "linewidth": 0.0}

_CURVES: Sequence[dict[str, Any]] = (
    {"color": "0.75", "linewidth": 5},
    {"color": "black", "linewidth": 1},
    {"color": "#2166ac", "linewidth": 1.5, "dashes": (4, 2)},
    {"color": "#e08214", "linewidth": 1, "dashes": (1, 1)},
)


def timeline(axes: Axes, measured: Mapping[str, Sequence[Interval]], simulated: Mapping[str, Sequence[Interval]], within: Interval) -> Axes:
    """What ran when, as a pair of lines per stream: recorded above, replayed below. Intervals are in nanoseconds, by stream."""
    unit, name = time_unit(within[1] - within[0])
    ticks, labels = [], []
    for row, stream in enumerate(measured):
        for k, (intervals, style) in enumerate(((measured[stream], _MEASURED), (simulated[stream], _SIMULATED))):
            seen = [(max(start, within[0]), min(end, within[1])) for start, end in intervals if start < within[1] and end > within[0]]
            bottom = -(row + 0.42 * k + 0.4)
            axes.broken_barh([(start / unit, (end - start) / unit) for start, end in seen], (bottom, 0.38), rasterized=True, **style)
        ticks.append(-(row + 0.4))
        labels.append(stream)
    axes.set_yticks(ticks, [printable(label) for label in labels])
    axes.set_xlim(within[0] / unit, within[1] / unit)
    axes.set_xlabel(f"time, {name} (above: recorded, below: replayed)")
    return axes


def start_errors(axes: Axes, starts_ns: Sequence[int], errors_ns: Sequence[int]) -> Axes:
    """By how much each op of the replay starts late (above 0) or early, over its recorded start."""
    unit, name = time_unit(max(starts_ns, default=0) - min(starts_ns, default=0))
    small, small_name = time_unit(max(map(abs, errors_ns), default=0))
    axes.axhline(0, color="0.6", linewidth=0.8)
    axes.plot([x / unit for x in starts_ns], [y / small for y in errors_ns], ".", color="black", markersize=2, rasterized=True)
    axes.set_xlabel(f"recorded start, {name}")
    axes.set_ylabel(f"replayed less recorded start, {small_name}")
    return axes


def memory(axes: Axes, times_ns: Curve, curves: Mapping[str, Curve | None]) -> Axes:
    """Curves of bytes over time, one per name; the first is drawn broad, so that it stays visible behind another."""
    unit, name = time_unit(int(times_ns[-1] - times_ns[0]) if len(times_ns) else 0)
    drawn = [(label, curve) for label, curve in curves.items() if curve is not None]
    for (label, curve), style in zip(drawn, _CURVES, strict=False):
        axes.plot((times_ns - times_ns[0]) / unit, curve / 2**30, drawstyle="steps-post", label=label, **style)
    axes.set_xlabel(f"time, {name}")
    axes.set_ylabel("GiB")
    axes.set_ylim(bottom=0)
    axes.legend(loc="lower right")
    return axes
