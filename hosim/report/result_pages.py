"""The reports of ``hosim replay --html`` and ``hosim compare-policies --html``, one file each.

They begin with the answer. Below it are a picture and a zoomable timeline, and the tables of the
terminal, folded.
"""

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from hosim.cache_plan import Plan
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.report import page_parts as page
from hosim.report.answers import Answer, rows_table
from hosim.report.drawn import Shown, memory_figure, resident_figure, widget
from hosim.report.drawn.studies import comparison_figure
from hosim.report.timelines import of_devices
from hosim.result import LISTED_DEVICES, Result


def replay_page(
    answer: Answer,
    plan: Plan,
    hardware: Hardware,
    result: Result,
    tables: Sequence[RenderableType],
) -> str:
    """The page of one recorded replay: its answer, the timeline with the memory of the device tier,
    that of the other tiers, and the ``tables`` of the terminal, folded. Only the first few of
    differing devices have timelines.
    """
    every = of_devices(result)
    shown = [Shown(device, plan, one) for device, one in every[:LISTED_DEVICES]]
    parts = [*answer_parts(answer), *_uncertainty(result), page.heading("Timeline")]
    if len(every) > len(shown):
        parts.append(page.paragraph(f"The first {len(shown)} of {len(every)} devices."))
    parts.append(widget(shown, hardware))
    figure = memory_figure(plan.graph, hardware, result)
    if figure is not None:
        parts.append(
            page.folded("Memory by kind of tensor", [page.picture(figure, "Memory over time")])
        )
    parts.append(_folded_tables(tables))
    return page.page(f"{result.workload} on {result.hardware}: {result.policy}", parts)


def comparison_page(
    answer: Answer,
    graph: Graph,
    hardware: Hardware,
    results: Sequence[Result],
    plans: Sequence[tuple[Plan, Result]],
    tables: Sequence[RenderableType],
) -> str:
    """The page of a comparison: its answer, makespans and peaks, and timelines of ``plans``, those
    that fit, each with its recorded result, the fastest first. What each op of the ``graph`` needs
    and the ``tables`` of the terminal are folded.
    """
    fastest = min(
        [r for r in results if r.makespan_ns], key=lambda r: r.makespan_ns or 0, default=None
    )
    parts = [
        *answer_parts(answer),
        *([] if fastest is None else _uncertainty(fastest)),
        page.picture(comparison_figure(results, hardware.device_tier), "Makespan against peak"),
    ]
    if plans:
        shown = [
            Shown(result.policy, plan, result)
            for plan, result in sorted(plans, key=lambda pair: pair[1].makespan_ns or 0)
        ]
        parts += [page.heading("Timelines"), widget(shown, hardware)]
    picture = page.picture(
        resident_figure(graph, hardware.device_tier, results[0].budget_bytes),
        "Memory that each op needs with everything resident",
    )
    parts += [page.folded("What each op needs", [picture]), _folded_tables(tables)]
    return page.page(f"{results[0].workload} on {results[0].hardware}: policies", parts)


def answer_parts(answer: Answer) -> Iterator[str]:
    """An answer as the first parts of a page: verdict, figures, rows, and what to ask next."""
    yield page.verdict(answer.verdict, bad=not answer.good)
    if answer.figures:
        yield page.cards(answer.figures)
    if answer.rows:
        yield from html_of(rows_table(answer))
    yield from (page.paragraph(f"{note}.") for note in answer.notes)
    if answer.rest:
        yield page.paragraph(f"... {answer.rest}")
    if answer.next_commands:
        yield page.lines([f"`{line}`: {why}" for line, why in answer.next_commands])


def _folded_tables(tables: Sequence[RenderableType]) -> str:
    return page.folded("All figures", [part for table in tables for part in html_of(table)])


def _uncertainty(result: Result) -> Iterator[str]:
    """The sources of the uncertainty of a makespan, as a bar; nothing if all is measured."""
    drawn = result.drawn
    if drawn is not None and drawn.sources:
        yield page.heading(f"What the uncertainty of {result.policy} is from")
        yield page.shares([(source.what, source.share) for source in drawn.sources])


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
