"""Pictures of a recording and its replay: Axes in, Axes out, readable without colour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hosim.report.drawn.figures import legend_beside, size_unit, time_unit

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from matplotlib.axes import Axes

    Curve = npt.NDArray[np.int64]

_FEW = 200
"""Points that leave room for larger ones."""

_CURVES: Sequence[dict[str, Any]] = (
    {"color": "0.75", "linewidth": 5},
    {"color": "black", "linewidth": 1},
    {"color": "#2166ac", "linewidth": 1.5, "dashes": (4, 2)},
    {"color": "#e08214", "linewidth": 1, "dashes": (1, 1)},
)


def start_errors(axes: Axes, starts_ns: Sequence[int], errors_ns: Sequence[int]) -> Axes:
    """Return by how much each op of the replay starts late (above 0) or early, over its recorded
    start.
    """
    unit, name = time_unit(max(starts_ns, default=0) - min(starts_ns, default=0))
    small, small_name = time_unit(max(map(abs, errors_ns), default=0))
    axes.axhline(0, color="0.6", linewidth=0.8)
    point = 6 if len(starts_ns) <= _FEW else 2
    axes.plot(
        [x / unit for x in starts_ns],
        [y / small for y in errors_ns],
        ".",
        color="black",
        markersize=point,
        rasterized=True,
    )
    axes.set_xlabel(f"recorded start, {name}")
    axes.set_ylabel(f"simulated less recorded start, {small_name}")
    return axes


def recorded_memory(axes: Axes, times_ns: Curve, curves: Mapping[str, Curve | None]) -> Axes:
    """Curves of bytes over time, one per name; the first is drawn broad, so that it stays visible
    behind another.
    """
    unit, name = time_unit(int(times_ns[-1] - times_ns[0]) if len(times_ns) else 0)
    drawn = [(label, curve) for label, curve in curves.items() if curve is not None]
    size, size_name = size_unit(
        max((int(curve.max()) for _, curve in drawn if len(curve)), default=0)
    )
    for (label, curve), style in zip(drawn, _CURVES, strict=False):
        axes.plot(
            (times_ns - times_ns[0]) / unit,
            curve / size,
            drawstyle="steps-post",
            label=label,
            **style,
        )
    axes.set_xlabel(f"time, {name}")
    axes.set_ylabel(size_name)
    axes.set_ylim(bottom=0)
    legend_beside(axes)
    return axes
