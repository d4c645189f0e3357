"""Schedules of the exact model: when everything happens, and what the solver knows about it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hosim.cache_plan import AT_START, DETACH, PREFETCH, STORE, CacheOp, Plan
from hosim.planner.exact.constraint_model import Model
from hosim.planner.exact.decision_space import Movable, OptionalAbsence, Space


@dataclass(frozen=True, slots=True)
class TakenAbsence:
    """An absence that the schedule takes: the contents are in ``tier`` (None: nobody needs them).

    ``release_ns`` is when the device tier's bytes are released, ``back_ns`` when the transfer back
    reserves them again (None: never).
    """

    absence: OptionalAbsence
    tier: str | None
    release_ns: int
    back_ns: int | None


@dataclass(frozen=True, slots=True)
class StoreAt:
    """A store of a version of a tensor to ``tier``."""

    tensor: int
    version: int
    tier: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class Schedule:
    """A solution of the model. ``op_start_ns`` by op; ``initial`` has the tiers at time 0 of
    tensors whose start the plan chooses.
    """

    makespan_ns: int
    op_start_ns: tuple[int, ...]
    aways: tuple[TakenAbsence, ...]
    stores: tuple[StoreAt, ...]
    initial: dict[int, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class SolverResult:
    """The solver's answer: the best schedule it has (None: none found), a lower bound, and whether
    there can be no schedule at all.

    ``solver_s`` is wall time, ``spent`` deterministic time.
    """

    schedule: Schedule | None
    bound_ns: int
    infeasible: bool
    solver_s: float
    spent: float


# -- schedule to plan
# --------------------------------------------------------------------------------------------------
# From a schedule of the exact model to a plan of cache ops that the engine replays.
#
# A schedule says when each transfer starts, a plan after which op it is issued: the last one that
# has ended by then. Transfers issued at one place are issued in the order of their starts, so
# each channel's first-in first-out queue keeps the schedule's order.


@dataclass(frozen=True, slots=True)
class Placed:
    """A cache op with the time for which the schedule has it, and its rank among those of that
    time.
    """

    at_ns: int
    rank: int
    cache_op: CacheOp

    def moved(self, after: int) -> Placed:
        """The same, issued after another op."""
        c = self.cache_op
        return Placed(
            self.at_ns, self.rank, CacheOp(c.op, c.tensor, c.source, c.destination, after)
        )


def placed(space: Space, schedule: Schedule) -> list[Placed]:
    """The cache ops of a schedule, in order of issue."""
    if not space.order.single:
        return placed_on_streams(space, schedule)
    device = space.hardware.device_tier
    ends = space.ends_ns(schedule.op_start_ns)
    tight = set(space.lower_tight)

    def position(at: int) -> int:
        return bisect_right(ends, at) - 1

    found: list[Placed] = []
    for s in schedule.stores:
        writer = space.movable[s.tensor].writers[s.version]
        found.append(
            Placed(
                s.start_ns,
                1,
                CacheOp(STORE, s.tensor, device, s.tier, max(position(s.start_ns), writer)),
            )
        )
    for gone in schedule.aways:
        a = gone.absence
        if a.after != AT_START or device in _initial(space, schedule, a.tensor):
            begun = [
                s.start_ns
                for s in schedule.stores
                if s.tensor == a.tensor and s.start_ns < gone.release_ns
            ]
            left = ends[a.after] if a.after >= 0 else 0
            at, rank = max([(left, 0), *((start, 2) for start in begun)])
            found.append(
                Placed(
                    at, rank, CacheOp(DETACH, a.tensor, device, None, max(a.after, position(at)))
                )
            )
        if gone.back_ns is not None and gone.tier is not None:
            after = max(a.after, position(gone.back_ns))
            found.append(
                Placed(gone.back_ns, 1, CacheOp(PREFETCH, a.tensor, gone.tier, device, after))
            )
            if gone.tier in tight and _last_from(space, schedule, a.tensor, a.after, gone.tier):
                found.append(
                    Placed(gone.back_ns, 2, CacheOp(DETACH, a.tensor, gone.tier, None, after))
                )
    return sorted(found, key=lambda p: (p.cache_op.after, p.at_ns, p.rank, p.cache_op.tensor))


@dataclass(frozen=True, slots=True)
class _Move:
    """A cache op of one tensor to be placed: not after an op listed before ``first`` or from
    ``until`` on, and once ``ended`` have.
    """

    at_ns: int
    rank: int
    first: int
    until: int
    ended: tuple[int, ...]
    op: str
    source: str
    destination: str | None


def placed_on_streams(space: Space, schedule: Schedule) -> list[Placed]:
    """Like :func:`placed`, on several streams: each cache op after an op by whose end the tensor's
    cache op before it has surely been issued.

    Empty if there is no such op.
    """
    ends = space.ends_ns(schedule.op_start_ns)
    found: list[Placed] = []
    for movable in space.movables:
        last = AT_START
        for move in sorted(
            _moves(space, schedule, movable), key=lambda m: (m.at_ns, m.first, m.rank)
        ):
            among = range(max(move.first, last), move.until)
            wanted = [i for i in (last, *move.ended) if i != AT_START]
            possible = [
                i for i in among if i == AT_START or all(space.order.ended_by(u, i) for u in wanted)
            ]
            if not possible and move.until == len(ends) and move.destination is None:
                continue  # what nobody uses any more may stay
            if not possible:  # perhaps the transfers see to it
                possible = list(among)
            if not possible:
                return []
            by_then = [i for i in possible if i == AT_START or ends[i] <= move.at_ns]
            time = {i: ends[i] if i != AT_START else 0 for i in possible}
            last = (
                max(by_then, key=lambda i: (time[i], i))
                if by_then
                else min(possible, key=lambda i: (time[i], i))
            )
            found.append(
                Placed(
                    move.at_ns,
                    move.rank,
                    CacheOp(move.op, movable.tensor, move.source, move.destination, last),
                )
            )
    return sorted(found, key=lambda p: (p.cache_op.after, p.at_ns, p.rank, p.cache_op.tensor))


def _moves(space: Space, schedule: Schedule, movable: Movable) -> Iterator[_Move]:
    device, tight, t = space.hardware.device_tier, space.lower_tight, movable.tensor
    for s in schedule.stores:
        if s.tensor == t:
            writer, rewriter = movable.writers[s.version], movable.rewriters[s.version]
            gaps = [
                g.absence.before
                for g in schedule.aways
                if g.absence.tensor == t and writer <= g.absence.after < rewriter
            ]
            yield _Move(
                s.start_ns, 1, writer, min(gaps, default=rewriter), (writer,), STORE, device, s.tier
            )
    for gone in schedule.aways:
        a = gone.absence
        if a.tensor != t:
            continue
        if a.after != AT_START or device in _initial(space, schedule, t):
            yield _Move(
                gone.release_ns, 2, a.after, a.before, space.uses_before(a), DETACH, device, None
            )
        if gone.back_ns is not None and gone.tier is not None:
            yield _Move(
                gone.back_ns,
                3,
                a.after,
                a.before,
                space.uses_before(a),
                PREFETCH,
                gone.tier,
                device,
            )
            if gone.tier in tight and _last_from(space, schedule, t, a.after, gone.tier):
                yield _Move(
                    gone.back_ns,
                    4,
                    a.after,
                    a.before,
                    space.uses_before(a),
                    DETACH,
                    gone.tier,
                    None,
                )


def plan_of(space: Space, schedule: Schedule, order: list[Placed], policy: str) -> Plan:
    """The plan with these cache ops."""
    roomy = next((tier.name for tier in space.lower if tier.name not in space.lower_tight), "")
    initial: dict[int, tuple[str, ...]] = dict.fromkeys(space.idle, (roomy,))
    initial.update(
        {
            t: where
            for t, where in schedule.initial.items()
            if where != (space.hardware.device_tier,)
        }
    )
    return Plan(
        space.graph, policy, tuple(p.cache_op for p in order), dict(sorted(initial.items()))
    )


def _last_from(space: Space, schedule: Schedule, t: int, after: int, tier: str) -> bool:
    """Return whether no later absence needs the copy in the tier, nor the end of the step."""
    movable = space.movable[t]
    version = next(a.version for a in movable.absences if a.after == after)
    later = any(
        g.tier == tier and g.absence.after > after and g.absence.version == version
        for g in schedule.aways
        if g.absence.tensor == t
    )
    final = movable.persistent and version == len(movable.writers) - 1
    return not later and not (final and tier in _initial(space, schedule, t))


def _initial(space: Space, schedule: Schedule, t: int) -> tuple[str, ...]:
    return schedule.initial.get(t, (space.graph.tensors[t].home or space.hardware.device_tier,))


# -- the solver at work
# --------------------------------------------------------------------------------------------------
# CP-SAT at work on the exact model: where it begins, how it runs, and what its answer means.


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
