"""The reports of ``hosim replay --html`` and ``hosim compare-policies --html``, one file each.

They have the tables of the terminal, the pictures, and a zoomable timeline.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from hosim.cache_plan import Plan
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.plain_text import printable
from hosim.report import page_parts as page
from hosim.report.drawn import Shown, blank, comparison_figure, memory, replay_figure, style, widget
from hosim.report.timelines import of_devices
from hosim.result import LISTED_DEVICES, Result


def replay_page(
    plan: Plan, hardware: Hardware, result: Result, tables: Sequence[RenderableType]
) -> str:
    """The page of one recorded replay; ``tables`` is what the terminal shows. Only the first few of
    differing devices have timelines.
    """
    every = of_devices(result)
    shown = [Shown(device, plan, one) for device, one in every[:LISTED_DEVICES]]
    parts = [part for table in tables for part in html_of(table)]
    parts += [*_uncertainty(result), page.heading("Timeline")]
    if len(every) > len(shown):
        parts.append(page.paragraph(f"The first {len(shown)} of {len(every)} devices."))
    parts += [widget(shown, hardware), page.heading("Pictures")]
    parts.append(
        page.picture(replay_figure(plan.graph, hardware, result), "Timeline, memory and channels")
    )
    return page.page(f"{result.workload} on {result.hardware}: {result.policy}", parts)


def comparison_page(
    hardware: Hardware,
    results: Sequence[Result],
    plans: Sequence[tuple[Plan, Result]],
    tables: Sequence[RenderableType],
) -> str:
    """The page of a comparison: ``plans`` are those that fit, each with its recorded result."""
    parts = [part for table in tables for part in html_of(table)]
    fastest = min(
        [r for r in results if r.makespan_ns], key=lambda r: r.makespan_ns or 0, default=None
    )
    parts += [
        *([] if fastest is None else _uncertainty(fastest)),
        page.heading("Makespan and memory"),
        page.picture(comparison_figure(results, hardware.device_tier), "Makespan against peak"),
    ]
    if plans:
        shown = [Shown(result.policy, plan, result) for plan, result in plans]
        parts += [
            page.heading("Timelines"),
            widget(shown, hardware),
            page.heading("Memory over time"),
        ]
        parts += [_memory(plan.graph, hardware, result) for plan, result in plans]
    return page.page(f"{results[0].workload} on {results[0].hardware}: policies", parts)


def _uncertainty(result: Result) -> Iterator[str]:
    """Where the uncertainty of a makespan is from, as a bar; nothing where all is measured."""
    drawn = result.drawn
    if drawn is not None and drawn.sources:
        yield page.heading(f"What the uncertainty of {result.policy} is from")
        yield page.shares([(source.what, source.share) for source in drawn.sources])


def _memory(graph: Graph, hardware: Hardware, result: Result) -> str:
    with style():
        figure, (axes,) = blank([2.7])
        memory(axes, graph, hardware, result, hardware.device_tier)
        axes.set_title(printable(f"{result.policy}: {hardware.device_tier}"))
    return page.picture(figure, f"Memory over time, {result.policy}")


def html_of(renderable: RenderableType) -> Iterator[str]:
    r"""The tables and texts of a terminal, within groups and panels, as parts of a page, without
    colours; each line is a paragraph.

    >>> list(html_of(Text("a < b\n\nc")))
    ['<p>a &lt; b</p>', '<p>c</p>']
    """
    if isinstance(renderable, Group):
        for part in renderable.renderables:
            yield from html_of(part)
    elif isinstance(renderable, Panel):
        yield from html_of(renderable.renderable)
    elif isinstance(renderable, Table):
        yield from _table(renderable)
    elif isinstance(renderable, Text):
        yield from (
            page.paragraph(line.strip()) for line in renderable.plain.splitlines() if line.strip()
        )
    else:
        yield page.paragraph(str(renderable))


def _table(table: Table) -> Iterator[str]:
    if table.title:
        yield page.heading(_plain(table.title))
    columns = [_plain(column.header) for column in table.columns]
    left = sum(column.justify == "left" for column in table.columns)
    cells = zip(*([_plain(cell) for cell in column.cells] for column in table.columns), strict=True)
    yield page.table(columns if any(columns) else (), cells, left=left)


def _plain(cell: RenderableType) -> str:
    text = cell if isinstance(cell, Text) else Text(str(cell))
    return text.plain.replace("\n", " ")
