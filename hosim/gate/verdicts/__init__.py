"""What a later measurement changes, why, and the verdict on it."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.gate.verdicts.causes import explain
    from hosim.gate.verdicts.changed_since import changed_since
    from hosim.gate.verdicts.plan_changes import PlanChange, plan_changes
    from hosim.gate.verdicts.served_causes import explain_served
    from hosim.gate.verdicts.verdict import ERROR, FAILING, INFEASIBLE, CaseVerdict, exit_code, judge, summary
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "causes": "explain",
            "changed_since": "changed_since",
            "plan_changes": "PlanChange plan_changes",
            "served_causes": "explain_served",
            "verdict": "CaseVerdict ERROR FAILING INFEASIBLE exit_code judge summary",
        },
    )

__all__ = [
    "ERROR", "FAILING", "INFEASIBLE", "CaseVerdict", "PlanChange", "changed_since", "exit_code", "explain", "explain_served", "judge",
    "plan_changes", "summary",
]  # fmt: skip
