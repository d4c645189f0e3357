"""Exact schedules of small graphs: the plan with the least makespan, and a proof (OR-tools CP-SAT).

:func:`solve` builds the constraint program of :mod:`hosim.planner.exact.constraint_model`, whose
optimum no plan can beat, turns its solution into a plan and replays that in the engine. The plan is
*proved* when its replayed makespan equals the solver's bound. Where the engine, which starts
everything as soon as it can, does otherwise than the schedule, the places of issue are moved until
the replay takes no longer; if that does not help, what the engine would have done otherwise becomes
a constraint and the program is solved again.

What the bound holds for: every plan of the graph as it is (no op moved or run again) that the
verifier accepts, in which nothing is copied to where it already is, a tensor leaves at most once
between two uses, and each version is stored at most once to a tier; and in which persistent tensors
at home in the device tier start wherever the plan likes, all others at home. With one tier below
that holds everything, leaving twice or storing twice gains nothing.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, replace

from hosim.analysis.verifying import verify
from hosim.cache_plan import Plan
from hosim.costmodel import op_durations
from hosim.engine import replay
from hosim.errors import InfeasibleError, InputError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.planner.exact.constraint_model import Model
from hosim.planner.exact.decision_space import Space, space_of
from hosim.planner.exact.exact_schedule import Schedule, SolverResult
from hosim.planner.exact.lazy_constraints import conflicts, forbid
from hosim.planner.exact.lower_capacities import add_lower_capacities
from hosim.planner.exact.prompt_starts import (
    Delay,
    add_prompt_starts,
    delays,
    forbid_delay,
    hurries,
)
from hosim.planner.exact.redundant_constraints import add_redundant_constraints
from hosim.planner.exact.schedule_to_plan import Placed, placed, plan_of
from hosim.planner.exact.serial_schedule import serial
from hosim.planner.exact.solver_search import earliest, hint, solve_model
from hosim.planner.exact.warm_start import observed

LARGEST = 400
"""Possible absences up to which a graph counts as small."""

_ROUNDS = 4
"""Passes over all places of issue when a plan is repaired."""


@dataclass(frozen=True, slots=True)
class Solution:
    """A plan, its replayed makespan, and the proved lower bound on the makespan of any plan.
    ``proved``: they are equal.

    ``solver_s`` is the solver's wall time, the only field that may differ between two runs.
    """

    plan: Plan
    makespan_ns: int
    bound_ns: int
    solver_s: float

    @property
    def proved(self) -> bool:
        """Return whether no plan is better."""
        return self.makespan_ns == self.bound_ns


def require_solver() -> None:
    """Raise :class:`InputError` that names the extra if OR-tools is not installed."""
    if importlib.util.find_spec("ortools") is None:
        raise InputError(
            "policy optimal needs OR-tools, which is not installed; run: pip install "
            "'hosim[solver]'"
        )


def solve(
    graph: Graph,
    hardware: Hardware,
    budget_bytes: int | None = None,
    *,
    limit: float = 30.0,
    seed: int = 0,
    largest: int = LARGEST,
    begin: Plan | None = None,
) -> Solution:
    """The best plan within the budget that CP-SAT finds in ``limit`` deterministic seconds with one
    worker.

    Equal arguments give equal plans. ``begin`` is a known plan to start from (its replay must be
    feasible); the result is never worse. Raises :class:`InfeasibleError` if the solver proves that
    nothing fits (or, saying so, finds nothing), and :class:`InputError` if OR-tools is missing, if
    the graph has more than ``largest`` possible absences, or for what the model does not know:
    channels that share bandwidth.
    """
    require_solver()
    capacity = (
        hardware.device.capacity_bytes
        if budget_bytes is None
        else min(budget_bytes, hardware.device.capacity_bytes)
    )
    space = space_of(graph, hardware, op_durations(graph, hardware), capacity)
    count = sum(len(movable.absences) for movable in space.movables)
    if count > largest:
        raise InputError(
            f"policy optimal is for small graphs: {graph.name} has {count} gaps that a tensor "
            "could spend below, "
            f"and the limit is {largest} (parameter largest)"
        )
    search = _SolverRun(space, seed)
    first = None if space.lower_tight or not space.order.single else serial(space)
    if begin is not None:
        first = search.start_from(begin) or first
    return search.run(first, limit)


class _SolverRun:
    """One solve: the best plan so far and what is known about all others."""

    def __init__(self, space: Space, seed: int) -> None:
        self.space = space
        self.seed = seed
        self.best: Plan | None = None
        self.best_schedule: Schedule | None = None
        self.makespan = -1
        self.solver_s = 0.0

    def start_from(self, plan: Plan) -> Schedule | None:
        """Take a known plan as the best so far; its schedule, or None if it does not fit."""
        result = replay(plan, self.space.hardware, self.space.capacity_bytes, record=True)
        if not result.feasible or result.makespan_ns is None:
            return None
        self.best, self.makespan = replace(plan, policy="optimal"), result.makespan_ns
        self.best_schedule = observed(self.space, plan, result)
        return self.best_schedule

    def run(self, first: Schedule | None, limit: float) -> Solution:
        """Solve and replay; while the replay cannot follow, add what the engine would have done
        otherwise and solve again.
        """
        horizon = (
            self.space.horizon_ns
            if first is None
            else min(self.space.horizon_ns, first.makespan_ns)
        )
        model = Model(self.space, horizon)
        add_redundant_constraints(model)
        add_lower_capacities(model)
        add_prompt_starts(model)
        bound, left, infeasible = 0, limit, False
        forbidden: set[Delay] = set()
        while left > 0:
            if first is not None:
                hint(model, first)
            outcome = solve_model(model, left, self.seed)
            left -= self._spent(outcome)
            bound, infeasible, schedule = (
                max(bound, outcome.bound_ns),
                outcome.infeasible,
                outcome.schedule,
            )
            if schedule is None:
                break
            self._realize(schedule)
            if self.makespan == bound or schedule.makespan_ns >= self.makespan >= 0:
                break
            early = earliest(model, schedule, limit / 10, self.seed)
            left -= self._spent(early)
            if early.schedule is not None:
                schedule = early.schedule
                self._realize(schedule)
            broken = conflicts(self.space, schedule) if model.exact else []
            late = (
                [delay for delay in delays(self.space, schedule) if delay not in forbidden]
                if hurries(model)
                else []
            )
            forbidden.update(late)
            if self.makespan == bound or not broken + late:
                break
            for conflict in broken:
                forbid(model, conflict)
            for delay in late:
                forbid_delay(model, delay)
            if self.best is not None:
                model.cp.add(model.makespan <= self.makespan)
                first = self.best_schedule
        if self.best is None:
            raise self._nothing(infeasible, limit)
        return Solution(self.best, self.makespan, bound, self.solver_s)

    def _spent(self, outcome: SolverResult) -> float:
        self.solver_s += outcome.solver_s
        return outcome.spent

    def _nothing(self, infeasible: bool, limit: float) -> InfeasibleError:
        budget = f"{self.space.capacity_bytes:,} B of {self.space.hardware.device_tier}"
        name = self.space.graph.name
        if infeasible:
            return InfeasibleError(
                f"out of memory: no plan of {name} fits into {budget}; the solver has proved it"
            )
        return InfeasibleError(
            f"no plan of {name} within {budget} was found in {limit:g} deterministic seconds "
            "(parameter limit), "
            "which proves nothing: raise the limit"
        )

    def _realize(self, schedule: Schedule) -> None:
        """The schedule as a plan, its places of issue moved as long as that helps."""
        order = placed(self.space, schedule)
        makespan = self._replay(schedule, order)
        for _ in range(_ROUNDS):
            if makespan is not None and makespan <= schedule.makespan_ns:
                return
            better = self._better(schedule, order, makespan)
            if better is None:
                return
            makespan, order = better

    def _better(
        self, schedule: Schedule, order: list[Placed], makespan: int | None
    ) -> tuple[int, list[Placed]] | None:
        """One pass: each transfer issued an op or two later or earlier; None if nothing helps."""
        found = None
        for k in range(len(order)):
            for step in (1, -1, 2, -2):
                after = order[k].cache_op.after + step
                if not -1 <= after < len(self.space.graph.ops):
                    continue
                moved = sorted(
                    [*order[:k], order[k].moved(after), *order[k + 1 :]],
                    key=lambda p: (p.cache_op.after, p.at_ns, p.rank, p.cache_op.tensor),
                )
                taken = self._replay(schedule, moved)
                if taken is not None and (makespan is None or taken < makespan):
                    found = makespan, order = taken, moved
                    if taken <= schedule.makespan_ns:
                        return found
                    break
        return found

    def _replay(self, schedule: Schedule, order: list[Placed]) -> int | None:
        """Makespan of the plan with these cache ops, kept if it is the best; None if it breaks a
        rule or does not fit.
        """
        plan = plan_of(self.space, schedule, order, "optimal")
        if verify(plan, self.space.hardware, self.space.capacity_bytes):
            return None
        result = replay(plan, self.space.hardware, self.space.capacity_bytes)
        if not result.feasible or result.makespan_ns is None:
            return None
        if self.best is None or result.makespan_ns < self.makespan:
            self.start_from(plan)
        return result.makespan_ns
