"""A check's verdicts for people: on a terminal, where a baseline is shown as well, and as the page
of ``hosim check --html``.
"""

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType

from hosim.gate.judged_metrics import (
    IMPROVEMENT,
    MAKESPAN,
    NEW,
    REGRESSION,
    SAME,
    MetricVerdict,
    human,
)
from hosim.gate.records import Record
from hosim.gate.reports import changed_metrics, details, noted, with_a_row
from hosim.gate.verdicts import FAILING, CaseVerdict, plan_changes, summary
from hosim.plain_text import counted
from hosim.report import heading, lines, page, picture, table
from hosim.report import paragraph as html_paragraph
from hosim.report.answers import Answer
from hosim.report.drawn import Curve, change_figure
from hosim.report.of_replays import composition
from hosim.report.printing import NOTHING, open_table, paragraph
from hosim.units import human_size

_STYLES = {**dict.fromkeys(FAILING, "red"), IMPROVEMENT: "green", NEW: "yellow"}


def verdicts(checked: Sequence[CaseVerdict], strict: bool = False) -> RenderableType:
    """One row for each metric that changed (one for a case without changes), the explanations, and
    the counts.
    """
    table = open_table("Check", "case", "verdict", "metric", "before", "now", "change", left=3)
    rows = with_a_row(checked)
    for v in rows:
        changed = changed_metrics(v)
        if not changed:
            table.add_row(
                v.case, v.verdict, NOTHING, NOTHING, NOTHING, NOTHING, style=_STYLES.get(v.verdict)
            )
        for m in changed:
            name, verdict, *values, _ = metric_cells(m)
            table.add_row(v.case, verdict, name, *values, style=_STYLES.get(m.verdict))
    parts: list[RenderableType] = [table] if rows else []
    for v in checked:
        if v.explanation or (v.verdict != SAME and v.note):
            listed = [f"{v.case}: {v.verdict}", *(f"  {line}" for line in details(v))]
            parts.append(
                paragraph(
                    *listed,
                    style="red" if v.verdict == REGRESSION else "",
                    space=True,
                    wrapped=False,
                )
            )
    parts += [paragraph(*said, style="dim", space=True)] if (said := noted(checked)) else []
    failing = sum(v.fails(strict) for v in checked)
    closing = f"{counted(len(checked), 'case')}: {summary(checked)}" + (
        f"; {failing} failing." if failing else "."
    )
    return Group(*parts, paragraph(closing, style="bold red" if failing else "bold"))


def metric_cells(m: MetricVerdict) -> tuple[str, ...]:
    """A metric's name, its verdict, its value before and now, and the change, absolute and in per
    cent.
    """
    before, now = (
        NOTHING if value is None else human(m.name, value) for value in (m.before, m.now)
    )
    sign = "+" if m.change > 0 else ""
    return (
        m.name,
        m.verdict,
        before,
        now,
        f"{sign}{human(m.name, m.change)}" if m.change else NOTHING,
        f"{sign}{100 * m.change / m.before:.1f} %" if m.change and m.before else "",
    )


def baseline(record: Record) -> tuple[Answer, RenderableType]:
    """A baseline in short, what each peak consists of and the metrics that are not zero; and all
    that is in it.
    """
    asked = ", ".join(f"{key} {text}" for key, text in record.asked.items())
    title = f"{record.case}: {asked}" if asked else record.case
    held = [
        f"{tier} {human_size(sum(peak.composition.values()))} ({composition(peak.composition)})"
        for tier, peak in sorted(record.peaks.items())
    ]
    answer = Answer(
        title,
        f"At the peaks: {'; '.join(held)}." if held else "No peaks are recorded.",
        columns=("metric", "value"),
        rows=tuple(
            [(name, human(name, value)) for name, value in sorted(record.metrics.items()) if value]
        ),
        shown=10,
        ranked=False,
        rest="where each peak is, versions (--detail)",
        notes=tuple(record.notes),
    )
    return answer, _whole(title, record)


def _whole(title: str, record: Record) -> RenderableType:
    table = open_table(
        title,
        "metric",
        "value",
        left=1,
        rows=[(name, human(name, value)) for name, value in sorted(record.metrics.items())],
    )
    parts: list[RenderableType] = [table]
    for tier, peak in sorted(record.peaks.items()):
        parts.append(
            open_table(
                f"{tier} at its peak" + (f", at op {peak.op}" if peak.op is not None else ""),
                "kind",
                "bytes",
                left=1,
                rows=[
                    (kind.replace("_", " "), human_size(size))
                    for kind, size in sorted(peak.composition.items(), key=lambda pair: -pair[1])
                ],
            )
        )
    parts += [paragraph(*record.notes, space=True)] if record.notes else []
    versions = ", ".join(f"{name} {number}" for name, number in record.versions.items())
    parts.append(paragraph(f"Written by hosim {record.hosim} (versions: {versions}).", style="dim"))
    return Group(*parts)


ROWS = 40
"""The most changes of a plan to list."""


def check_page(verdicts: Sequence[CaseVerdict], strict: bool = False) -> str:
    """The page, as one self-contained file; unchanged cases have only a row."""
    listed = with_a_row(verdicts)
    rows = [
        (v.case, v.verdict, "; ".join(m.line() for m in changed_metrics(v)) or v.note)
        for v in listed
    ]
    failing = [k for k, v in enumerate(listed) if v.fails(strict)]
    parts = [table(("case", "verdict", "what changed"), rows, left=3, bad=failing)]
    parts += [lines(said)] if (said := noted(verdicts)) else []
    for v in verdicts:
        if v.verdict != SAME:
            parts += _case(v)
    return page(f"hosim check: {summary(verdicts)}", parts)


def _case(v: CaseVerdict) -> Iterator[str]:
    yield heading(f"{v.case}: {v.verdict}")
    known = v.now or v.before
    if known is not None:
        yield html_paragraph(", ".join(f"{key} {text}" for key, text in known.asked.items()))
    if v.note:
        yield html_paragraph(v.note)
    if v.metrics:
        yield table(
            ("metric", "verdict", "before", "now", "change", ""),
            map(metric_cells, v.metrics),
            left=2,
            bad=[k for k, m in enumerate(v.metrics) if m.verdict in FAILING],
        )
    if v.explanation:
        yield lines(v.explanation)
    if v.before is None or v.now is None or v.measured is None:
        return
    if (
        all(v.curves) and MAKESPAN in v.before.metrics and MAKESPAN in v.now.metrics
    ):  # somebody may have taken it out of a baseline
        tier = v.now.machine.get("device_tier", "device")
        before, now = (
            Curve(record.curve, record.metrics[MAKESPAN]) for record in (v.before, v.now)
        )
        yield picture(
            change_figure(before, now, tier), f"Memory of {tier} over time, before and now"
        )
    changes = plan_changes(v.before, v.measured)
    if changes:
        yield table(
            ("changes of the plan", "before", "now"),
            [(c.what, c.before, c.now) for c in changes[:ROWS]],
            left=3,
        )
    if len(changes) > ROWS:
        yield html_paragraph(f"and {len(changes) - ROWS} more")
