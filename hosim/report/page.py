"""A self-contained HTML page of tables and pictures: one file, nothing fetched from anywhere."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from hosim.report.figures import image

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a; background: #fff }
table { border-collapse: collapse; margin: 0.8rem 0 }
th, td { padding: 0.25rem 0.9rem 0.25rem 0; border-bottom: 1px solid #ddd; text-align: right }
th:first-child, td:first-child { text-align: left } th { font-weight: 600 } img { max-width: 100%; height: auto }
code { background: #f3f3f3; padding: 0 0.2rem }
"""


def page(title: str, parts: Iterable[str]) -> str:
    """A page of the parts, one after the other; the same parts give the same text."""
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n{body}\n</body>\n</html>\n"
    )


def heading(text: str) -> str:
    """A heading within the page."""
    return f"<h2>{escape(text)}</h2>"


def paragraph(text: str) -> str:
    """A paragraph of plain text."""
    return f"<p>{escape(text)}</p>"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of plain text, its first column to the left and the others to the right."""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def picture(figure: Figure, description: str) -> str:
    """A figure as a PNG within the page."""
    data = base64.b64encode(image(figure)).decode()
    return f'<p><img alt="{escape(description, quote=True)}" src="data:image/png;base64,{data}"></p>'
