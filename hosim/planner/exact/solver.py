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

import importlib.util
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from hosim.analysis.costmodel import op_durations
from hosim.analysis.verifying import verify
from hosim.cache_plan import AT_START, STORE, Plan, Proof
from hosim.engine import replay
from hosim.errors import InfeasibleError, InputError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.planner.exact.constraint_model import Model
from hosim.planner.exact.decision_space import (
    JoinedTier,
    Movable,
    Space,
    knows_all_starts,
    space_of,
)
from hosim.planner.exact.exact_schedule import (
    Placed,
    Schedule,
    SolverResult,
    StoreAt,
    TakenAbsence,
    earliest,
    hint,
    placed,
    plan_of,
    solve_model,
)
from hosim.planner.exact.haste import (
    Delay,
    add_prompt_starts,
    conflicts,
    delays,
    forbid,
    forbid_delay,
    hurries,
)
from hosim.planner.exact.redundant_constraints import add_redundant_constraints
from hosim.result import Result, Timeline

# -- warm start
# --------------------------------------------------------------------------------------------------
# A replayed plan as a schedule of the exact model: where the search for a better one begins.


def observed(space: Space, plan: Plan, result: Result) -> Schedule:
    """Return the schedule of the replay, in the model's terms; ``result`` must be feasible and have
    its timeline.

    Transfers that the model's space has no name for (a copy that nobody needs) are left out.
    """
    timeline = result.timeline
    if timeline is None or result.makespan_ns is None:
        raise ValueError("expected a feasible result with its timeline: replay with record=True")
    device = space.hardware.device_tier
    residency = plan.residency(device)
    aways: list[TakenAbsence] = []
    stores: list[StoreAt] = []
    initial: dict[int, tuple[str, ...]] = {}
    for movable in space.movables:
        t = movable.tensor
        if movable.free_start:
            initial[t] = tuple(residency[t])
        held = sorted(
            (r.start_ns, r.end_ns)
            for r in timeline.residencies
            if r.tensor == t and r.tier == device
        )
        moves = [(x, plan.cache_ops[x.cache_op]) for x in timeline.transfers if x.tensor == t]
        for x, cache_op in moves:
            if cache_op.op == STORE and cache_op.destination is not None:
                version = max(
                    (v for v, w in enumerate(movable.writers) if _end(timeline, w) <= x.start_ns),
                    default=0,
                )
                if all(
                    (s.tensor, s.version, s.tier) != (t, version, cache_op.destination)
                    for s in stores
                ):
                    stores.append(StoreAt(t, version, cache_op.destination, x.start_ns, x.end_ns))
        for a in movable.absences:
            left = max([_end(timeline, u) for u in space.uses_before(a)], default=0)
            right = min(
                [timeline.op_start_ns[u] for u in space.uses_after(a)], default=result.makespan_ns
            )
            if left > right:  # on another stream a later use has overtaken an earlier one
                continue
            out = _outside(held, left, right)
            if a.dead:
                aways.append(TakenAbsence(a, None, left, None))
            elif out is not None:
                release, back = out
                fetch = next(
                    (c.source for x, c in moves if x.start_ns == back and c.destination == device),
                    None,
                )
                tier = fetch or _copy(space, movable, a.version, stores, residency.get(t, ()))
                if tier is not None:
                    aways.append(
                        TakenAbsence(a, tier, release, back if fetch is not None else None)
                    )
    return Schedule(result.makespan_ns, timeline.op_start_ns, tuple(aways), tuple(stores), initial)


def _end(timeline: Timeline, i: int) -> int:
    return timeline.op_end_ns[i] if i != AT_START else 0


def _outside(held: list[tuple[int, int]], left: int, right: int) -> tuple[int, int] | None:
    """The longest time within ``[left, right]`` in which the device tier does not hold the tensor;
    None if it always does.
    """
    bounds = [left, *(x for interval in held for x in interval if left <= x <= right), right]
    out = [
        (a, b) for a, b in pairwise(bounds) if b > a and not any(s <= a and b <= e for s, e in held)
    ]
    return max(out, key=lambda o: o[1] - o[0], default=None)


def _copy(
    space: Space, movable: Movable, version: int, stores: list[StoreAt], starts: tuple[str, ...]
) -> str | None:
    """A tier below that holds the version."""
    for s in stores:
        if s.tensor == movable.tensor and s.version == version:
            return s.tier
    if version == 0 and movable.starts:
        below = [tier.name for tier in space.lower if tier.name in starts]
        if below:
            return below[0]
        unwritten = len(movable.writers) == 1 and movable.free_start
        return space.lower[0].name if unwritten else None
    return None


# -- serial schedule
# --------------------------------------------------------------------------------------------------
# A schedule that always exists: one thing at a time, every tensor that may leave leaves. Where
# the exact search begins.


def serial(space: Space) -> Schedule | None:
    """Before each op its tensors come up, after it they go down again; None if this machine cannot
    move some tensor both ways.

    Feasible within any budget that holds each op's own tensors beside what can never leave.
    """
    joined = [tier for tier in space.lower if tier.up is not None and tier.down is not None]
    if not joined:
        return None
    walk = _SerialWalk(space, {tier.name: tier for tier in space.lower}, joined[0].name)
    if not walk.begins() or not all(map(walk.step, range(len(space.graph.ops)))):
        return None
    aways = (*walk.aways, *[gone for gone, _ in walk.away.values()])
    return Schedule(walk.now, tuple(walk.starts), aways, tuple(walk.stores), walk.initial)


class _SerialWalk:
    """That schedule so far; its methods say whether the machine can go on."""

    def __init__(self, space: Space, tiers: dict[str, JoinedTier], usual: str) -> None:
        self.space, self.tiers, self.usual, self.now = space, tiers, usual, 0
        self.device = space.hardware.device_tier
        self.starts: list[int] = []
        self.aways: list[TakenAbsence] = []
        self.stores: list[StoreAt] = []
        self.initial: dict[int, tuple[str, ...]] = {}
        self.away: dict[int, tuple[TakenAbsence, str]] = {}
        self.using: list[list[Movable]] = [[] for _ in space.graph.ops]

    def begins(self) -> bool:
        """What may start below starts there."""
        for movable in self.space.movables:
            t, tier = movable.tensor, self._below(movable)
            for u in self.space.graph.users[t]:
                self.using[u].append(movable)
            begins = next((a for a in movable.absences if a.after == AT_START), None)
            if movable.free_start:
                self.initial[t] = (self.device,) if begins is None else (tier,)
            if begins is not None:
                if movable.home == self.device and not movable.free_start:
                    return False
                self.away[t] = TakenAbsence(begins, None if begins.dead else tier, 0, None), tier
        return True

    def step(self, i: int) -> bool:
        """Op ``i``, what comes before it and what leaves after it."""
        if not all(map(self._come, self.using[i])):
            return False
        self.starts.append(self.now)
        self.now += self.space.durations[i]
        return all([self._leave(movable, i) for movable in self.using[i]])

    def _below(self, movable: Movable) -> str:
        home = movable.home
        return home if home is not None and home in self.tiers else self.usual

    def _moved(self, channel: str | None, movable: Movable) -> int | None:
        """The start of a transfer; ``None`` where there is no channel."""
        if channel is None:
            return None
        begin = self.now
        self.now += self.space.transfer_ns(channel, movable.size_bytes)
        return begin

    def _come(self, movable: Movable) -> bool:
        if movable.tensor in self.away:
            gone, tier = self.away.pop(movable.tensor)
            back = None
            if gone.absence.returns:
                back = self._moved(self.tiers[tier].up, movable)
                if back is None:
                    return False
            self.aways.append(replace(gone, back_ns=back))
        return True

    def _leave(self, movable: Movable, i: int) -> bool:
        t, tier = movable.tensor, self._below(movable)
        a = next((a for a in movable.absences if a.after == i), None)
        below_at_start = movable.home not in (None, self.device) or (
            movable.free_start and self.device not in self.initial[t]
        )
        last = movable.persistent and i == movable.writers[-1] and below_at_start
        version = a.version if a is not None else len(movable.writers) - 1
        stored = any(s.tensor == t and s.version == version for s in self.stores)
        fresh = movable.writers[version] != AT_START or not below_at_start
        written = t in self.space.graph.ops[i].writes
        if ((a is not None and not a.dead) or (last and written)) and fresh and not stored:
            begin = self._moved(self.tiers[tier].down, movable)
            if begin is None:
                return False
            self.stores.append(StoreAt(t, version, tier, begin, self.now))
        if a is not None:
            self.away[t] = TakenAbsence(a, None if a.dead else tier, self.now, None), tier
        return True


# -- lower capacities
# --------------------------------------------------------------------------------------------------
# Capacities of the lower tiers in the exact model, for tiers that could not hold every tensor at
# once.
#
# A copy below holds its bytes from time 0 or from the start of its store, and until its last
# transfer back has ended; until the end of the step if it is what remains, or what rule 2 of
# docs/contract.md wants there.


def add_lower_capacities(model: Model) -> None:
    """Add one cumulative constraint per tight lower tier."""
    space = model.space
    moving = {movable.tensor for movable in space.movables}
    for tier in space.lower:
        if tier.name not in space.lower_tight:
            continue
        tensors = enumerate(space.graph.tensors)
        held = sum(
            model.units(x.size_bytes)
            for t, x in tensors
            if x.home == tier.name and t not in moving and t in space.graph.initial
        )
        intervals: list[Any] = []
        sizes: list[int] = []
        for movable in space.movables:
            for interval in _copies(model, movable, tier.name):
                intervals.append(interval)
                sizes.append(model.units(movable.size_bytes))
        model.cp.add_cumulative(intervals, sizes, -(-tier.capacity_bytes // model.unit) - held)


def _copies(model: Model, movable: Movable, tier: str) -> list[Any]:
    cp, t = model.cp, movable.tensor
    found = []
    initial = model.init_lower[t, tier]
    last = len(movable.writers) - 1
    if movable.starts and initial is not False:
        end = cp.new_int_var(0, model.horizon, "")
        for a in movable.absences:
            if a.version == 0 and (t, a.after) in model.aways:
                _until_back(model, t, a.after, tier, end, initial)
        if movable.persistent and not last:
            _enforced(model, end >= model.makespan, [initial])
        size = cp.new_int_var(0, model.horizon, "")
        found.append(
            cp.new_interval_var(0, size, end, "")
            if initial is True
            else cp.new_optional_interval_var(0, size, end, initial, "")
        )
    for (tensor, version, where), (start, present) in model.stores.items():
        if (tensor, where) != (t, tier):
            continue
        end, size = cp.new_int_var(0, model.horizon, ""), cp.new_int_var(0, model.horizon, "")
        cp.add(end >= start + model.store_ns[t, tier]).only_enforce_if(present)
        for a in movable.absences:
            if a.version == version and (t, a.after) in model.aways:
                _until_back(model, t, a.after, tier, end, present)
        if movable.persistent and version == last and initial is not False:
            _enforced(model, end >= model.makespan, [present, initial])
        found.append(cp.new_optional_interval_var(start, size, end, present, ""))
    return found


def _until_back(model: Model, t: int, after: int, tier: str, end: Any, there: Any) -> None:
    """A copy that an absence relies on stays until the transfer back has ended, or for good."""
    var = model.aways[t, after]
    fetched = var.fetch.get(tier)
    if fetched is not None:
        _enforced(model, end >= var.back + model.fetch_ns[t, tier], [fetched, there])
    if var.absence.before == model.count:
        gone = [var.keep[tier], there] + ([~fetched] if fetched is not None else [])
        _enforced(model, end >= model.makespan, gone)


def _enforced(model: Model, constraint: Any, literals: list[Any]) -> None:
    """The constraint wherever all literals hold; those that always do are ``True``."""
    kept = [literal for literal in literals if literal is not True]
    added = model.cp.add(constraint)
    if kept:
        added.only_enforce_if(kept)


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
) -> Solution:
    """The best plan within the budget that CP-SAT finds in ``limit`` deterministic seconds with one
    worker.

    Equal arguments give equal plans. Raises :class:`InfeasibleError` if the solver proves that
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
    return search.run(first, limit)


def plan(
    graph: Graph, hardware: Hardware, budget_bytes: int, *, limit: float, seed: int, largest: int
) -> Plan:
    """The plan of the policy ``optimal``: the one with the least makespan that :func:`solve` finds,
    with what the solver has proved.

    There may be a better one only where the bound of its ``proof`` is below its makespan, or it has
    none. Raises the errors of :func:`solve`.
    """
    found = solve(graph, hardware, budget_bytes, limit=limit, seed=seed, largest=largest)
    if not knows_all_starts(graph, hardware):
        return found.plan
    within = min(budget_bytes, hardware.device.capacity_bytes)
    return replace(found.plan, proof=Proof(graph, hardware, within, found.bound_ns))


class _SolverRun:
    """One solve: the best plan so far and what is known about all others."""

    def __init__(self, space: Space, seed: int) -> None:
        self.space = space
        self.seed = seed
        self.best: Plan | None = None
        self.best_schedule: Schedule | None = None
        self.makespan = -1
        self.solver_s = 0.0

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
        within = self.space.hardware, self.space.capacity_bytes
        result = replay(plan, *within)
        if not result.feasible or result.makespan_ns is None:
            return None
        if self.best is None or result.makespan_ns < self.makespan:
            self.best, self.makespan = plan, result.makespan_ns
            self.best_schedule = observed(self.space, plan, replay(plan, *within, record=True))
        return result.makespan_ns
