"""CP-SAT at work on the exact model: where it begins, how it runs, and what its answer means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hosim.planner.exact.constraint_model import Model
from hosim.planner.exact.exact_schedule import Schedule, SolverResult, StoreAt, TakenAbsence

if TYPE_CHECKING:
    from ortools.sat.python import cp_model


def earliest(model: Model, schedule: Schedule, limit: float, seed: int) -> SolverResult:
    """A schedule no longer than the given one with everything as early as can be, as the engine
    would have it.
    """
    cp = model.cp
    model.cp = cp.clone()
    hint(model, schedule)
    model.cp.add(model.makespan <= schedule.makespan_ns)
    transfers = [start for start, _ in model.stores.values()] + [
        var.back for var in model.aways.values()
    ]
    model.cp.minimize(sum(model.start) + sum(transfers))
    outcome = solve_model(model, limit, seed)
    model.cp = cp
    return outcome


def hint(model: Model, schedule: Schedule) -> None:
    """Let the search begin at a known schedule."""
    cp, starts = model.cp, schedule.op_start_ns
    cp.clear_hints()
    cp.add_hint(model.makespan, schedule.makespan_ns)
    for variable, start in zip(model.start, starts, strict=True):
        cp.add_hint(variable, start)
    device = model.space.hardware.device_tier

    def say(literal: Any, value: bool) -> None:
        if not isinstance(literal, bool):
            cp.add_hint(literal, value)

    for (t, tier), literal in model.init_lower.items():
        say(literal, tier in schedule.initial.get(t, ()))
    for t, literal in model.init_device.items():
        say(literal, device in schedule.initial.get(t, (device,)))
    stored = {(s.tensor, s.version, s.tier): s.start_ns for s in schedule.stores}
    for copy, (start, present) in model.stores.items():
        say(present, copy in stored)
        if copy in stored:
            cp.add_hint(start, stored[copy])
    taken = {(a.absence.tensor, a.absence.after): a for a in schedule.aways}
    for key, var in model.aways.items():
        away = taken.get(key)
        left = max(
            [starts[u] + model.space.durations[u] for u in model.space.uses_before(var.absence)],
            default=0,
        )
        release = away.release_ns if away else left
        back = (
            left if away is None else schedule.makespan_ns if away.back_ns is None else away.back_ns
        )
        say(var.away, away is not None)
        if var.stored:
            cp.add_hint(var.release, release)
        else:
            release = left
        cp.add_hint(var.back, back)
        for tier, kept in var.keep.items():
            say(kept, away is not None and away.tier == tier)
        for tier, fetched in var.fetch.items():
            if fetched is not var.keep[tier]:
                say(fetched, away is not None and away.tier == tier and away.back_ns is not None)
        for i, literal in model.at_start[key].items():
            say(literal, away is not None and release <= starts[i] < back)
        for i, literal in model.at_end[key].items():
            say(
                literal, away is not None and release < starts[i] + model.space.durations[i] <= back
            )


def solve_model(model: Model, limit: float, seed: int) -> SolverResult:
    """Run CP-SAT with one worker for ``limit`` deterministic seconds at most."""
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    parameters = solver.parameters
    parameters.num_workers = 1
    parameters.random_seed = seed
    parameters.max_deterministic_time = limit
    parameters.linearization_level = 2
    status = solver.solve(model.cp)
    infeasible = status == cp_model.INFEASIBLE
    found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    if status == cp_model.MODEL_INVALID:
        raise AssertionError(model.cp.validate())
    bound = 0 if infeasible else round(solver.best_objective_bound)
    return SolverResult(
        schedule_of(model, solver) if found else None,
        bound,
        infeasible,
        solver.wall_time,
        solver.response_proto.deterministic_time,
    )


def schedule_of(model: Model, solver: cp_model.CpSolver) -> Schedule:
    """The schedule that a solver has found, read off the values of the model's variables."""

    def true(literal: Any) -> bool:
        return literal if isinstance(literal, bool) else bool(solver.boolean_value(literal))

    device, names = model.space.hardware.device_tier, [tier.name for tier in model.space.lower]
    aways: list[TakenAbsence] = []
    needed: set[tuple[int, int, str]] = set()
    initial: dict[int, tuple[str, ...]] = {}
    for movable in model.space.movables:
        t = movable.tensor
        lower: set[str] = set()
        for a in movable.absences:
            if a.dead:
                aways.append(
                    TakenAbsence(a, None, solver.value(model.left(a)) if a.after >= 0 else 0, None)
                )
                continue
            var = model.aways[t, a.after]
            if not true(var.away):
                continue
            tier = next(name for name, kept in var.keep.items() if true(kept))
            fetched = tier in var.fetch and true(var.fetch[tier])
            aways.append(
                TakenAbsence(
                    a, tier, solver.value(var.release), solver.value(var.back) if fetched else None
                )
            )
            if (t, a.version, tier) in model.stores and true(model.stores[t, a.version, tier][1]):
                needed.add((t, a.version, tier))
            else:
                lower.add(tier)
        if movable.free_start:
            there = true(model.init_device[t])
            if not there and not lower:
                lower.add(next(name for name in names if true(model.init_lower[t, name])))
            below = tuple([name for name in names if name in lower])
            initial[t] = (device, *below) if there else below
        elif movable.home is not None and movable.home != device:
            lower.add(movable.home)
        last = len(movable.writers) - 1
        if movable.persistent and (last > 0 or not movable.starts):
            needed |= {(t, last, tier) for tier in lower}
    stores = [
        StoreAt(
            t,
            version,
            tier,
            begin := solver.value(model.stores[t, version, tier][0]),
            begin + model.store_ns[t, tier],
        )
        for t, version, tier in sorted(needed)
    ]
    starts = tuple([solver.value(start) for start in model.start])
    return Schedule(solver.value(model.makespan), starts, tuple(aways), tuple(stores), initial)
