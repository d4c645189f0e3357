"""The zoomable timelines of replays as a part of an HTML page: streams, channels, stalls, and the
memory of the device tier.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hosim.cache_plan import Plan
from hosim.data.folded_parts import folded
from hosim.hardware import Hardware
from hosim.report.drawn.figures import (
    CAUSE_STYLES,
    OP_STYLE,
    TRANSFER_STYLE,
    is_near,
    limit_of,
)
from hosim.report.timelines import (
    OP,
    TRANSFER,
    Bar,
    BarStyle,
    Encoder,
    Row,
    element,
    end_ns,
    further,
    held_over_time,
    rows,
    timeline_of,
)
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
    """One replay of a page: its title (empty where it is the only one), and the recorded result of
    the plan.
    """

    title: str
    plan: Plan
    result: Result


def widget(shown: Sequence[Shown], hardware: Hardware) -> str:
    """The timelines of all of ``shown`` on one axis of time."""
    drawn = [(one, _drawn(one)) for one in shown]
    encoder = Encoder(_STYLES, [row for _, own in drawn for row in own.rows])
    groups = [part for one, own in drawn for part in _groups(encoder, one, own, hardware)]
    end = max((end_ns(one.result) for one in shown), default=0)
    says = (
        "A click on a stall marks the transfer that it is blamed on. Ops are dark, transfers "
        "grey, stalls hatched by cause."
    )
    if any([own.together for _, own in drawn]):
        says += " Transfers of parts of a tensor that follow each other without a gap are one bar."
    return element(encoder, groups, end, says, {})


@dataclass(frozen=True, slots=True)
class _Drawn:
    """The rows of a timeline, in which a bar may stand for several transfers: these by the number
    of the first.
    """

    rows: Sequence[Row]
    together: Mapping[int, Sequence[int]]


def _drawn(one: Shown) -> _Drawn:
    """The rows, with transfers of parts of a tensor that follow each other without a gap as one
    bar.
    """
    tensors, transfers = one.plan.graph.tensors, timeline_of(one.result).transfers
    together: dict[int, list[int]] = {}
    drawn = []
    for row in rows(one.plan.graph, timeline_of(one.result)):
        bars: list[Bar] = []
        before = ""
        for bar in row.bars:
            of = tensors[transfers[bar.number].tensor].of if bar.what == TRANSFER else ""
            if of and of == before and bars[-1].end_ns == bar.start_ns:
                first = bars[-1]
                together.setdefault(first.number, [first.number]).append(bar.number)
                bars[-1] = replace(first, end_ns=bar.end_ns)
            else:
                bars.append(bar)
            before = of
        drawn.append(replace(row, bars=tuple(bars)))
    return _Drawn(drawn, together)


def _groups(
    encoder: Encoder, one: Shown, own: _Drawn, hardware: Hardware
) -> Iterator[dict[str, Any]]:
    """Its rows with the memory of the device tier, then the other tiers that hold something."""
    timeline = timeline_of(one.result)

    def said(bar: Bar) -> str:
        return _said(one.plan, timeline, bar, own.together.get(bar.number, (bar.number,)))

    group: dict[str, Any] = {
        "title": one.title,
        "rows": [encoder.row(row, said) for row in own.rows],
        "blames": _blames(encoder, timeline, own),
    }
    held = _held(one, hardware, hardware.device_tier)
    yield group if held is None else {**group, "memory": held}
    for tier in hardware.tiers:
        if tier.name != hardware.device_tier and (held := _held(one, hardware, tier.name)):
            yield {"title": "", "rows": [], "blames": [], "memory": held}


def _held(one: Shown, hardware: Hardware, tier: str) -> dict[str, Any] | None:
    """The bytes of a tier over time, with the limit unless it is far above; ``None`` without any."""
    end = end_ns(one.result)
    at, held = held_over_time(one.plan.graph, timeline_of(one.result), tier, end, _POINTS)
    if not held.any():
        return None
    limit, _ = limit_of(one.result, hardware, tier)
    return {
        "tier": tier,
        "limit": limit if is_near(limit, one.result.peak_bytes.get(tier, 0)) else 0,
        "end": end,
        "times": at.tolist(),
        "bytes": held.tolist(),
    }


def _blames(encoder: Encoder, timeline: Timeline, own: _Drawn) -> list[int]:
    """Links from each stall that is blamed on a transfer to the bar of that transfer."""
    at: dict[int, tuple[int, int]] = {}
    stalls = []
    for r, row in enumerate(own.rows):
        for i, bars in enumerate(encoder.joined(row)):
            moved = [bar.number for bar in bars if bar.what == TRANSFER]
            at |= {k: (r, i) for first in moved for k in own.together.get(first, (first,))}
            if len(bars) == 1 and bars[0].what in STALL_CAUSES:
                stalls.append((r, i, timeline.stalls[bars[0].number].transfer))
    return further([(r, i, *at[transfer]) for r, i, transfer in stalls if transfer in at])


def _said(plan: Plan, timeline: Timeline, bar: Bar, transfers: Sequence[int]) -> str:
    if bar.what == TRANSFER:
        moved = [timeline.transfers[k] for k in transfers]
        names = [row.name for row in folded((plan.graph.tensors[x.tensor], ()) for x in moved)]
        return f"{names[0]}, {human_size(sum([x.bytes for x in moved]))}"
    return plan.graph.ops[bar.number if bar.what == OP else timeline.stalls[bar.number].op].name
