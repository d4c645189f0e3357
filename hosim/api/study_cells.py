"""Cells of a notebook: for what a study returns its answer and the tables that its command prints;
:mod:`hosim.report.cells` has the others.
"""

from __future__ import annotations

from rich.console import Group

from hosim.report import cell as cell_of_data
from hosim.report import html
from hosim.report.of_studies import blame, diff, fit, frontier
from hosim.report.printing import paragraph
from hosim.study import Blame, Diff, lines, stall_rows
from hosim.study.searches import Fit, Frontier, fit_rows, frontier_rows

_MOST = 20
"""Rows of stalls, and of what differs."""


def cell(of: object) -> str:
    """The HTML of an answer of a study, or of anything that :func:`hosim.report.cells.cell`
    writes.
    """
    if isinstance(of, Fit):
        return html(Group(paragraph(f"{of}."), fit(fit_rows(of), "", of.answer is not None)))
    if isinstance(of, Frontier):
        table = frontier(frontier_rows(of), of.question.hardware, "")
        return html(Group(paragraph(f"{of}."), table))
    if isinstance(of, Diff):
        return html(diff(of.figures, of.tensors, of.ops, str(of), (of.a, of.b), _MOST, of.parts))
    if isinstance(of, Blame):
        longest = sorted(of.stalls, key=lambda stall: -stall.stall_ns)
        return html(
            blame(stall_rows(longest[:_MOST]), len(longest), of.by_cause, lines(of.prices), str(of))
        )
    return cell_of_data(of)
