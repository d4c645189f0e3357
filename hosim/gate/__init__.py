"""The gate: record the memory and time of simulated steps, and judge the effect of changes on them.

A case (:mod:`~hosim.gate.cases`) is measured (:mod:`~hosim.gate.measured_case`), and a baseline
file keeps its record (:mod:`~hosim.gate.records`). A later measurement gets one verdict per metric
(:mod:`~hosim.gate.judged_metrics`) and, for a regression, an explanation
(:mod:`~hosim.gate.verdicts`). This module imports nothing, because pytest loads the plugin wherever
hosim is installed.
"""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.gate.cases import (
        Case,
        CaseKind,
        Suite,
        find_suite,
        load_suite,
        pairs,
    )
    from hosim.gate.checking import (
        CaseError,
        check,
        errors_in_one,
        known_baseline,
        measured,
        write,
    )
    from hosim.gate.imports import (
        graph_of_entry,
        graph_of_file,
        graph_of_model,
        kept_in,
    )
    from hosim.gate.measured_case import (
        measure,
        measure_graph,
        measure_lines,
    )
    from hosim.gate.reports import (
        curves,
        github,
        headline,
        junit,
        markdown,
        sarif,
        to_dict,
    )
    from hosim.gate.testing import assert_explained
    from hosim.gate.verdict_tables import baseline, check_page, verdicts
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "cases": "Case CaseKind Suite find_suite load_suite pairs",
            "checking": "CaseError check errors_in_one known_baseline measured write",
            "imports": "graph_of_entry graph_of_file graph_of_model kept_in",
            "measured_case": "measure measure_graph measure_lines",
            "reports": "curves github headline junit markdown sarif to_dict",
            "testing": "assert_explained",
            "verdict_tables": "baseline check_page verdicts",
        },
    )

__all__ = [
    "Case", "CaseError", "CaseKind", "Suite", "assert_explained", "baseline", "check",
    "check_page", "curves", "errors_in_one", "find_suite", "github", "graph_of_entry",
    "graph_of_file", "graph_of_model", "headline", "junit", "kept_in", "known_baseline",
    "load_suite", "markdown", "measure", "measure_graph", "measure_lines", "measured", "pairs",
    "sarif", "to_dict", "verdicts", "write",
]  # fmt: skip
