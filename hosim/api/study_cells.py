"""Cells of a notebook: for what a study returns the tables that its command prints; :mod:`hosim.report.cells` has the others."""

from __future__ import annotations

from hosim.api.serving_studies import ServingFit
from hosim.report import cells, studies
from hosim.report.serving_studies_table import serving_fit
from hosim.study import blame as stalls
from hosim.study import fit as fits
from hosim.study import frontier as frontiers
from hosim.study.diff import Diff
from hosim.study.fit import Fit
from hosim.study.frontier import Frontier
from hosim.study.prices import lines
from hosim.study.stall_report import Blame

_MOST = 20
"""Rows of stalls, and of what differs."""


def cell(of: object) -> str:
    """The HTML of an answer of a study, or of anything that :func:`hosim.report.cells.cell` writes."""
    if isinstance(of, Fit):
        return cells.html(studies.fit(fits.rows(of), str(of), of.answer is not None))
    if isinstance(of, ServingFit):
        return cells.html(serving_fit(of.rows, list(of.limits_ns), str(of), of.answer is not None))
    if isinstance(of, Frontier):
        return cells.html(studies.frontier(frontiers.rows(of), of.question.hardware, str(of)))
    if isinstance(of, Diff):
        return cells.html(studies.diff(of.figures, of.tensors, of.ops, str(of), (of.a, of.b), _MOST))
    if isinstance(of, Blame):
        longest = sorted(of.stalls, key=lambda stall: -stall.stall_ns)
        return cells.html(studies.blame(stalls.rows(longest[:_MOST]), len(longest), of.by_cause, lines(of.prices), str(of)))
    return cells.cell(of)
