"""The report of ``hosim serve --html`` as one file: the tables of the terminal, a zoomable timeline
and the pictures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import RenderableType

from hosim.report import heading, html_of, page, picture
from hosim.serving.report.serving_figures import serving_figure
from hosim.serving.report.serving_timeline import serving_widget

if TYPE_CHECKING:
    from hosim.serving import Served


def serving_page(served: Served, tables: RenderableType) -> str:
    """The page of a run; ``tables`` is what the terminal shows."""
    parts = list(html_of(tables))
    parts += [
        heading("Timeline"),
        serving_widget(served),
        heading("Over time"),
        picture(serving_figure(served), "Sequences, cache and latencies over time"),
    ]
    return page(f"Serving {served.about['model']} on {served.about['hardware']}", parts)
