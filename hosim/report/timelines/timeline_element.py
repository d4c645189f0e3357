"""A zoomable timeline as a part of an HTML page: its bars as JSON, a canvas, and a script that
draws them; nothing is fetched.

A page holds at most about :data:`ITEMS` bars. If there are more, adjacent short ones are joined
into one that shows their number and how their time divides.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

from hosim.report.timelines.timeline_rows import Bar, Row

ITEMS = 50_000
"""The approximate number of bars of a page: at most some 1.5 MB."""

_ONE_UNIT = 0xFFFF
"""The last character that is one unit of text for a browser."""
_GREYS = {"0.25": "#404040", "0.62": "#9e9e9e"}

Link = tuple[int, int, int, int]
"""A row and a place among its bars, and those of the bar that belongs to it."""


@dataclass(frozen=True, slots=True)
class BarStyle:
    """The style of a bar: its name in the key, its colour and hatch; ``role`` is ``named`` (it
    shows its name), ``plain``, or ``stall`` (before an op).
    """

    label: str
    style: Mapping[str, Any]
    role: str

    @property
    def colour(self) -> str:
        """As a style sheet writes it."""
        colour: str = self.style["facecolor"]
        return _GREYS.get(colour, colour)

    @property
    def hatch(self) -> str:
        """One of the characters of matplotlib, or nothing."""
        hatch: str = self.style["hatch"]
        return hatch[:1]


class Encoder:
    """Rows of bars as the script reads them, with one list of names for all of them."""

    def __init__(self, styles: Mapping[str, BarStyle], rows: Iterable[Row]) -> None:
        self.styles = styles
        self.names: dict[str, int] = {}
        self.any_joined = False
        self._limit = row_limit([len(row.bars) for row in rows])
        self._number = {what: k for k, what in enumerate(styles)}

    def row(self, row: Row, said: Callable[[Bar], str]) -> dict[str, Any]:
        """The bars of a row, in lists; ``said`` names a bar.

        ``times`` alternates the gap before each and its length; ``what`` is the number of its
        style, or below 0 says (from -1 down) which of ``many`` it is, several bars together;
        ``name`` is how much further its place in the page's names is than that of the bar before.
        """
        times, whats, named, many = [], [], [], []
        now = name = 0
        for bars in self.joined(row):
            first, *others = bars
            start, end = first.start_ns, bars[-1].end_ns
            times += [start - now, end - start]
            now, before = end, name
            if not others:
                whats.append(self._number[first.what])
                name = self.names.setdefault(said(first), len(self.names))
            else:
                parts = [0] * len(self.styles)
                for bar in bars:
                    parts[self._number[bar.what]] += bar.end_ns - bar.start_ns
                many.append({"count": len(bars), "parts": parts})
                whats.append(-len(many))
            named.append(name - before)
        self.any_joined |= bool(many)
        encoded: dict[str, Any] = {"label": row.label, "times": times, "what": whats, "name": named}
        return encoded | {"many": many} if many else encoded

    def joined(self, row: Row) -> list[list[Bar]]:
        """The bars of a row as the page has them: each list is one bar of the page."""
        return joined(row.bars, self._limit)


def element(
    encoder: Encoder,
    groups: Sequence[Mapping[str, Any]],
    end_ns: int,
    says: str,
    more: Mapping[str, Any],
    marks: str = "",
    buttons: str = "",
) -> str:
    """The part of a page that shows ``groups`` of encoded rows from 0 to ``end_ns``; ``says``
    explains it.

    ``more`` is further data for the script, ``marks`` and ``buttons`` are further HTML for the
    legend.
    """
    data = {
        "end": end_ns,
        "styles": [
            [style.label, style.colour, style.hatch, style.role]
            for style in encoder.styles.values()
        ],
        "names": front_coded(list(encoder.names)),
        "groups": groups,
        **more,
    }
    note = (
        " Adjacent short ops are joined: the height of each colour is its share of the time."
        if encoder.any_joined
        else ""
    )
    keys = "".join(key(style.label, style.colour, style.hatch) for style in encoder.styles.values())
    return (
        '<div class="timeline">\n'
        "<p>The wheel or two fingers zoom, dragging moves, a double click shows all; with the "
        "keyboard: + and -, arrows, 0. Dragging with "
        f"shift, or after a click on &ldquo;measure&rdquo;, measures. {escape(says)}{note}</p>\n"
        f'<p class="legend">{keys}{marks}<button data-does="in">+</button> '
        '<button data-does="out">&minus;</button> <button data-does="all">all</button> '
        f'<button data-does="measure" aria-pressed="false">measure</button> {buttons}'
        '<input type="search" placeholder="find a name" aria-label="Find a bar by its name; Enter '
        'shows the next one"></p>\n'
        '<canvas tabindex="0" role="img" aria-label="Timeline of streams and channels" '
        'style="width: 100%"></canvas>\n'
        '<p class="told">&nbsp;</p>\n<p class="chosen" aria-live="polite">&nbsp;</p>\n'
        "<script "
        f'type="application/json">{script_json(data)}</script>\n<script>\n{_script()}</script>\n</div>'
    )


def row_limit(counts: Sequence[int], items: int = ITEMS) -> int:
    """The most bars of a row with which all rows together have at most ``items`` bars; short rows
    leave room for long ones.

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


def key(label: str, colour: str, hatch: str) -> str:
    """An entry of the legend, with its style: a cell of a notebook has no style sheet."""
    backgrounds = {
        "/": "repeating-linear-gradient(135deg, #000 0 1px, transparent 1px 5px)",
        "\\": "repeating-linear-gradient(45deg, #000 0 1px, transparent 1px 5px)",
        ".": "radial-gradient(#000 1px, transparent 1px) 0 0 / 5px 5px",
        "x": "repeating-linear-gradient(45deg, #000 0 1px, transparent 1px 5px), "
        "repeating-linear-gradient(135deg, #000 0 1px, transparent 1px 5px)",
    }
    background = f"{backgrounds[hatch]}, {colour}" if hatch else colour
    return (
        '<span style="white-space: nowrap; margin-right: 0.6em"><span style="display: inline-block; '
        f'width: 1.6em; height: 0.9em; vertical-align: -0.1em; background: {background}"></span> '
        f"{escape(label)}</span> "
    )


def front_coded(names: Sequence[str]) -> dict[str, Any]:
    """Names as what each shares with the beginning of the one before, in characters, and the rest
    of it.

    A character that is two for a browser ends what is shared.

    >>> front_coded(["layer.1", "layer.12", "head"])
    {'shared': [0, 7, 0], 'rests': ['layer.1', '2', 'head']}
    """
    shared = []
    for before, name in zip(["", *names], names, strict=False):
        pairs = zip(before, name, strict=False)
        shared.append(
            next(
                (k for k, (a, b) in enumerate(pairs) if a != b or ord(a) > _ONE_UNIT),
                min(len(before), len(name)),
            )
        )
    return {"shared": shared, "rests": [name[k:] for k, name in zip(shared, names, strict=True)]}


def further(links: Sequence[Link]) -> list[int]:
    """Links as four numbers each: the places among the bars are how much further they are than in
    the link before.
    """
    return [
        n
        for (r, i, other, j), (_, last_i, _, last_j) in zip(
            links, [(0, 0, 0, 0), *links], strict=False
        )
        for n in (r, i - last_i, other, j - last_j)
    ]


def joined(bars: Sequence[Bar], limit: int) -> list[list[Bar]]:
    """The bars one by one if there are at most ``limit``, else with neighbours joined: at most
    about twice as many lists.

    A bar of at least two ``limit``-ths of the time stays alone, and so do bars between two gaps of
    that length.
    """
    if len(bars) <= limit:
        return [[bar] for bar in bars]
    shortest = 2 * (bars[-1].end_ns - bars[0].start_ns) // max(limit, 1)
    groups: list[list[Bar]] = []
    for bar in bars:
        last = groups[-1] if groups else None
        alone = bar.end_ns - bar.start_ns >= shortest
        if (
            last is None
            or alone
            or bar.start_ns - last[-1].end_ns >= shortest
            or last[-1].end_ns - last[0].start_ns >= shortest
        ):
            groups.append([bar])
        else:
            last.append(bar)
    return groups
