"""A zoomable timeline as a part of an HTML page: its bars as JSON, a canvas, and a script that draws them; nothing is fetched.

A page holds at most about :data:`ITEMS` bars. If a replay has more, adjacent short ones are joined into one that shows their number and how
their time divides.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

from hosim.cache_plan import Plan
from hosim.hardware import Hardware
from hosim.report.figures import CAUSE_STYLES, OP_STYLE, TRANSFER_STYLE
from hosim.report.timeline_curves import end_ns, stacked, thinned
from hosim.report.timeline_rows import OP, TRANSFER, Bar, Row, bar_name, rows, timeline_of
from hosim.result import STALL_CAUSES, Result, Timeline
from hosim.units import human_size

ITEMS = 60_000
"""The approximate number of bars of a page: some 2 MB."""

_POINTS = 1_000
_WHATS = (OP, *STALL_CAUSES, TRANSFER)
_NUMBER = {what: k for k, what in enumerate(_WHATS)}
_ONE_UNIT = 0xFFFF
"""The last character that is one unit of text for a browser."""
_GREYS = {"0.25": "#404040", "0.62": "#9e9e9e"}


@dataclass(frozen=True, slots=True)
class Shown:
    """One replay of a page: its title (empty where it is the only one), and the recorded result of the plan."""

    title: str
    plan: Plan
    result: Result


def widget(shown: Sequence[Shown], hardware: Hardware) -> str:
    """The timelines of all of ``shown`` on one axis of time."""
    drawn = [(one, rows(one.plan.graph, timeline_of(one.result))) for one in shown]
    limit = row_limit([len(row.bars) for _, own in drawn for row in own])
    names: dict[str, int] = {}
    groups = [_group(one, own, hardware, limit, names) for one, own in drawn]
    end = max((end_ns(one.result) for one in shown), default=0)
    styles = [[label, *_fill(what)] for what, label in zip(_WHATS, ("op", *(f"{c} stall" for c in STALL_CAUSES), "transfer"), strict=True)]
    data = {"end": end, "styles": styles, "names": front_coded(list(names)), "groups": groups}
    joined = any("many" in row for group in groups for row in group["rows"])
    note = " Adjacent short ops are joined: the height of each colour is its share of the time."
    return (
        '<div class="timeline">\n'
        "<p>The wheel or two fingers zoom, dragging moves, a double click shows all; with the keyboard: + and -, arrows, 0. Dragging with "
        "shift measures. A click on a stall marks the transfer that it is blamed on. Ops are dark, transfers "
        f"grey, stalls hatched by cause.{note if joined else ''}</p>\n"
        f'<p class="legend">{"".join(_key(*style) for style in styles)}<button data-does="in">+</button> '
        '<button data-does="out">&minus;</button> <button data-does="all">all</button> '
        '<button data-does="measure" aria-pressed="false">measure</button> '
        '<input type="search" placeholder="find op or tensor" aria-label="Find an op or a tensor; Enter shows the next one"></p>\n'
        '<canvas tabindex="0" role="img" aria-label="Timeline of streams and channels" style="width: 100%"></canvas>\n'
        '<p class="told">&nbsp;</p>\n<p class="chosen" aria-live="polite">&nbsp;</p>\n'
        f'<script type="application/json">{script_json(data)}</script>\n<script>\n{_script()}</script>\n</div>'
    )


def row_limit(counts: Sequence[int], items: int = ITEMS) -> int:
    """The most bars of a row with which all rows together have at most ``items`` bars; short rows leave room for long ones.

    >>> row_limit([10, 100, 1000], 310)
    200
    """
    left = items
    for done, count in enumerate(sorted(counts)):
        share = left // (len(counts) - done)
        if count > share:
            return share
        left -= count
    return items


def script_json(data: Any) -> str:
    r"""JSON for a script element: nothing in it ends the element or begins a comment.

    >>> script_json("</script>")
    '"\\u003c/script\\u003e"'
    """
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


@cache
def _script() -> str:
    return files("hosim.report").joinpath("timeline.js").read_text(encoding="utf-8")


def _fill(what: str) -> tuple[str, str]:
    style = {OP: OP_STYLE, TRANSFER: TRANSFER_STYLE, **CAUSE_STYLES}[what]
    return _GREYS.get(style["facecolor"], style["facecolor"]), style["hatch"][:1]


def _key(label: str, colour: str, hatch: str) -> str:
    backgrounds = {
        "/": "repeating-linear-gradient(135deg, #000 0 1px, transparent 1px 5px)",
        "\\": "repeating-linear-gradient(45deg, #000 0 1px, transparent 1px 5px)",
        ".": "radial-gradient(#000 1px, transparent 1px) 0 0 / 5px 5px",
        "x": "repeating-linear-gradient(45deg, #000 0 1px, transparent 1px 5px), "
        "repeating-linear-gradient(135deg, #000 0 1px, transparent 1px 5px)",
    }
    background = f"{backgrounds[hatch]}, {colour}" if hatch else colour
    return f'<span class="named"><span class="key" style="background: {background}"></span> {escape(label)}</span> '


def _group(one: Shown, own: Sequence[Row], hardware: Hardware, limit: int, names: dict[str, int]) -> dict[str, Any]:
    timeline = timeline_of(one.result)
    times, by_kind = stacked(one.plan.graph, timeline, hardware.device_tier)
    encoded = [_row(one.plan, timeline, row, limit, names) for row in own]
    group: dict[str, Any] = {"title": one.title, "rows": encoded, "blames": _blames(timeline, own, limit)}
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


def _row(plan: Plan, timeline: Timeline, row: Row, limit: int, names: dict[str, int]) -> dict[str, Any]:
    """The bars of a row, in lists.

    ``times`` alternates the gap before each and its length; ``what`` is the number of its style, or below 0 says (from -1 down) which of
    ``many`` it is, several bars together; ``name`` is how much further its place in the page's names is than that of the bar before.
    """
    times, whats, named, many = [], [], [], []
    now = name = 0
    for bars in joined(row.bars, limit):
        first, *others = bars
        start, end = first.start_ns, bars[-1].end_ns
        times += [start - now, end - start]
        now, before = end, name
        if not others:
            whats.append(_NUMBER[first.what])
            name = names.setdefault(_said(plan, timeline, first), len(names))
        else:
            parts = [0] * len(_WHATS)
            for bar in bars:
                parts[_NUMBER[bar.what]] += bar.end_ns - bar.start_ns
            many.append({"count": len(bars), "parts": parts})
            whats.append(-len(many))
        named.append(name - before)
    encoded: dict[str, Any] = {"label": row.label, "times": times, "what": whats, "name": named}
    return encoded | {"many": many} if many else encoded


def front_coded(names: Sequence[str]) -> dict[str, Any]:
    """Names as what each shares with the beginning of the one before, in characters, and the rest of it.

    A character that is two for a browser ends what is shared.

    >>> front_coded(["layer.1", "layer.12", "head"])
    {'shared': [0, 7, 0], 'rests': ['layer.1', '2', 'head']}
    """
    shared = []
    for before, name in zip(["", *names], names, strict=False):
        pairs = zip(before, name, strict=False)
        shared.append(next((k for k, (a, b) in enumerate(pairs) if a != b or ord(a) > _ONE_UNIT), min(len(before), len(name))))
    return {"shared": shared, "rests": [name[k:] for k, name in zip(shared, names, strict=True)]}


def _blames(timeline: Timeline, own: Sequence[Row], limit: int) -> list[int]:
    """Four numbers for each stall that is blamed on a transfer: its row and place among the row's bars, and those of the transfer.

    Places are how much further they are than in the four before.
    """
    at: dict[int, tuple[int, int]] = {}
    stalls = []
    for r, row in enumerate(own):
        for i, bars in enumerate(joined(row.bars, limit)):
            at |= {bar.number: (r, i) for bar in bars if bar.what == TRANSFER}
            if len(bars) == 1 and bars[0].what in STALL_CAUSES:
                stalls.append((r, i, timeline.stalls[bars[0].number].transfer))
    found = [(r, i, *at[transfer]) for r, i, transfer in stalls if transfer in at]
    before = [(0, 0, 0, 0), *found]
    return [n for (r, i, other, j), (_, last_i, _, last_j) in zip(found, before, strict=False) for n in (r, i - last_i, other, j - last_j)]


def joined(bars: Sequence[Bar], limit: int) -> list[list[Bar]]:
    """The bars one by one if there are at most ``limit``, else with neighbours joined: at most about twice as many lists.

    A bar of at least two ``limit``-ths of the time stays alone, and so do bars between two gaps of that length.
    """
    if len(bars) <= limit:
        return [[bar] for bar in bars]
    shortest = 2 * (bars[-1].end_ns - bars[0].start_ns) // max(limit, 1)
    groups: list[list[Bar]] = []
    for bar in bars:
        last = groups[-1] if groups else None
        alone = bar.end_ns - bar.start_ns >= shortest
        if last is None or alone or bar.start_ns - last[-1].end_ns >= shortest or last[-1].end_ns - last[0].start_ns >= shortest:
            groups.append([bar])
        else:
            last.append(bar)
    return groups


def _said(plan: Plan, timeline: Timeline, bar: Bar) -> str:
    if bar.what == TRANSFER:
        return f"{bar_name(plan, timeline, bar)}, {human_size(timeline.transfers[bar.number].bytes)}"
    return plan.graph.ops[bar.number if bar.what == OP else timeline.stalls[bar.number].op].name
