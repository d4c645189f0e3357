"""Cells of a notebook: the tables of the terminal as HTML, and the timeline of a recorded
replay.
"""

import re
from collections import Counter
from collections.abc import Iterator
from html import escape

from rich.console import Group, RenderableType
from rich.text import Text

from hosim.cache_plan import Plan
from hosim.data.memory_fit import MemoryFit
from hosim.engine import resident_step
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.policies import Policy, package_of
from hosim.policies import policy_names as names
from hosim.report import page_parts as page
from hosim.report.drawn import replay_figure
from hosim.report.listed import machine, memory_fit, policies, workload
from hosim.report.of_replays import channels, composition, failures, replay
from hosim.report.printing import NOTHING, open_table, paragraph, time_or_nothing
from hosim.report.result_pages import html_of
from hosim.result import STALL_CAUSES, Result
from hosim.units import human_size

_STYLES = (
    ("h2>", "h4>"),
    (' class="left"', ' style="text-align: left"'),
    ("<img ", '<img style="max-width: 100%" '),
)
"""A page has a style sheet, a cell has not. Text in it is escaped, so that none of it is taken for
a tag.
"""
_FOLDS = re.compile(r' (class="fold\d+" style="[^"]*"|data-of="[^"]*")')
"""Attributes by which a page's style sheet shows a table in a narrow window."""


def cell(of: object) -> str:
    """The HTML of a graph, a plan, a machine, a policy or a result; of anything else its text.
    Names in it are data, and escaped.
    """
    if isinstance(of, Graph):
        shown = workload(of)
    elif isinstance(of, Hardware):
        shown = machine(of)
    elif isinstance(of, Plan):
        shown = plan(of)
    elif isinstance(of, Policy):
        shown = policies([of], [package_of(of.name) if of.name in names() else "your own"])
    elif isinstance(of, Result):
        return _of_result(of)
    elif isinstance(of, MemoryFit):
        shown = memory_fit(of)
    else:
        return f"<pre>{escape(str(of))}</pre>"
    return html(shown)


def html(shown: RenderableType) -> str:
    """Return the output of a terminal, as the HTML of a cell."""
    return _joined(_parts(shown))


def plan(of: Plan) -> RenderableType:
    """Return the moves of a plan: its cache ops by what they do and between which tiers, and where
    tensors without a home lie at the start.
    """
    counts, sizes = Counter[tuple[str, str, str]](), Counter[tuple[str, str, str]]()
    for op in of.cache_ops:
        key = op.op, op.source, op.destination or NOTHING
        counts[key] += 1
        sizes[key] += of.graph.tensors[op.tensor].size_bytes
    moves = open_table(
        "Cache ops",
        "op",
        "from",
        "to",
        "cache ops",
        "bytes",
        left=3,
        rows=[(*key, f"{count:,}", human_size(sizes[key])) for key, count in counts.items()],
    )
    starts, held = Counter[str](), Counter[str]()
    for t, tiers in of.initial.items():
        for tier in tiers:
            starts[tier] += 1
            held[tier] += of.graph.tensors[t].size_bytes
    initial = open_table(
        "At time 0, as the plan says",
        "tier",
        "tensors",
        "bytes",
        rows=[(tier, f"{count:,}", human_size(held[tier])) for tier, count in starts.items()],
    )
    return Group(paragraph(repr(of)), *([moves] if counts else []), *([initial] if starts else []))


def _of_result(result: Result) -> str:
    if result.replayed is None:
        return _joined([page.paragraph(repr(result)), *_parts(_figures(result))])
    replayed, hardware = result.replayed
    resident = resident_step(replayed.workload, hardware).breakdown
    parts = list(_parts(replay(replayed.workload, hardware, resident, result)))
    if result.timeline is not None:
        parts.append(
            page.picture(
                replay_figure(replayed.graph, hardware, result), "Timeline, memory and channels"
            )
        )
    return _joined(parts)


def _figures(result: Result) -> RenderableType:
    """Return the figures of a result without its plan and its machine."""
    if not result.feasible:
        return failures([result])
    stalls = open_table("Stalls", *STALL_CAUSES, left=0)
    stalls.add_row(*(time_or_nothing(result.stall_ns.get(cause, 0)) for cause in STALL_CAUSES))
    peaks = open_table(
        "Peaks",
        "tier",
        "peak",
        "of which",
        rows=[
            (tier, human_size(peak), composition(result.peak_breakdown.get(tier, {})))
            for tier, peak in result.peak_bytes.items()
        ],
    )
    return Group(stalls, peaks, channels([result]))


def _parts(shown: RenderableType) -> Iterator[str]:
    """Like :func:`hosim.report.result_pages.html_of`, but what is drawn with characters keeps its
    lines.
    """
    if isinstance(shown, Group):
        for part in shown.renderables:
            yield from _parts(part)
    elif isinstance(shown, Text) and "\n" in shown.plain.strip():
        yield f"<pre>{escape(shown.plain.rstrip())}</pre>"
    else:
        yield from html_of(shown)


def _joined(parts: Iterator[str] | list[str]) -> str:
    text = "\n".join(parts)
    for of_a_page, of_a_cell in _STYLES:
        text = text.replace(of_a_page, of_a_cell)
    return _FOLDS.sub("", text)
