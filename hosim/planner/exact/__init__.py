"""Exact schedules of small graphs, by constraint programming: the plan with the least makespan, and
its proof.
"""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.planner.exact.constraint_model import Model
    from hosim.planner.exact.decision_space import Space, knows_all_starts, space_of
    from hosim.planner.exact.exact_schedule import Schedule, StoreAt, TakenAbsence
    from hosim.planner.exact.lazy_constraints import Conflict, conflicts, forbid, need
    from hosim.planner.exact.lower_capacities import add_lower_capacities
    from hosim.planner.exact.proved_bound import proved_bound_ns, relaxed
    from hosim.planner.exact.redundant_constraints import add_redundant_constraints
    from hosim.planner.exact.schedule_to_plan import placed, plan_of
    from hosim.planner.exact.serial_schedule import serial
    from hosim.planner.exact.solver import Solution, require_solver, solve
    from hosim.planner.exact.solver_search import hint, schedule_of
    from hosim.planner.exact.warm_start import observed
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "constraint_model": "Model",
            "decision_space": "Space knows_all_starts space_of",
            "exact_schedule": "Schedule StoreAt TakenAbsence",
            "lazy_constraints": "Conflict conflicts forbid need",
            "lower_capacities": "add_lower_capacities",
            "proved_bound": "proved_bound_ns relaxed",
            "redundant_constraints": "add_redundant_constraints",
            "schedule_to_plan": "placed plan_of",
            "serial_schedule": "serial",
            "solver": "Solution require_solver solve",
            "solver_search": "hint schedule_of",
            "warm_start": "observed",
        },
    )

__all__ = [
    "Conflict", "Model", "Schedule", "Solution", "Space", "StoreAt", "TakenAbsence",
    "add_lower_capacities", "add_redundant_constraints", "conflicts", "forbid", "hint",
    "knows_all_starts", "need", "observed", "placed", "plan_of", "proved_bound_ns", "relaxed",
    "require_solver", "schedule_of", "serial", "solve", "space_of",
]  # fmt: skip
