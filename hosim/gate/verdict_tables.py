"""A check's verdicts, and a baseline, on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType

from hosim.gate.judged_metrics import IMPROVEMENT, NEW, REGRESSION, SAME, MetricVerdict, human
from hosim.gate.records import Record
from hosim.gate.reports import changed_metrics, details, noted, with_a_row
from hosim.gate.verdicts import FAILING, CaseVerdict, summary
from hosim.plain_text import counted
from hosim.report.answers import Answer
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
    share = f"{sign}{100 * m.change / m.before:.1f} %" if m.change and m.before else ""
    return (
        m.name,
        m.verdict,
        before,
        now,
        f"{sign}{human(m.name, m.change)}" if m.change else NOTHING,
        share,
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
    table = open_table(title, "metric", "value", left=1)
    for name, value in sorted(record.metrics.items()):
        table.add_row(name, human(name, value))
    parts: list[RenderableType] = [table]
    for tier, peak in sorted(record.peaks.items()):
        held = open_table(
            f"{tier} at its peak" + (f", at op {peak.op}" if peak.op is not None else ""),
            "kind",
            "bytes",
            left=1,
        )
        for kind, size in sorted(peak.composition.items(), key=lambda pair: -pair[1]):
            held.add_row(kind.replace("_", " "), human_size(size))
        parts.append(held)
    parts += [paragraph(*record.notes, space=True)] if record.notes else []
    versions = ", ".join(f"{name} {number}" for name, number in record.versions.items())
    parts.append(paragraph(f"Written by hosim {record.hosim} (versions: {versions}).", style="dim"))
    return Group(*parts)
