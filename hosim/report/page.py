"""A self-contained HTML page of tables and pictures: one file, nothing fetched from anywhere."""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from hosim.report.figures import image

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a; background: #fff }
table { border-collapse: collapse; margin: 0.8rem 0; display: block; max-width: 100%; overflow-x: auto }
th, td { padding: 0.25rem 0.9rem 0.25rem 0; border-bottom: 1px solid #ddd; text-align: right }
th { font-weight: 600 } img { max-width: 100%; height: auto }
td { white-space: nowrap } th.left, td.left { text-align: left; white-space: normal; min-width: 5rem }
.timeline canvas { border: 1px solid #ddd; cursor: grab; touch-action: pan-y } .timeline canvas:focus { outline: 1px solid #2f6fb0 }
.timeline .told, .timeline .chosen { margin: 0.2rem 0; min-height: 1.5em; font-variant-numeric: tabular-nums }
.timeline .legend button { min-width: 2rem }
.timeline .chosen { color: #a3004f } .timeline button[aria-pressed="true"] { background: #2f6fb0; color: #fff }
@media (max-width: 40rem) { body { margin: 0.5rem auto } h1 { font-size: 1.4rem; overflow-wrap: anywhere } h2 { font-size: 1.15rem }
p:has(> img) { overflow-x: auto } p > img { max-width: none; width: 44rem } }
.timeline .named { white-space: nowrap }
.timeline .key { display: inline-block; width: 1.6rem; height: 0.9rem; vertical-align: -0.1rem; margin-left: 0.6rem }
tr.bad td { color: #a31515; font-weight: 600 } ul { padding-left: 1.2rem }
code { background: #f3f3f3; padding: 0 0.2rem }
"""

_POLICY = (
    '<meta http-equiv="Content-Security-Policy" '
    "content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'\">"
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


def lines(texts: Iterable[str]) -> str:
    """Lines of plain text, one below the other."""
    return "<ul>" + "".join(f"<li>{escape(text)}</li>" for text in texts) + "</ul>"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1, bad: Collection[int] = ()) -> str:
    """A table of plain text, its first ``left`` columns to the left and the others to the right; without ``columns`` it has no head.

    The rows whose numbers are ``bad`` are marked.
    """

    def row(tag: str, cells: Sequence[str], mark: str = "") -> str:
        sides = (' class="left"' if k < left else "" for k in range(len(cells)))
        return f"<tr{mark}>" + "".join(f"<{tag}{side}>{escape(cell)}</{tag}>" for side, cell in zip(sides, cells, strict=True)) + "</tr>"

    head = f"<thead>{row('th', columns)}</thead>\n" if columns else ""
    body = "\n".join(row("td", cells, ' class="bad"' if k in bad else "") for k, cells in enumerate(rows))
    return f"<table>\n{head}<tbody>\n{body}\n</tbody>\n</table>"


def picture(figure: Figure, description: str) -> str:
    """A figure as a PNG within the page."""
    data = base64.b64encode(image(figure)).decode()
    return f'<p><img alt="{escape(description, quote=True)}" src="data:image/png;base64,{data}"></p>'
