"""A self-contained HTML page of tables and pictures: one file, nothing fetched from anywhere."""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from hosim.report.drawn import embedded

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FOLDS = (30, 40, 52, 66, 84, 1000)
"""Widths of a window in rem up to which a table that needs more room is shown in blocks, a row of
it each; the last is any window.
"""

_REM, _CHARACTER, _BETWEEN, _LEFT_MOST = 16, 9.0, 15, 40
"""Points of a rem, of a character and between two columns, to estimate the room of a table; of a
text that wraps so many count.
"""

_ANY = 23
"""Tables that need no more rem than this fit every window."""

_BLOCKS = """
table.FOLD thead { display: none }
table.FOLD tr { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, var(--cell)), 1fr));
gap: 0 1.2rem; padding: 0.4rem 0; border-bottom: 1px solid #ddd }
table.FOLD, table.FOLD tbody { display: block } table.FOLD td { display: flex; justify-content: space-between; gap: 0.6rem; border: 0;
padding: 0; white-space: normal } table.FOLD td.left { grid-column: 1 / -1; display: block; overflow-wrap: anywhere }
table.FOLD td::before { content: attr(data-of); color: #666; font-weight: 400; text-align: left; flex: none }
table.FOLD td.left::before { margin-right: 0.6rem }
table.FOLD td:first-child { font-weight: 600 } table.FOLD td:first-child::before { content: none }"""

_STYLE = (
    """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 82rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a; background: #fff }
h1, h2, p, li { overflow-wrap: anywhere } p, ul { max-width: 72rem }
table { border-collapse: collapse; margin: 0.8rem 0; display: block; max-width: 100%; overflow-x: auto }
th, td { padding: 0.25rem 0.9rem 0.25rem 0; border-bottom: 1px solid #ddd; text-align: right }
th { font-weight: 600 } img { max-width: 100%; height: auto }
td { white-space: nowrap } th.left, td.left { text-align: left; white-space: normal; min-width: 5rem }
.timeline canvas { box-sizing: border-box; border: 1px solid #ddd; cursor: grab; touch-action: pan-y }
.timeline canvas:focus { outline: 1px solid #2f6fb0 }
.timeline .told, .timeline .chosen { margin: 0.2rem 0; min-height: 1.5em; font-variant-numeric: tabular-nums }
.timeline .legend button { min-width: 2rem; margin-left: 0.3rem } .timeline .legend input { margin-left: 0.3rem }
.timeline .chosen { color: #a3004f } .timeline button[aria-pressed="true"] { background: #2f6fb0; color: #fff }
tr.bad td, .bad { color: #a31515; font-weight: 600 } .verdict { font-size: 1.1rem; font-weight: 600 } ul { padding-left: 1.2rem }
div.shares { display: flex; height: 1.2rem; max-width: 44rem; background: #e9e9e9 } ul.shares { list-style: none; padding: 0 }
ul.shares span { display: inline-block; width: 1rem; height: 0.8rem; margin-right: 0.5rem }
small { color: #666; font-weight: 400 }
code { background: #f3f3f3; padding: 0 0.2rem } summary { cursor: pointer; font-weight: 600; margin: 1rem 0 }
.cards { display: flex; flex-wrap: wrap; gap: 0.8rem }
.cards p { border: 1px solid #ddd; border-radius: 0.4rem; margin: 0; padding: 0.5rem 1rem }
.cards b { display: block; font-size: 1.6rem; font-variant-numeric: tabular-nums }
@media (prefers-color-scheme: dark) { body { color: #e4e4e4; background: #16181b } a { color: #8ab4f8 } code { background: #2a2d31 }
small { color: #aaa }
th, td, .cards p { border-color: #3a3d42 } tr.bad td, .bad { color: #ff8a80 } .timeline .chosen { color: #ff7ab8 }
p > img, .timeline canvas { background: #fff } p > img { border-radius: 0.3rem } }
@media (max-width: 40rem) { body { margin: 0.5rem auto } h1 { font-size: 1.4rem } h2 { font-size: 1.15rem }
p:has(> img) { overflow-x: auto } p > img { max-width: none; width: 44rem }
p:has(> img)::before { content: "wider than this window: drag it sideways"; display: block; position: sticky; left: 0; color: #666;
font-size: 0.8rem } }"""
    + "".join(
        f"\n@media (max-width: {width}rem) {{{_BLOCKS.replace('FOLD', f'fold{width}')} }}"
        for width in _FOLDS
    )
    + "\n"
)

_SHARES = ("#2f6fb0", "#e6853d", "#8fc98f", "#c6dbef", "#c2542d", "#7a7a7a")
"""The colours of shares, one after the other."""

_UNBROKEN = 32
"""A word of more characters may be broken where :data:`_JOINTS` says."""
_NAME = re.compile(r"`([^`]+)`")
_JOINTS = re.compile(r"(?<=[_,.:/=)])(?!$)")

_POLICY = (
    '<meta http-equiv="Content-Security-Policy" '
    "content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src "
    "'unsafe-inline'\">"
)
"""A browser may load nothing but what is in the file."""


def page(title: str, parts: Iterable[str]) -> str:
    """A page of the parts, one after the other; the same parts give the same text."""
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"{_POLICY}\n<title>{escape(title)}</title>\n"
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n{body}\n</body>\n</html>\n"
    )


def heading(text: str) -> str:
    """A heading within the page."""
    return f"<h2>{escape(text)}</h2>"


def paragraph(text: str) -> str:
    """A paragraph of plain text."""
    return f"<p>{escape(text)}</p>"


def cards(figures: Iterable[tuple[str, str]]) -> str:
    """Figures that matter most, each in large type above its label.

    >>> cards([("time", "5 ms")])
    '<div class="cards"><p><b>5 ms</b>time</p></div>'
    """
    each = (f"<p><b>{escape(value)}</b>{escape(label)}</p>" for label, value in figures)
    return f'<div class="cards">{"".join(each)}</div>'


def folded(title: str, parts: Iterable[str]) -> str:
    r"""Parts that a reader unfolds by a click on their title.

    >>> folded("Tables", ["<p>a</p>"])
    '<details><summary>Tables</summary>\n<p>a</p>\n</details>'
    """
    return "\n".join([f"<details><summary>{escape(title)}</summary>", *parts, "</details>"])


def verdict(text: str, bad: bool) -> str:
    """Return the conclusion of the page, in large type; in the colour of what is ``bad``."""
    return f'<p class="verdict{" bad" if bad else ""}">{escape(text)}</p>'


def lines(texts: Iterable[str]) -> str:
    """Lines of plain text, one below the other; what stands between backticks is a name.

    >>> lines(["`a<b` is now", "5 `"])
    '<ul><li><code>a&lt;b</code> is now</li><li>5 `</li></ul>'
    """
    items = (_NAME.sub(r"<code>\1</code>", escape(text)) for text in texts)
    return "<ul>" + "".join(f"<li>{item}</li>" for item in items) + "</ul>"


def shares(parts: Sequence[tuple[str, float]]) -> str:
    """One bar of shares of a whole, from 0 to 1, with the name and the per cents of each below; what
    they lack stays grey.

    >>> shares([("a < b", 0.5)]).splitlines()[0]
    '<div class="shares"><span style="width: 50.0%; background: #2f6fb0"></span></div>'
    """
    coloured = [(name, share, _SHARES[k % len(_SHARES)]) for k, (name, share) in enumerate(parts)]
    spans = [
        f'<span style="width: {100 * share:.1f}%; background: {colour}"></span>'
        for _, share, colour in coloured
    ]
    named = [
        f'<li><span style="background: {colour}"></span>{escape(name)}: {100 * share:.0f} %</li>'
        for name, share, colour in coloured
    ]
    return f'<div class="shares">{"".join(spans)}</div>\n<ul class="shares">{"".join(named)}</ul>'


def _cell(text: str) -> str:
    """Escaped; long words may be broken, so that they take no room from the other cells. Lines after
    the first are small.

    >>> _cell("a::very_long_name_of_a_kernel_or_<a_layer> b_c")
    'a:<wbr>:<wbr>very_<wbr>long_<wbr>name_<wbr>of_<wbr>a_<wbr>kernel_<wbr>or_<wbr>&lt;a_<wbr>layer&gt; b_c'
    """
    first, *more = (
        " ".join(
            escape(word)
            if len(word) <= _UNBROKEN
            else "<wbr>".join(map(escape, _JOINTS.split(word)))
            for word in line.split(" ")
        )
        for line in text.split("\n")
    )
    return first + "".join(f"<br><small>{line}</small>" for line in more)


def table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1, bad: Collection[int] = ()
) -> str:
    """A table of plain text, its first ``left`` columns to the left and the others to the right;
    without ``columns`` it has no head.

    The rows whose numbers are ``bad`` are marked. In a window that is too narrow for the table each
    row of it is a block.
    """
    listed = list(rows)
    fold = _fold(columns, listed, left)

    def row(tag: str, cells: Sequence[str], mark: str = "", names: Sequence[str] = ()) -> str:
        sides = [' class="left"' if k < left else "" for k in range(len(cells))]
        named = [f' data-of="{escape(name, quote=True)}"' if name else "" for name in names] or [
            ""
        ] * len(cells)
        return (
            f"<tr{mark}>"
            + "".join(
                f"<{tag}{x}{y}>{_cell(z)}</{tag}>"
                for x, y, z in zip(sides, named, cells, strict=True)
            )
            + "</tr>"
        )

    head = f"<thead>{row('th', columns)}</thead>\n" if columns else ""
    names = columns if fold else ()
    body = "\n".join(
        row("td", cells, ' class="bad"' if k in bad else "", names)
        for k, cells in enumerate(listed)
    )
    return f"<table{fold}>\n{head}<tbody>\n{body}\n</tbody>\n</table>"


def _fold(columns: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> str:
    """Return the limits of a table with a head that does not fit every window: the narrowest window
    that it fits, and the room of a cell in a block.
    """
    if not columns:
        return ""
    room, cell = 2.0 * _REM, 0
    for k, name in enumerate(columns):
        longest = max((len(line) for row in rows for line in row[k].split("\n")), default=0)
        heading = max(map(len, name.split()), default=0)
        room += _BETWEEN + _CHARACTER * max(
            heading, min(longest, _LEFT_MOST) if k < left else longest
        )
        cell = cell if k < left else max(cell, len(name) + longest)
    width = next(width for width in _FOLDS if width * _REM >= room or width == _FOLDS[-1])
    return (
        f' class="fold{width}" style="--cell: {round((cell * _CHARACTER + _BETWEEN) / _REM)}rem"'
        if room > _ANY * _REM
        else ""
    )


def picture(figure: Figure, description: str) -> str:
    """A figure within the page."""
    kind, data = embedded(figure)
    source = f"data:{kind};base64,{base64.b64encode(data).decode()}"
    return f'<p><img alt="{escape(description, quote=True)}" src="{source}"></p>'
