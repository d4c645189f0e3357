"""The changes in a later measurement, their causes, and the verdict on it."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.gate.verdicts.causes import (
        LINES,
        changed_question,
        explain,
    )
    from hosim.gate.verdicts.graph_changes import PlanChange, plan_changes
    from hosim.gate.verdicts.verdict import (
        ERROR,
        FAILING,
        INFEASIBLE,
        CaseVerdict,
        changed_since,
        exit_code,
        judge,
        summary,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "causes": "LINES changed_question explain",
            "graph_changes": "PlanChange plan_changes",
            "verdict": "CaseVerdict ERROR FAILING INFEASIBLE changed_since exit_code judge summary",
        },
    )

__all__ = [
    "ERROR", "FAILING", "INFEASIBLE", "LINES", "CaseVerdict", "PlanChange", "changed_question",
    "changed_since", "exit_code", "explain", "judge", "plan_changes", "summary",
]  # fmt: skip
