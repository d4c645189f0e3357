"""The zoomable timeline of a recording and its replay as a part of an HTML page: of each stream the
recorded above the simulated ops.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hosim.report.drawn.figures import OP_STYLE, TRANSFER_STYLE
from hosim.report.timelines import Bar, BarStyle, Encoder, Row, element, further, key

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
    streams: dict[tuple[int, int], list[int]] = {}
    for k, (_, _, device, stream, _, _) in enumerate(ops):
        streams.setdefault((device, stream), []).append(k)
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
        "Of each stream the recorded ops stand above the simulated ones; a click on an op "
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
