"""The planners: HyperOffload's refinement, exact search for small graphs, and rewrites of the graph itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.planner.exact.decision_space import knows_all_starts
    from hosim.planner.exact.solver import solve
    from hosim.planner.hyperoffload.choices import insert
    from hosim.planner.hyperoffload.choices_of_plan import choices_of
    from hosim.planner.hyperoffload.evaluation import Evaluation, Judge, of_another, plan_cost
    from hosim.planner.hyperoffload.explain import REASONS, Explanation, Line, explain, signed_time
    from hosim.planner.hyperoffload.judged_gaps import STARTS_BELOW, JudgedGap
    from hosim.planner.hyperoffload.late_issue import sturdier
    from hosim.planner.hyperoffload.observed import ObservedTransfer
    from hosim.planner.hyperoffload.pipeline import plan, search
    from hosim.planner.hyperoffload.problem import analyse
    from hosim.planner.hyperoffload.soonest_end import moving_ns
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "exact.decision_space": "knows_all_starts",
            "exact.solver": "solve",
            "hyperoffload.choices": "insert",
            "hyperoffload.choices_of_plan": "choices_of",
            "hyperoffload.evaluation": "Evaluation Judge of_another plan_cost",
            "hyperoffload.explain": "Explanation Line REASONS explain signed_time",
            "hyperoffload.judged_gaps": "JudgedGap STARTS_BELOW",
            "hyperoffload.late_issue": "sturdier",
            "hyperoffload.observed": "ObservedTransfer",
            "hyperoffload.pipeline": "plan search",
            "hyperoffload.problem": "analyse",
            "hyperoffload.soonest_end": "moving_ns",
        },
    )

__all__ = [
    "REASONS",
    "STARTS_BELOW",
    "Evaluation",
    "Explanation",
    "Judge",
    "JudgedGap",
    "Line",
    "ObservedTransfer",
    "analyse",
    "choices_of",
    "explain",
    "insert",
    "knows_all_starts",
    "moving_ns",
    "of_another",
    "plan",
    "plan_cost",
    "search",
    "signed_time",
    "solve",
    "sturdier",
]
