"""The gate: it records what a simulated step needs, and judges what a change does to that.

A case (:mod:`~hosim.gate.cases`) is measured (:mod:`~hosim.gate.measure`) into a record (:mod:`~hosim.gate.record`), which a baseline file
keeps (:mod:`~hosim.gate.baselines`). A later measurement gets one verdict per metric (:mod:`~hosim.gate.verdict`) and, for a regression, an
explanation (:mod:`~hosim.gate.causes`). This module imports nothing, because pytest loads the plugin wherever hosim is installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.gate.cases import find_suite
    from hosim.gate.check_page import check_page
    from hosim.gate.checking import CaseError, check, errors_in_one, known_baseline, write
    from hosim.gate.imports import kept_in
    from hosim.gate.reports import github, junit, markdown, sarif, to_dict
    from hosim.gate.verdict import ERROR, exit_code
    from hosim.gate.verdict_tables import baseline, verdicts
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "cases": "find_suite",
            "check_page": "check_page",
            "checking": "CaseError check errors_in_one known_baseline write",
            "imports": "kept_in",
            "reports": "github junit markdown sarif to_dict",
            "verdict": "ERROR exit_code",
            "verdict_tables": "baseline verdicts",
        },
    )

__all__ = [
    "ERROR",
    "CaseError",
    "baseline",
    "check",
    "check_page",
    "errors_in_one",
    "exit_code",
    "find_suite",
    "github",
    "junit",
    "kept_in",
    "known_baseline",
    "markdown",
    "sarif",
    "to_dict",
    "verdicts",
    "write",
]
