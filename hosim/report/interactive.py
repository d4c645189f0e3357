"""The zoomable timelines of replays as a part of an HTML page: streams, channels, stalls, and the memory of the device tier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hosim.cache_plan import Plan
from hosim.hardware import Hardware
from hosim.report.figures import CAUSE_STYLES, OP_STYLE, TRANSFER_STYLE
from hosim.report.timeline_curves import end_ns, stacked, thinned
from hosim.report.timeline_element import BarStyle, Encoder, element, further
from hosim.report.timeline_rows import OP, TRANSFER, Bar, Row, bar_name, rows, timeline_of
from hosim.result import STALL_CAUSES, Result, Timeline
from hosim.units import human_size

_POINTS = 1_000
_STYLES = {
    OP: BarStyle("op", OP_STYLE, "named"),
    **{cause: BarStyle(f"{cause} stall", CAUSE_STYLES[cause], "stall") for cause in STALL_CAUSES},
    TRANSFER: BarStyle("transfer", TRANSFER_STYLE, "plain"),
}


@dataclass(frozen=True, slots=True)
class Shown:
    """One replay of a page: its title (empty where it is the only one), and the recorded result of the plan."""

    title: str
    plan: Plan
    result: Result


def widget(shown: Sequence[Shown], hardware: Hardware) -> str:
    """The timelines of all of ``shown`` on one axis of time."""
    drawn = [(one, rows(one.plan.graph, timeline_of(one.result))) for one in shown]
    encoder = Encoder(_STYLES, [row for _, own in drawn for row in own])
    groups = [_group(encoder, one, own, hardware) for one, own in drawn]
    end = max((end_ns(one.result) for one in shown), default=0)
    says = "A click on a stall marks the transfer that it is blamed on. Ops are dark, transfers grey, stalls hatched by cause."
    return element(encoder, groups, end, says, {})


def _group(encoder: Encoder, one: Shown, own: Sequence[Row], hardware: Hardware) -> dict[str, Any]:
    timeline = timeline_of(one.result)
    times, by_kind = stacked(one.plan.graph, timeline, hardware.device_tier)

    def said(bar: Bar) -> str:
        return _said(one.plan, timeline, bar)

    encoded = [encoder.row(row, said) for row in own]
    group: dict[str, Any] = {"title": one.title, "rows": encoded, "blames": _blames(encoder, timeline, own)}
    if by_kind:
        budget = min(one.result.budget_bytes, hardware.device.capacity_bytes)
        peak = one.result.peak_bytes.get(hardware.device_tier, 0)
        at, (held,) = thinned(times, [sum(by_kind.values(), 0 * times)], end_ns(one.result), _POINTS)
        limited = budget if budget <= 2 * peak else 0
        group["memory"] = {
            "tier": hardware.device_tier,
            "limit": limited,
            "end": end_ns(one.result),
            "times": at.tolist(),
            "bytes": held.tolist(),
        }
    return group


def _blames(encoder: Encoder, timeline: Timeline, own: Sequence[Row]) -> list[int]:
    """Links from each stall that is blamed on a transfer to that transfer."""
    at: dict[int, tuple[int, int]] = {}
    stalls = []
    for r, row in enumerate(own):
        for i, bars in enumerate(encoder.joined(row)):
            at |= {bar.number: (r, i) for bar in bars if bar.what == TRANSFER}
            if len(bars) == 1 and bars[0].what in STALL_CAUSES:
                stalls.append((r, i, timeline.stalls[bars[0].number].transfer))
    return further([(r, i, *at[transfer]) for r, i, transfer in stalls if transfer in at])


def _said(plan: Plan, timeline: Timeline, bar: Bar) -> str:
    if bar.what == TRANSFER:
        return f"{bar_name(plan, timeline, bar)}, {human_size(timeline.transfers[bar.number].bytes)}"
    return plan.graph.ops[bar.number if bar.what == OP else timeline.stalls[bar.number].op].name
