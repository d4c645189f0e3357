"""The zoomable timeline of a recording and its replay as a part of an HTML page: of each stream the
recorded above the simulated ops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hosim.base.groups import grouped
from hosim.report.drawn.figures import OP_STYLE, TRANSFER_STYLE, legend_beside, size_unit, time_unit
from hosim.report.timelines import Bar, BarStyle, Encoder, Row, element, further, key

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
    axes.plot(
        [x / unit for x in starts_ns],
        [y / small for y in errors_ns],
        ".",
        color="black",
        markersize=6 if len(starts_ns) <= _FEW else 2,
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


Interval = tuple[int, int]

DrawnOp = tuple[str, str, int, int, Interval, Interval]
"""Name, kind, device and stream of an op, and the nanoseconds of its start and end as recorded and
as simulated.
"""

Span = tuple[int, int, str]
"""A part of the recording that the replay does not explain: its start and end in nanoseconds, and
the reason.
"""

_FURTHEST = 20
_STYLES = {
    "kernel": BarStyle("kernel", OP_STYLE, "named"),
    "copy": BarStyle("copy", TRANSFER_STYLE, "plain"),
    "memset": BarStyle("memset", {"facecolor": "#7ba7d0", "hatch": ""}, "plain"),
}
_UNEXPLAINED = "#f7c6bd"


def recorded_widget(ops: Sequence[DrawnOp], unexplained: Sequence[Span]) -> str:
    """Both timelines on one axis, the recording's clock, with the spans that are ``unexplained``
    marked on all rows.
    """
    recorded, simulated = [op[4] for op in ops], [op[5] for op in ops]
    instants = [instant for interval in (*recorded, *simulated) for instant in interval]
    begin, end = min(instants), max(instants)
    streams = grouped(((device, stream), k) for k, (_, _, device, stream, _, _) in enumerate(ops))
    pairs = {
        stream: (_row("recorded", ops, recorded, own), _row("simulated", ops, simulated, own))
        for stream, own in sorted(streams.items())
    }
    encoder = Encoder(_STYLES, [row for pair in pairs.values() for row in pair])
    several = len({device for device, _ in pairs}) > 1
    furthest = sorted(range(len(ops)), key=lambda k: (-abs(simulated[k][0] - recorded[k][0]), k))[
        :_FURTHEST
    ]
    groups, far = [], []
    for g, ((device, stream), pair) in enumerate(pairs.items()):
        above, below = (
            {bars[0].number: i for i, bars in enumerate(encoder.joined(row)) if len(bars) == 1}
            for row in pair
        )
        twins = [(0, i, 1, below[k]) for k, i in above.items() if k in below]
        rows = [encoder.row(row, lambda bar: ops[bar.number][0]) for row in pair]
        title = f"device {device}, stream {stream}" if several else f"stream {stream}"
        groups.append({"title": title, "rows": rows, "blames": [], "twins": further(twins)})
        far += [(furthest.index(k), g, above[k]) for k in furthest if k in above]
    spans = [
        (max(start, begin), min(stop, end), why)
        for start, stop, why in unexplained
        if stop >= begin and start <= end
    ]
    more: dict[str, Any] = {
        "begin": begin,
        "spans": spans,
        "far": [(g, i) for _, g, i in sorted(far)],
    }
    says = (
        "For each stream the recorded ops stand above the simulated ones; a click on an op "
        "marks it in both."
    )
    if spans:
        says += (
            " What the replay does not explain is red: point at it, or touch it, for the reason."
        )
    marked = key("not validated", _UNEXPLAINED, "") if spans else ""
    return element(
        encoder, groups, end, says, more, marked, '<button data-does="far">furthest off</button> '
    )


def _row(
    label: str, ops: Sequence[DrawnOp], intervals: Sequence[Interval], own: Sequence[int]
) -> Row:
    bars = [Bar(*intervals[k], ops[k][1], k) for k in own]
    return Row(
        label, True, 0, tuple(sorted(bars, key=lambda bar: (bar.start_ns, bar.end_ns, bar.number)))
    )
