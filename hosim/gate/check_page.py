"""The page of ``hosim check --html``: verdicts, explanations, memory before and after in one
picture, and changes of the plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hosim.gate.judged_metrics import MAKESPAN, SAME
from hosim.gate.reports import changed_metrics, noted, with_a_row
from hosim.gate.verdict_tables import metric_cells
from hosim.gate.verdicts import FAILING, CaseVerdict, plan_changes, summary
from hosim.report import heading, lines, page, paragraph, picture, table
from hosim.report.drawn import Curve, change_figure

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
        yield paragraph(", ".join(f"{key} {text}" for key, text in known.asked.items()))
    if v.note:
        yield paragraph(v.note)
    if v.metrics:
        bad = [k for k, m in enumerate(v.metrics) if m.verdict in FAILING]
        yield table(
            ("metric", "verdict", "before", "now", "change", ""),
            map(metric_cells, v.metrics),
            left=2,
            bad=bad,
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
        yield paragraph(f"and {len(changes) - ROWS} more")
