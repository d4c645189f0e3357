"""Exact schedules of small graphs, by constraint programming: the plan with the least makespan, and
its proof.
"""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.planner.exact.constraint_model import Model
    from hosim.planner.exact.decision_space import Space, knows_all_starts, space_of
    from hosim.planner.exact.exact_schedule import (
        Schedule,
        StoreAt,
        TakenAbsence,
        hint,
        placed,
        plan_of,
        schedule_of,
    )
    from hosim.planner.exact.haste import Conflict, conflicts, forbid, need
    from hosim.planner.exact.proved_bound import proved_bound_ns, relaxed
    from hosim.planner.exact.redundant_constraints import add_redundant_constraints
    from hosim.planner.exact.solver import (
        Solution,
        add_lower_capacities,
        observed,
        require_solver,
        serial,
        solve,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "constraint_model": "Model",
            "decision_space": "Space knows_all_starts space_of",
            "exact_schedule": "Schedule StoreAt TakenAbsence hint placed plan_of schedule_of",
            "haste": "Conflict conflicts forbid need",
            "proved_bound": "proved_bound_ns relaxed",
            "redundant_constraints": "add_redundant_constraints",
            "solver": "Solution add_lower_capacities observed require_solver serial solve",
        },
    )

__all__ = [
    "Conflict", "Model", "Schedule", "Solution", "Space", "StoreAt", "TakenAbsence",
    "add_lower_capacities", "add_redundant_constraints", "conflicts", "forbid", "hint",
    "knows_all_starts", "need", "observed", "placed", "plan_of", "proved_bound_ns", "relaxed",
    "require_solver", "schedule_of", "serial", "solve", "space_of",
]  # fmt: skip
