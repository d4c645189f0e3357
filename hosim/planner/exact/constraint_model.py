"""The exact model: every plan of a :class:`~hosim.planner.exact.decision_space.Space` as a
constraint program for OR-tools CP-SAT.

Variables are the start of each op, and per possible absence whether it is taken, in which tier the
contents are meanwhile, when the device tier's bytes are released (r) and when the transfer back
reserves them again (p); without an absence r = p. A tensor's bytes are held over the blocks between
its absences. The constraints are the rules of docs/contract.md:

- ops run in the listed order of each stream, after their producers; an op waits for the transfers
  back of what it reads;
- a version's store begins when it is written and ends before the next write; r is not before it has
  ended, nor before the last use has;
- transfers of a channel do not overlap; the blocks and the workspaces never exceed the capacity;
- a persistent tensor ends the step valid in each tier in which it began it.

A transfer may start at any time here, and an op wait, while a plan issues transfers at the ends of
ops and the engine starts everything as soon as it can. So every replay is a solution of this
program, and its optimum a lower bound on the makespan of any plan.
:mod:`hosim.planner.exact.solver` makes the plan and replays it;
:mod:`hosim.planner.exact.haste` has what the engine's haste excludes. The redundant
constraints of :mod:`hosim.planner.exact.redundant_constraints`, added next, make an optimum
provable.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

from hosim.cache_plan import AT_START
from hosim.planner.exact.decision_space import Movable, OptionalAbsence, Space, earliest_and_tails

_LARGEST = 2**24
"""Capacity in model units at most: what is finer is rounded in favour of the plan, so that the
optimum stays a lower bound.
"""


Literals = dict[tuple[int, int], dict[int, Any]]
"""By (tensor, ``after``) of an absence and then by op position."""


@dataclass(slots=True)
class AbsenceVars:
    """Variables of one absence; ``keep`` and ``fetch`` have a literal by tier: contents kept there,
    transfer back from there.

    ``release`` is a variable (``stored``) on several streams, and where a store may have to end
    first; else it is the end of the last use.
    """

    absence: OptionalAbsence
    away: Any
    keep: dict[str, Any]
    fetch: dict[str, Any]
    release: Any
    back: Any
    stored: bool


class Model:
    """The program of one space, for schedules of at most ``horizon_ns``. ``cp`` is the CP-SAT
    model.

    ``at_start`` and ``at_end`` are the literals of the redundant constraints, empty until these are
    added.
    """

    def __init__(self, space: Space, horizon_ns: int) -> None:
        from ortools.sat.python import cp_model

        self.space = space
        self.cp: Any = cp_model.CpModel()
        cp = self.cp
        self.unit = _unit(space)
        self.capacity = -(-space.capacity_bytes // self.unit)
        self.count = len(space.graph.ops)
        self.horizon = horizon_ns
        self._last_ends: dict[tuple[int, ...], Any] = {}
        self.start: list[Any] = []
        self._ops()
        self.channels: dict[str, list[Any]] = defaultdict(list)
        self.blocks: list[tuple[Any, int]] = []
        self.spans: list[tuple[Any, Any, int, int | None]] = []
        self.held = 0
        self.init_device: dict[int, Any] = {}
        self.init_lower: dict[tuple[int, str], Any] = {}
        self.stores: dict[tuple[int, int, str], tuple[Any, Any]] = {}
        self.aways: dict[tuple[int, int], AbsenceVars] = {}
        self.store_ns: dict[tuple[int, str], int] = {}
        self.fetch_ns: dict[tuple[int, str], int] = {}
        for movable in space.movables:
            self._movable(movable)
        if not space.order.single:
            self._detached_in_time()
        self._fixed()
        self._capacities()
        self.at_start: Literals = {}
        self.at_end: Literals = {}
        cp.minimize(self.makespan)

    def _ops(self) -> None:
        """Starts of ops: after those that precede them."""
        cp, order, durations, horizon = (
            self.cp,
            self.space.order,
            self.space.durations,
            self.horizon,
        )
        earliest, tails = earliest_and_tails(order, durations)
        least = max(
            (e + d + t for e, d, t in zip(earliest, durations, tails, strict=True)), default=0
        )
        self.makespan = cp.new_int_var(least, horizon, "makespan")
        for i, d in enumerate(durations):
            self.start.append(cp.new_int_var(earliest[i], horizon - d - tails[i], f"start_{i}"))
            if order.single:
                if i:
                    cp.add(self.start[i] >= self.end(i - 1))
                continue
            for p in order.last(order.direct[i]):
                cp.add(self.start[i] >= self.end(p))
        for i in (
            order.last(range(self.count))
            if not order.single
            else [self.count - 1] * bool(self.count)
        ):
            cp.add(self.makespan >= self.end(i))

    # -- times
    # ----------------------------------------------------------------------------------------------

    def begin(self, i: int) -> Any:
        """Start of an op; the makespan for the end of the step."""
        return self.start[i] if i < self.count else self.makespan

    def end(self, i: int) -> Any:
        """End of an op; 0 for AT_START."""
        return self.start[i] + self.space.durations[i] if i >= 0 else 0

    def last_end(self, ops: Sequence[int]) -> Any:
        """Return the end of the last of some ops; 0 for none."""
        last = tuple(self.space.order.last(ops))
        if len(last) < 2:
            return self.end(last[0]) if last else 0
        if last not in self._last_ends:
            ends = self._last_ends[last] = self.cp.new_int_var(0, self.horizon, "")
            for i in last:
                self.cp.add(ends >= self.end(i))
        return self._last_ends[last]

    def left(self, a: OptionalAbsence) -> Any:
        """Return the instant when all uses before an absence have ended."""
        return (
            self.end(a.after)
            if self.space.order.single
            else self.last_end(self.space.uses_before(a))
        )

    @property
    def exact(self) -> bool:
        """Return whether no size had to be rounded."""
        return self.unit == 1 or all(size % self.unit == 0 for size in _sizes(self.space))

    def units(self, size_bytes: int) -> int:
        """Bytes in units of the model, rounded in favour of the plan."""
        return size_bytes // self.unit

    def shortest_store_ns(self, tensor: int) -> int:
        """Nanoseconds of a store of the tensor to the tier that takes the least time."""
        return min(
            self.store_ns[tensor, tier.name] for tier in self.space.lower if tier.down is not None
        )

    # -- tensors
    # ----------------------------------------------------------------------------------------------

    def _movable(self, movable: Movable) -> None:
        cp, t = self.cp, movable.tensor
        device = self.space.hardware.device_tier
        for tier in self.space.lower:
            if tier.up is not None:
                self.fetch_ns[t, tier.name] = self.space.transfer_ns(tier.up, movable.size_bytes)
            if tier.down is not None:
                self.store_ns[t, tier.name] = self.space.transfer_ns(tier.down, movable.size_bytes)
        ends = any(a.after == AT_START or a.before == self.count for a in movable.absences)
        unwritten = len(movable.writers) == 1 and movable.starts
        for tier in self.space.lower:
            literal: Any = movable.home == tier.name
            if movable.free_start:
                literal = (
                    True
                    if unwritten and not self.space.lower_tight
                    else cp.new_bool_var(f"lower_{t}_{tier.name}")
                )
            self.init_lower[t, tier.name] = literal
        if movable.starts:
            self.init_device[t] = (
                cp.new_bool_var(f"device_{t}")
                if movable.free_start and ends
                else movable.home == device
            )
            if movable.free_start:
                cp.add_bool_or(
                    [
                        self.init_device[t],
                        *(self.init_lower[t, tier.name] for tier in self.space.lower),
                    ]
                )
        self._stores(movable, unwritten)
        begin: Any = 0 if movable.starts else self.begin(movable.first)
        owner = None if movable.starts else movable.first
        for absence in movable.absences:
            release, back = self._absence(movable, absence)
            self._block(begin, release, movable.size_bytes, owner)
            begin, owner = back, absence.before if absence.dead else None
        if movable.survives:
            self._block(begin, self.makespan, movable.size_bytes, owner)
        else:
            self._block(begin, self._released(movable.tensor), movable.size_bytes, owner)
        if len(self.space.lower) > 1:
            self._one_at_a_time(movable)

    def _stores(self, movable: Movable, unwritten: bool) -> None:
        cp, t = self.cp, movable.tensor
        last = len(movable.writers) - 1
        wanted = {a.version for a in movable.absences if not a.dead}
        if movable.persistent and not unwritten:
            wanted.add(last)
        for version in sorted(wanted):
            writer, rewriter = movable.writers[version], movable.rewriters[version]
            for tier in self.space.lower:
                if tier.down is None:
                    continue
                initial = (
                    self.init_lower[t, tier.name] if version == 0 and movable.starts else False
                )
                device = self.init_device[t] if version == 0 and movable.starts else True
                if initial is True or device is False:
                    continue
                length = self.store_ns[t, tier.name]
                if length > self.horizon:
                    continue
                start = cp.new_int_var(0, self.horizon - length, f"store_{t}_{version}_{tier.name}")
                present = cp.new_bool_var(f"stored_{t}_{version}_{tier.name}")
                cp.add(start >= self.end(writer)).only_enforce_if(present)
                cp.add(start + length <= self.begin(rewriter)).only_enforce_if(present)
                if initial is not False:
                    cp.add_implication(present, ~initial)
                if device is not True:
                    cp.add_implication(present, device)
                self.channels[tier.down].append(
                    cp.new_optional_fixed_size_interval_var(
                        start, length, present, f"storing_{t}_{version}_{tier.name}"
                    )
                )
                self.stores[t, version, tier.name] = (start, present)
        if movable.persistent and not unwritten:
            for tier in self.space.lower:
                literal = self.init_lower[t, tier.name]
                if literal is False:
                    continue
                if (t, last, tier.name) in self.stores:
                    cp.add_implication(literal, self.stores[t, last, tier.name][1])
                else:
                    cp.add(literal == 0)

    def _absence(self, movable: Movable, a: OptionalAbsence) -> tuple[Any, Any]:
        """Release and return of one absence; where it is not taken, both are the end of the last
        use.
        """
        cp, t = self.cp, movable.tensor
        left, right = self.left(a), self.begin(a.before)
        if a.dead:
            if self.space.order.single:
                return left, right
            release = cp.new_int_var(0, self.horizon, "")  # at any time until then
            cp.add(release >= left)
            cp.add(release <= right)
            return release, right
        at_end = a.before == self.count
        name = f"{t}_{a.after}"
        device = self.init_device.get(t, True)
        away: Any = cp.new_bool_var(f"away_{name}")
        back = cp.new_int_var(0, self.horizon, f"back_{name}")
        stored = [
            tier.name for tier in self.space.lower if (t, a.version, tier.name) in self.stores
        ]
        release = left
        firsts, ordered = self._awaiting(a)
        free = bool(stored) or not (
            self.space.order.single or (a.after == AT_START and device is False)
        )
        if free:
            release = cp.new_int_var(0, self.horizon, f"release_{name}")
            cp.add(release >= left)
            cp.add(release <= back)
            cp.add(release == left).only_enforce_if(~away)
        cp.add(back >= left)
        for first in firsts:
            if ordered:
                cp.add(back <= self.begin(first))
            else:
                cp.add(back <= self.begin(first)).only_enforce_if(away)
        cp.add(back == left).only_enforce_if(~away)
        if a.after == AT_START and movable.starts:
            cp.add_bool_or([device, away])
            if movable.free_start:
                # there at time 0 and gone at once would be no better than not there at all: it
                # leaves after a store
                cp.add(release == 0).only_enforce_if(~device)
                cp.add_bool_or([~device, ~away, *(self.stores[t, 0, tier][1] for tier in stored)])
        if (
            at_end and movable.persistent and self.space.order.single
        ):  # on several streams it may be too late to issue that
            cp.add_bool_or([device, away])
        keep, fetch = self._kept_and_fetched(movable, a, release, back, firsts)
        cp.add(sum(keep.values()) == away)
        if at_end:
            if not fetch:
                cp.add(back == self.makespan).only_enforce_if(away)
            else:
                cp.add(back == self.makespan).only_enforce_if([away, ~device])
        self.aways[t, a.after] = AbsenceVars(a, away, keep, fetch, release, back, free)
        return release, back

    def _awaiting(self, a: OptionalAbsence) -> tuple[list[int], bool]:
        """The first ops that wait for a transfer back, and whether all uses before the absence have
        surely ended when they have.
        """
        order = self.space.order
        if order.single:
            return [a.before], True
        firsts = [a.before] if a.before == self.count else order.first(self.space.uses_after(a))
        before = self.space.uses_before(a)
        return firsts, all([order.ended_by(u, p) for u in before for p in firsts])

    def _kept_and_fetched(
        self, movable: Movable, a: OptionalAbsence, release: Any, back: Any, firsts: Sequence[int]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The literals of an absence by tier: contents kept there, and transfer back from there."""
        cp, t, name = self.cp, movable.tensor, f"{movable.tensor}_{a.after}"
        device = self.init_device.get(t, True)
        keep: dict[str, Any] = {}
        fetch: dict[str, Any] = {}
        for tier in self.space.lower:
            kept = cp.new_bool_var(f"keep_{name}_{tier.name}")
            keep[tier.name] = kept
            self._copy_there(movable, a, tier.name, kept, release)
            if a.returns:
                back_from: Any = kept
            elif a.before == self.count and movable.persistent and device is not False:
                back_from = cp.new_bool_var(f"fetch_{name}_{tier.name}")
                cp.add_implication(back_from, kept)
                cp.add_implication(back_from, device)
                cp.add_bool_or([back_from, ~kept, ~device])
            else:
                continue
            if tier.up is None:
                cp.add(back_from == 0)
                continue
            length = self.fetch_ns[t, tier.name]
            for first in firsts:
                cp.add(back + length <= self.begin(first)).only_enforce_if(back_from)
            self.channels[tier.up].append(
                cp.new_optional_fixed_size_interval_var(
                    back, length, back_from, f"fetching_{name}_{tier.name}"
                )
            )
            fetch[tier.name] = back_from
        return keep, fetch

    def _detached_in_time(self) -> None:
        """A detach is issued after an op by whose end all users so far have surely ended: by the
        graph, or as an op awaits a transfer.
        """
        cp, space = self.cp, self.space
        for (t, after), var in self.aways.items():
            places = space.detach_places(var.absence)
            if places == [after]:
                continue
            among = range(after, var.absence.before)

            def after_waiting(
                op: int, awaited: Any, var: AbsenceVars = var, among: range = among
            ) -> Iterator[Any]:
                """The detach is issued after an op that surely follows ``op``, and what ``op``
                waits for takes place.
                """
                for x in space.order.first([x for x in among if space.order.ended_by(op, x)]):
                    literal = self.at_least(var.release, self.end(x))
                    cp.add_implication(literal, awaited)
                    yield literal

            unsure = min(
                u
                for u in space.uses_before(var.absence)
                if not all(space.order.ended_by(u, x) for x in among)
            )
            choices = [self.at_least(var.release, self.end(p)) for p in places]
            for (other, begin), gone in self.aways.items():
                if (other, begin) != (t, after) and gone.absence.before > unsure:
                    for u in space.order.first(space.uses_after(gone.absence)):
                        for fetched in gone.fetch.values():
                            choices += after_waiting(u, fetched)
            for (other, version, _), (_, present) in self.stores.items():
                writer = space.movable[other].rewriters[version]
                if unsure < writer < self.count:
                    choices += after_waiting(writer, present)
            cp.add_bool_or([~var.away, *choices])

    def at_least(self, a: Any, b: Any, also: Any = None) -> Any:
        """A literal that implies ``a >= b`` (and ``also``)."""
        literal = self.cp.new_bool_var("")
        self.cp.add(a >= b).only_enforce_if(literal)
        if also is not None:
            self.cp.add_implication(literal, also)
        return literal

    def _released(self, tensor: int) -> Any:
        """Return the end of the last user of a tensor that dies."""
        users = self.space.graph.users[tensor]
        return self.end(users[-1]) if self.space.order.single else self.last_end(users)

    def _copy_there(
        self, movable: Movable, a: OptionalAbsence, tier: str, kept: Any, release: Any
    ) -> None:
        """``kept`` in ``tier`` through the absence: the copy was there at time 0, or has been
        stored by the release.
        """
        cp, t = self.cp, movable.tensor
        initial = self.init_lower[t, tier] if a.version == 0 and movable.starts else False
        store = self.stores.get((t, a.version, tier))
        if initial is True:
            return
        sources = [initial]
        if store is not None:
            start, present = store
            sources.append(present)
            cp.add(release >= start + self.store_ns[t, tier]).only_enforce_if([kept, present])
        cp.add_bool_or([~kept, *sources])

    def _one_at_a_time(self, movable: Movable) -> None:
        """Rule 3: cache ops of one tensor take effect one after the other; what is absent cannot be
        stored.
        """
        cp, t = self.cp, movable.tensor
        intervals = []
        for (tensor, version, tier), (start, present) in self.stores.items():
            if tensor == t:
                intervals.append(
                    cp.new_optional_fixed_size_interval_var(
                        start, self.store_ns[t, tier], present, f"one_{t}_{version}_{tier}"
                    )
                )
        if len(intervals) < 2:
            return
        for a in movable.absences:
            if (t, a.after) not in self.aways:
                continue
            var = self.aways[t, a.after]
            until = cp.new_int_var(0, self.horizon, f"until_{t}_{a.after}")
            cp.add(until >= var.back)
            for tier, fetched in var.fetch.items():
                cp.add(until == var.back + self.fetch_ns[t, tier]).only_enforce_if(fetched)
            size = cp.new_int_var(0, self.horizon, f"out_{t}_{a.after}")
            intervals.append(
                cp.new_optional_interval_var(
                    var.release, size, until, var.away, f"absent_{t}_{a.after}"
                )
            )
        cp.add_no_overlap(intervals)

    # -- memory and channels
    # -----------------------------------------------------------------------------------

    def _block(self, begin: Any, end: Any, size_bytes: int, owner: int | None) -> None:
        """The device tier holds the bytes from ``begin`` to ``end``; ``owner`` is the op that
        allocates them, if one does.
        """
        if isinstance(begin, int) and end is self.makespan:
            self.held += self.units(size_bytes)
            return
        if isinstance(begin, int) and isinstance(end, int):
            return
        length = self.cp.new_int_var(0, self.horizon, "")
        self.blocks.append(
            (self.cp.new_interval_var(begin, length, end, ""), self.units(size_bytes))
        )
        self.spans.append((begin, end, self.units(size_bytes), owner))

    def _fixed(self) -> None:
        for t, first, last in self.space.fixed:
            size = self.space.graph.tensors[t].size_bytes
            if size:
                begin = 0 if first == AT_START else self.begin(first)
                self._block(
                    begin,
                    self.makespan if last == self.count else self._released(t),
                    size,
                    first if first >= 0 else None,
                )
        for i, op in enumerate(self.space.graph.ops):
            if op.workspace_bytes:
                self._block(self.begin(i), self.end(i), op.workspace_bytes, i)

    def _capacities(self) -> None:
        demands = [size for _, size in self.blocks]
        self.cp.add_cumulative(
            [interval for interval, _ in self.blocks], demands, self.capacity - self.held
        )
        for intervals in self.channels.values():
            if len(intervals) > 1:
                self.cp.add_no_overlap(intervals)


def _sizes(space: Space) -> list[int]:
    graph = space.graph
    return [
        space.capacity_bytes,
        *(tensor.size_bytes for tensor in graph.tensors),
        *(op.workspace_bytes for op in graph.ops),
    ]


def _unit(space: Space) -> int:
    """Bytes of one unit of the model: exact where the sizes allow it."""
    unit = max(gcd(*_sizes(space)), 1)
    return (
        unit if space.capacity_bytes // unit <= _LARGEST else -(-space.capacity_bytes // _LARGEST)
    )
