"""The exact model: every plan of a :class:`~hosim.planner.optimal_space.Space` as a constraint program for OR-tools CP-SAT.

Variables are the start of each op, and per possible absence whether it is taken, in which tier the contents are meanwhile, when the device tier's bytes are released (r) and
when the transfer back reserves them again (p); without an absence r = p. A tensor's bytes are held over the blocks between its absences. The constraints are the
rules of design.md section 3:

- ops run in listed order; an op waits for the transfers back of what it reads;
- a version's store begins when it is written and ends before the next write; r is not before it has ended, nor before the last use has;
- transfers of a channel do not overlap; the blocks and the workspaces never exceed the capacity;
- a persistent tensor ends the step valid in each tier in which it began it.

A transfer may start at any time here, while a plan issues it at the end of an op and the engine starts it as soon as it can. So every replay is a solution of
this program, and its optimum a lower bound on the makespan of any plan of the space.
:mod:`hosim.planner.optimal` makes the plan and replays it.

Two families of redundant constraints carry most of the proof; they say in terms of sums what follows for an op at which memory would run out: enough
bytes are absent when it starts, and between two ops there is time for all the transfers that must lie between them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING, Any

from hosim.planner.optimal_space import START, Absence, Course, Space

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

_LARGEST = 2**24
"""Capacity in model units at most: what is finer is rounded in favour of the plan, so that the optimum stays a lower bound."""


@dataclass(frozen=True, slots=True)
class Away:
    """An absence that the schedule takes: contents in ``tier`` (None if nobody needs them) from ``release_ns`` until the transfer at ``back_ns`` (None: never)."""

    absence: Absence
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
    """A solution of the model. ``op_start_ns`` by op; ``initial`` has the tiers at time 0 of tensors whose start the plan chooses."""

    makespan_ns: int
    op_start_ns: tuple[int, ...]
    aways: tuple[Away, ...]
    stores: tuple[StoreAt, ...]
    initial: dict[int, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the solver says: the best schedule it has (None: none found), a lower bound, and whether there can be no schedule at all."""

    schedule: Schedule | None
    bound_ns: int
    infeasible: bool
    solver_s: float


@dataclass(slots=True)
class _AwayVars:
    absence: Absence
    away: Any
    keep: dict[str, Any]
    fetch: dict[str, Any]
    release: Any
    back: Any


class Model:
    """The program of one space. ``cp`` is the CP-SAT model."""

    def __init__(self, space: Space) -> None:
        from ortools.sat.python import cp_model

        self.space = space
        self.cp = cp = cp_model.CpModel()
        self.unit = _unit(space)
        graph, durations = space.graph, space.durations
        self.count = len(graph.ops)
        self.horizon = horizon = space.horizon_ns
        self.makespan = cp.new_int_var(sum(durations), horizon, "makespan")
        before, after = 0, sum(durations)
        self.start: list[Any] = []
        for i, d in enumerate(durations):
            self.start.append(cp.new_int_var(before, horizon - after, f"start_{i}"))
            before, after = before + d, after - d
            if i:
                cp.add(self.start[i] >= self.end(i - 1))
        if self.count:
            cp.add(self.makespan >= self.end(self.count - 1))
        self.channels: dict[str, list[Any]] = defaultdict(list)
        self.blocks: list[tuple[Any, int]] = []
        self.held = 0
        self.init_device: dict[int, Any] = {}
        self.init_lower: dict[tuple[int, str], Any] = {}
        self.stores: dict[tuple[int, int, str], tuple[Any, Any]] = {}
        self.aways: dict[tuple[int, int], _AwayVars] = {}
        self.store_ns: dict[tuple[int, str], int] = {}
        self.fetch_ns: dict[tuple[int, str], int] = {}
        for course in space.courses:
            self._course(course)
        self._fixed()
        self._capacities()
        self._redundant()
        cp.minimize(self.makespan)

    # -- times -------------------------------------------------------------------------------------------------

    def begin(self, i: int) -> Any:
        """Start of an op; the makespan for the end of the step."""
        return self.start[i] if i < self.count else self.makespan

    def end(self, i: int) -> Any:
        """End of an op; 0 for START."""
        return self.start[i] + self.space.durations[i] if i >= 0 else 0

    # -- tensors -----------------------------------------------------------------------------------------------

    def _course(self, course: Course) -> None:
        cp, t = self.cp, course.tensor
        device = self.space.hardware.device_tier
        for tier in self.space.lower:
            if tier.up is not None:
                self.fetch_ns[t, tier.name] = self.space.transfer_ns(tier.up, course.size_bytes)
            if tier.down is not None:
                self.store_ns[t, tier.name] = self.space.transfer_ns(tier.down, course.size_bytes)
        ends = any(a.after == START or a.before == self.count for a in course.absences)
        unwritten = len(course.writers) == 1 and course.starts
        for tier in self.space.lower:
            literal: Any = course.home == tier.name
            if course.free_start:
                literal = True if unwritten and not self.space.lower_tight else cp.new_bool_var(f"lower_{t}_{tier.name}")
            self.init_lower[t, tier.name] = literal
        if course.starts:
            self.init_device[t] = cp.new_bool_var(f"device_{t}") if course.free_start and ends else course.home == device or course.free_start
            if course.free_start:
                cp.add_bool_or([self.init_device[t], *(self.init_lower[t, tier.name] for tier in self.space.lower)])
        self._stores(course, unwritten)
        begin: Any = 0 if course.starts else self.begin(course.first)
        for absence in course.absences:
            release, back = self._absence(course, absence)
            self._block(begin, release, course.size_bytes)
            begin = back
        if course.survives:
            self._block(begin, self.makespan, course.size_bytes)
        else:
            self._block(begin, self.end(course.last), course.size_bytes)
        if len(self.space.lower) > 1:
            self._one_at_a_time(course)

    def _stores(self, course: Course, unwritten: bool) -> None:
        cp, t = self.cp, course.tensor
        last = len(course.writers) - 1
        wanted = {a.version for a in course.absences if not a.dead}
        if course.persistent and not unwritten:
            wanted.add(last)
        for version in sorted(wanted):
            writer, rewriter = course.writers[version], course.rewriters[version]
            for tier in self.space.lower:
                if tier.down is None:
                    continue
                initial = self.init_lower[t, tier.name] if version == 0 and course.starts else False
                device = self.init_device[t] if version == 0 and course.starts else True
                if initial is True or device is False:
                    continue
                length = self.store_ns[t, tier.name]
                start = cp.new_int_var(0, self.horizon - length, f"store_{t}_{version}_{tier.name}")
                present = cp.new_bool_var(f"stored_{t}_{version}_{tier.name}")
                cp.add(start >= self.end(writer))
                cp.add(start + length <= self.begin(rewriter)).only_enforce_if(present)
                if initial is not False:
                    cp.add_implication(present, ~initial)
                if device is not True:
                    cp.add_implication(present, device)
                self.channels[tier.down].append(cp.new_optional_fixed_size_interval_var(start, length, present, f"storing_{t}_{version}_{tier.name}"))
                self.stores[t, version, tier.name] = (start, present)
        if course.persistent and not unwritten:
            for tier in self.space.lower:
                literal = self.init_lower[t, tier.name]
                if literal is False:
                    continue
                if (t, last, tier.name) in self.stores:
                    cp.add_implication(literal, self.stores[t, last, tier.name][1])
                else:
                    cp.add_bool_or([~literal] if literal is not True else [False])

    def _absence(self, course: Course, a: Absence) -> tuple[Any, Any]:
        """Release and return of one absence; where it is not taken, both are the end of the last use."""
        cp, t = self.cp, course.tensor
        left, right = self.end(a.after), self.begin(a.before)
        if a.dead:
            return left, right
        at_end = a.before == self.count
        name = f"{t}_{a.after}"
        device = self.init_device.get(t, True)
        away: Any = cp.new_bool_var(f"away_{name}")
        release = cp.new_int_var(0, self.horizon, f"release_{name}")
        back = cp.new_int_var(0, self.horizon, f"back_{name}")
        cp.add(release >= left)
        cp.add(release <= back)
        cp.add(back <= right)
        cp.add(release == left).only_enforce_if(~away)
        cp.add(back == left).only_enforce_if(~away)
        if a.after == START and course.starts:
            _implies(cp, device, away)
            if device is False:
                cp.add(release == 0)
            elif device is not True:
                cp.add(release == 0).only_enforce_if(~device)
        if at_end and course.persistent:
            _implies(cp, device, away)
        keep: dict[str, Any] = {}
        fetch: dict[str, Any] = {}
        for tier in self.space.lower:
            kept = cp.new_bool_var(f"keep_{name}_{tier.name}")
            keep[tier.name] = kept
            self._copy_there(course, a, tier.name, kept, release)
            if a.returns:
                back_from: Any = kept
            elif at_end and course.persistent and device is not False:
                back_from = cp.new_bool_var(f"fetch_{name}_{tier.name}")
                if device is True:
                    cp.add(back_from == kept)
                else:
                    cp.add_implication(back_from, kept)
                    cp.add_implication(back_from, device)
                    cp.add_bool_or([back_from, ~kept, ~device])
            else:
                continue
            if tier.up is None:
                cp.add(back_from == 0)
                continue
            length = self.fetch_ns[t, tier.name]
            cp.add(back + length <= right).only_enforce_if(back_from)
            self.channels[tier.up].append(cp.new_optional_fixed_size_interval_var(back, length, back_from, f"fetching_{name}_{tier.name}"))
            fetch[tier.name] = back_from
        cp.add(sum(keep.values()) == away)
        if at_end:
            if not fetch:
                cp.add(back == self.makespan).only_enforce_if(away)
            elif device is not True:
                cp.add(back == self.makespan).only_enforce_if([away, ~device])
        self.aways[t, a.after] = _AwayVars(a, away, keep, fetch, release, back)
        return release, back

    def _copy_there(self, course: Course, a: Absence, tier: str, kept: Any, release: Any) -> None:
        """``kept`` in ``tier`` through the absence: the copy was there at time 0, or has been stored by the release."""
        cp, t = self.cp, course.tensor
        initial = self.init_lower[t, tier] if a.version == 0 and course.starts else False
        store = self.stores.get((t, a.version, tier))
        if initial is True:
            return
        sources = [] if initial is False else [initial]
        if store is not None:
            start, present = store
            sources.append(present)
            cp.add(release >= start + self.store_ns[t, tier]).only_enforce_if([kept, present])
        cp.add_bool_or([~kept, *sources])

    def _one_at_a_time(self, course: Course) -> None:
        """Rule 3: cache ops of one tensor take effect one after the other; what is absent cannot be stored."""
        cp, t = self.cp, course.tensor
        intervals = []
        for (tensor, version, tier), (start, present) in self.stores.items():
            if tensor == t:
                intervals.append(cp.new_optional_fixed_size_interval_var(start, self.store_ns[t, tier], present, f"one_{t}_{version}_{tier}"))
        if len(intervals) < 2:
            return
        for a in course.absences:
            if (t, a.after) not in self.aways:
                continue
            var = self.aways[t, a.after]
            until = cp.new_int_var(0, self.horizon, f"until_{t}_{a.after}")
            cp.add(until >= var.back)
            for tier, fetched in var.fetch.items():
                cp.add(until == var.back + self.fetch_ns[t, tier]).only_enforce_if(fetched)
            size = cp.new_int_var(0, self.horizon, f"out_{t}_{a.after}")
            intervals.append(cp.new_optional_interval_var(var.release, size, until, var.away, f"absent_{t}_{a.after}"))
        cp.add_no_overlap(intervals)

    # -- memory and channels -----------------------------------------------------------------------------------

    def _block(self, begin: Any, end: Any, size_bytes: int) -> None:
        """The device tier holds the bytes from ``begin`` to ``end``."""
        if isinstance(begin, int) and end is self.makespan:
            self.held += size_bytes // self.unit
            return
        if isinstance(begin, int) and isinstance(end, int):
            return
        length = self.cp.new_int_var(0, self.horizon, "")
        self.blocks.append((self.cp.new_interval_var(begin, length, end, ""), size_bytes // self.unit))

    def _fixed(self) -> None:
        for t, first, last in self.space.fixed:
            size = self.space.graph.tensors[t].size_bytes
            if size:
                begin = 0 if first == START else self.begin(first)
                self._block(begin, self.makespan if last == self.count else self.end(last), size)
        for i, op in enumerate(self.space.graph.ops):
            if op.workspace_bytes:
                self._block(self.begin(i), self.end(i), op.workspace_bytes)

    def _capacities(self) -> None:
        demands = [size for _, size in self.blocks]
        self.cp.add_cumulative([interval for interval, _ in self.blocks], demands, -(-self.space.capacity_bytes // self.unit) - self.held)
        for intervals in self.channels.values():
            if len(intervals) > 1:
                self.cp.add_no_overlap(intervals)

    # -- redundant constraints ---------------------------------------------------------------------------------

    def _redundant(self) -> None:
        """Bytes absent at tight ops, and time between two ops for the transfers that must lie between them."""
        cp, space, count = self.cp, self.space, self.count
        absent: dict[tuple[int, int], dict[int, Any]] = {}
        for course in space.courses:
            for a in course.absences:
                var = self.aways.get((course.tensor, a.after))
                here = absent[course.tensor, a.after] = {}
                for i in range(a.after + 1, a.before):
                    if space.most_bytes[i] <= space.capacity_bytes:
                        continue
                    if var is None:
                        here[i] = True
                        continue
                    literal = cp.new_bool_var(f"absent_{course.tensor}_{i}")
                    cp.add_implication(literal, var.away)
                    cp.add(var.release <= self.start[i]).only_enforce_if(literal)
                    cp.add(var.back >= self.start[i] + (space.durations[i] > 0)).only_enforce_if(literal)
                    here[i] = literal
        for i in range(count):
            surplus = space.most_bytes[i] - space.capacity_bytes
            if surplus > 0:
                terms = []
                for course in space.courses:
                    for a in course.absences:
                        if i in absent[course.tensor, a.after]:
                            terms.append((course.size_bytes // self.unit) * absent[course.tensor, a.after][i])
                    # an end of the step that nothing follows: what leaves for good
                cp.add(sum(terms) >= surplus // self.unit)
        self._time_up(absent)
        self._time_down(absent)

    def _time_up(self, absent: dict[tuple[int, int], dict[int, Any]]) -> None:
        cp, count = self.cp, self.count
        lanes = sum(tier.up is not None for tier in self.space.lower)
        fetches = [var for var in self.aways.values() if var.fetch]
        length = {id(var): min(self.fetch_ns[var.absence.tensor, tier] for tier in var.fetch) for var in fetches}
        for j in range(1, count + 1):
            for i in range(j):
                terms = []
                crossing = False
                for var in fetches:
                    a = var.absence
                    if a.before > j:
                        continue
                    if a.after >= i:
                        literal = sum(var.fetch.values())
                    elif i in absent[a.tensor, a.after] and (a.before < count or self.init_device.get(a.tensor) is True):
                        literal = absent[a.tensor, a.after][i]
                        crossing = True
                    else:
                        continue
                    if a.before == j or a.after >= i:
                        pass
                    terms.append(length[id(var)] * literal)
                if terms and (crossing or len(terms) > 1):
                    cp.add(lanes * (self.begin(j) - self.begin(i)) >= sum(terms))
            terms = [length[id(var)] * sum(var.fetch.values()) for var in fetches if var.absence.before <= j]
            if terms:
                cp.add(lanes * self.begin(j) >= sum(terms))

    def _time_down(self, absent: dict[tuple[int, int], dict[int, Any]]) -> None:
        cp, count = self.cp, self.count
        lanes = sum(tier.down is not None for tier in self.space.lower)
        for i in range(count):
            for j in range(i + 2, count + 1):
                terms = []
                for course in self.space.courses:
                    for version, writer in enumerate(course.writers):
                        if writer < i:
                            continue
                        literal = self._stored_by(course, version, j, absent)
                        if literal is not None:
                            lengths = [self.store_ns[course.tensor, tier.name] for tier in self.space.lower if tier.down is not None]
                            terms.append(min(lengths) * literal)
                if terms:
                    cp.add(lanes * (self.begin(j) - self.end(i)) >= sum(terms))

    def _stored_by(self, course: Course, version: int, j: int, absent: dict[tuple[int, int], dict[int, Any]]) -> Any:
        """A literal that implies that the version has been stored by the start of op ``j`` (the end of the step); None if there is none."""
        stores = [self.stores[course.tensor, version, tier.name][1] for tier in self.space.lower if (course.tensor, version, tier.name) in self.stores]
        if not stores:
            return None
        if j == self.count or course.rewriters[version] <= j:
            return stores[0] if len(stores) == 1 else sum(stores)
        if version == 0 and course.free_start:
            return None
        latest = None
        for a in course.absences:
            if a.version != version or a.dead:
                continue
            if a.before <= j:
                latest = self.aways[course.tensor, a.after].away
            elif a.after < j and j in absent[course.tensor, a.after]:
                latest = absent[course.tensor, a.after][j]
        return latest

    # -- solving -----------------------------------------------------------------------------------------------

    def solve(self, limit: float, seed: int, **options: Any) -> Outcome:
        """Run CP-SAT with one worker for ``limit`` deterministic seconds at most."""
        from ortools.sat.python import cp_model

        solver = cp_model.CpSolver()
        parameters = solver.parameters
        parameters.num_workers = 1
        parameters.random_seed = seed
        parameters.max_deterministic_time = limit
        for key, value in options.items():
            setattr(parameters, key, value)
        status = solver.solve(self.cp)
        infeasible = status == cp_model.INFEASIBLE
        found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
        if status == cp_model.MODEL_INVALID:
            raise AssertionError(self.cp.validate())
        bound = 0 if infeasible else round(solver.best_objective_bound)
        return Outcome(self._read(solver) if found else None, bound, infeasible, solver.wall_time)

    def _read(self, solver: cp_model.CpSolver) -> Schedule:
        def true(literal: Any) -> bool:
            return literal if isinstance(literal, bool) else bool(solver.boolean_value(literal))

        device = self.space.hardware.device_tier
        aways: list[Away] = []
        needed: set[tuple[int, int, str]] = set()
        initial: dict[int, tuple[str, ...]] = {}
        for course in self.space.courses:
            t = course.tensor
            lower: set[str] = set()
            for a in course.absences:
                if a.dead:
                    aways.append(Away(a, None, solver.value(self.end(a.after)) if a.after >= 0 else 0, None))
                    continue
                var = self.aways[t, a.after]
                if not true(var.away):
                    continue
                tier = next(name for name, kept in var.keep.items() if true(kept))
                fetched = tier in var.fetch and true(var.fetch[tier])
                aways.append(Away(a, tier, solver.value(var.release), solver.value(var.back) if fetched else None))
                if (t, a.version, tier) in self.stores and true(self.stores[t, a.version, tier][1]):
                    needed.add((t, a.version, tier))
                else:
                    lower.add(tier)
            if course.free_start:
                there = true(self.init_device[t])
                if not there and not lower:
                    lower.add(next(tier.name for tier in self.space.lower if true(self.init_lower[t, tier.name])))
                initial[t] = (*((device,) if there else ()), *(tier.name for tier in self.space.lower if tier.name in lower))
            elif course.home is not None and course.home != device:
                lower.add(course.home)
            last = len(course.writers) - 1
            if course.persistent and (last > 0 or not course.starts):
                needed |= {(t, last, tier) for tier in lower}
        stores = [
            StoreAt(t, version, tier, begin := solver.value(self.stores[t, version, tier][0]), begin + self.store_ns[t, tier])
            for t, version, tier in sorted(needed)
        ]
        starts = tuple([solver.value(start) for start in self.start])
        return Schedule(solver.value(self.makespan), starts, tuple(aways), tuple(stores), initial)


def _implies(cp: cp_model.CpModel, there: Any, away: Any) -> None:
    """Not there at the start of the step: away."""
    if there is False:
        cp.add(away == 1)
    elif there is not True:
        cp.add_bool_or([there, away])


def _unit(space: Space) -> int:
    """Bytes of one unit of the model: exact where the sizes allow it."""
    sizes = [space.graph.tensors[t].size_bytes for t in range(len(space.graph.tensors))]
    unit = gcd(space.capacity_bytes, *sizes, *(op.workspace_bytes for op in space.graph.ops)) or 1
    return unit if space.capacity_bytes // unit <= _LARGEST else -(-space.capacity_bytes // _LARGEST)
