"""The cost of choices, at any size of the graph: a run of the engine's loop from the last snapshot
before a change begins to matter.

The simulator keeps the run of the present choices as snapshots, one every few ops. A change of a
few choices is put into the program table, judged by a run from the last snapshot before the first
cache op that it changes, and taken out again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from hosim.analysis.costmodel import copies_compete, copy_uses, machine_of_copies
from hosim.cache_plan import AT_START
from hosim.engine import (
    ENDED,
    ILLEGAL,
    LATE,
    NEVER,
    NO_ROW,
    STOPPED,
    STUCK,
    ProgramBase,
    ProgramTable,
    TableRow,
    UncoveredError,
    one_for_all,
)
from hosim.planner.hyperoffload.local_moves.choice_moves import Changes
from hosim.planner.hyperoffload.tensor_choices import (
    Choices,
    Problem,
    TensorChoice,
    initial_tiers,
    place,
)

# -- simulated moves
# --------------------------------------------------------------------------------------------------
# The effect of one tensor's choice in a simulation: where it starts, its cache ops by place, and
# what the ops that read it wait for.
#
# The places of a tensor's moves in a program table stand between its uses: :data:`MOVES` of them
# before its first use, after that one, and so on. So a move has the same place whatever the
# others are, and what a use that writes waits for is known beforehand.

_in_order = itemgetter(0, 1, 2)

MOVES = 4
"""How many moves a tensor may have between two uses: it is stored and leaves, and comes back; and
it is written back.
"""


class SimulatedMoves(NamedTuple):
    """One tensor's moves: the positions of its tiers at time 0, its rows by place, for each reading
    use the place it waits for, or -1.
    """

    initial: tuple[int, ...]
    moves: dict[int, TableRow]
    awaited: tuple[tuple[int, int], ...]
    moved_bytes: int


class MoveCompiler:
    """Turns choices of a problem into moves. ``direct`` are the tiers that a channel joins to the
    device tier each way.

    ``room`` is how many places the moves of each tensor have, and ``base`` the first of them.
    """

    def __init__(self, problem: Problem) -> None:
        hardware, graph = problem.hardware, problem.graph
        self.problem = problem
        self.tier = hardware.tier_index
        self._channel = {
            ends: hardware.channels.index(c) for ends, c in hardware.channel_between.items()
        }
        device = hardware.device_tier
        self.at_home = {
            t: (self.tier[problem.starts_below.get(t, device)],)
            for t in (*problem.initial, *problem.starts_below)
        }
        """Where tensors without a choice are at time 0, by position."""
        self.direct = {
            tier
            for tier in self.tier
            if (tier, device) in self._channel and (device, tier) in self._channel
        }
        movable = {gap.tensor for gap in problem.gaps} | {
            t for t in problem.starts_below if graph.users[t]
        }
        self.room = [
            MOVES * (len(users) + 1) if t in movable else 0 for t, users in enumerate(graph.users)
        ]
        self._known: dict[tuple[object, ...], SimulatedMoves] = {}
        self._flow = cache(self._flow_of)
        self._reading = cache(self._reading_uses)
        self._reach = 4 * len(graph.ops) + 8
        self.table: ProgramTable | None = None
        """The table that the rows are for."""

    def moves(self, t: int, choice: TensorChoice | None) -> SimulatedMoves:
        """The moves of a tensor with this choice; of one without, where it starts and stays."""
        key = (t, *choice.key()) if choice is not None else (t,)
        known = self._known.get(key)
        if known is None:
            if len(self._known) > 200_000:
                self._known.clear()
            known = self._known[key] = self._compiled(t, choice)
        return known

    def _compiled(self, t: int, choice: TensorChoice | None) -> SimulatedMoves:
        problem = self.problem
        if choice is None:
            return SimulatedMoves(self.at_home.get(t, ()), {}, self._awaited(t, {}), 0)
        start = initial_tiers(problem, t, choice)
        moves = self._placed(t, choice)
        copied = problem.graph.tensors[t].size_bytes * sum([row[3] >= 0 for row in moves.values()])
        return SimulatedMoves(
            tuple([self.tier[tier] for tier in start]), moves, self._awaited(t, moves), copied
        )

    def _placed(self, t: int, choice: TensorChoice) -> dict[int, TableRow]:
        """The moves of a tensor, by place from the first of its places on."""
        problem, users, tier = self.problem, self.problem.graph.users[t], self.tier
        moves: dict[int, TableRow] = {}
        window = number = -1
        for after, rank, turn, _, op in sorted(place(problem, t, choice), key=_in_order):
            before, window = window, bisect_right(users, after)
            number = number + 1 if window == before else 0
            if number == MOVES or not self.room[t]:
                raise UncoveredError
            order = ((rank * 2 + 1) * self._reach + turn) * len(problem.graph.tensors) + t
            source = tier[op.source]
            if op.destination is None:
                row = (t, source, -1, -1, after, order, 0, 0, 0)
            else:
                channel = self._channel[op.source, op.destination]
                row = (
                    t,
                    source,
                    tier[op.destination],
                    channel,
                    after,
                    order,
                    *self._flow(t, channel),
                )
            moves[MOVES * window + number] = row
        return moves

    def _flow_of(self, t: int, channel: int) -> tuple[int, int, int]:
        """The class of flows of a tensor on a channel, and what flows of it."""
        assert self.table is not None
        return self.table.flow_of(t, channel)

    def _reading_uses(self, t: int) -> Sequence[tuple[int, int]]:
        """The uses of a tensor that do not write it: their numbers and ops."""
        graph = self.problem.graph
        written = set(graph.writers[t])
        return [(number, i) for number, i in enumerate(graph.users[t]) if i not in written]

    def _awaited(self, t: int, moves: dict[int, TableRow]) -> tuple[tuple[int, int], ...]:
        device = self.tier[self.problem.hardware.device_tier]
        arriving = [(row[4], k) for k, row in moves.items() if row[2] == device]
        awaited, passed, last = [], 0, -1
        for number, i in self._reading(t):
            while passed < len(arriving) and arriving[passed][0] < i:
                last = arriving[passed][1]
                passed += 1
            awaited.append((number, last))
        return tuple(awaited)


class _PresentMoves(dict[int, SimulatedMoves]):
    """The moves of each tensor as they are; of one that was never changed, those without a
    choice.
    """

    def __init__(self, compiler: MoveCompiler) -> None:
        super().__init__()
        self._compiler = compiler

    def __missing__(self, t: int) -> SimulatedMoves:
        moves = self[t] = self._compiler.moves(t, None)
        return moves


def writes_awaited(users: Sequence[int], writes: Sequence[bool]) -> list[tuple[int, int, int]]:
    """Return the waits of each use that writes: its number, the first of the tensor's places that
    count, and the one after the last.
    """
    found, first = [], 0
    for number, writing in enumerate(writes):
        if writing:
            found.append((number, first, MOVES * (number + 1)))
            first = MOVES * (number + 1)
    return found


SimulatedCost = tuple[int, int, int]
"""Less is better: ops that never start (0: it fits), makespan in nanoseconds, bytes moved."""

ROOM, ORDER = -1, -2
"""What an op waited for, if not for a tensor: room, or other ops."""

_LEAST_STRIDE, _SNAPSHOTS = 8, 64
"""Ops between two snapshots, at least; how many snapshots there are."""

_OF_A_JUDGEMENT, _OF_A_CHANGE, _PUT_BACK = 50, 100, 600
"""The work of a judgement beside its instants, and for each tensor that changes; and the ops whose
state is put back with a unit of work.
"""


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """The state after so many ops, in all and of each stream, at some time. Where marks are equal,
    all that follows takes as long.
    """

    total: int
    done: tuple[int, ...]
    state: Any
    time: int = 0
    mark: Any = None


class PlanSimulator:
    """Judges choices for a problem within ``budget_bytes``. ``choices`` are the present ones, whose
    run is kept, and ``cost`` is theirs.

    ``work`` counts what all judgements took, in instants simulated. ``stride`` is how many ops lie
    between two snapshots.
    """

    def __init__(self, problem: Problem, budget_bytes: int, stride: int | None = None) -> None:
        self.problem = problem
        self.budget_bytes = budget_bytes
        graph, hardware = problem.graph, problem.hardware
        self._compiler = MoveCompiler(problem)
        self._count = len(graph.ops)
        self._several = len(graph.streams) > 1
        self._stride = stride or max(_LEAST_STRIDE, self._count // _SNAPSHOTS)
        self._alike = one_for_all(hardware)
        uses = copy_uses(graph, hardware, problem.durations, graph.derived(copies_compete))
        machine = machine_of_copies(graph, hardware)
        try:
            self._table = ProgramTable(
                ProgramBase(graph, machine, problem.durations, uses, {}),
                budget_bytes,
                self._compiler.room,
            )
        except UncoveredError:
            self._alike = False
            return
        self._compiler.table = self._table
        cells = self._table.cells
        self._uses = [
            cells["user"][a:b]
            for a, b in zip(cells["user_from"], list(cells["user_from"])[1:], strict=False)
        ]
        for t, users in enumerate(graph.users):
            if self._compiler.room[t]:
                self._await_writes(t, users)
        self._places = [*zip(cells["stream_of"], cells["place"], strict=True)][: self._count]
        """By op its stream and its place there; in the end those of :data:`AT_START`, before any."""
        self._places.append((0, -1))
        self.choices: dict[int, TensorChoice] = {}
        self.cost: SimulatedCost = (self._count + 1, 0, 0)
        self._moves = _PresentMoves(self._compiler)
        self._table.reset(self._compiler.at_home)
        self._start = _Snapshot(-1, (), self._table.kept())
        self._snapshots: list[_Snapshot] = []
        self._done: list[list[int]] = []
        """By stream, how many of its ops have ended at each snapshot."""
        self._stalls: list[tuple[int, int, int]] = []
        self.work = 0

    def _await_writes(self, t: int, users: Sequence[int]) -> None:
        writes = [t in self.problem.graph.ops[i].writes for i in users]
        cells, base = self._table.cells, self._table.base[t]
        for number, first, last in writes_awaited(users, writes):
            u = self._uses[t][number]
            cells["need_from"][u], cells["need_to"][u] = base + first, base + last

    @property
    def tiers(self) -> Sequence[str]:
        """The tiers below that a channel joins to the device tier each way: where tensors may be,
        in the order of the problem's.
        """
        return [tier.name for tier in self.problem.below if tier.name in self._compiler.direct]

    def covers(self, choices: Choices) -> bool:
        """Return whether the engine says the same: not where tensors take several channels, or
        devices do not all do the same.
        """
        used = {
            tier for choice in choices.values() for tier in (choice.below, *choice.tiers.values())
        } | set(self.problem.starts_below.values())
        return self._alike and used <= self._compiler.direct

    # -- the present choices
    # -----------------------------------------------------------------------------------

    def begin(self, choices: Choices) -> SimulatedCost:
        """Simulate choices from the start, and keep them as the present ones."""
        changes = {t: choices.get(t) for t in {*self.choices, *choices}}
        before = {t: self._moves[t] for t in changes}
        self._put(changes)
        self.choices = dict(choices)
        self._restore(self._start, before)
        self._keep(self._start, sum([moves.moved_bytes for moves in self._moves.values()]))
        self.work += self._table.loop.instants
        return self.cost

    def __call__(self, choices: Choices) -> SimulatedCost:
        """The cost of any choices, judged as a change of the present ones."""
        names = {*self.choices, *choices}
        return self.judge(
            {t: choices.get(t) for t in names if choices.get(t) != self.choices.get(t)}
        )

    def judge(self, changes: Changes, limit_ns: int | None = None) -> SimulatedCost:
        """The cost of the present choices with these changes; one that is no less than ``limit_ns``
        may be found to be just that.
        """
        self.work += _OF_A_JUDGEMENT + _OF_A_CHANGE * len(changes) + self._count // _PUT_BACK
        before = {t: self._moves[t] for t in changes}
        differ = self._put(changes)
        if not differ:
            return self.cost
        moved = self._moved(before)
        found: SimulatedCost = (self._count + 1, 0, moved)
        loop, (first, last) = self._table.loop, self._passed(differ)
        if self._restore(self._snapshots[first - 1] if first else self._start, before):
            loop.recording = 0
            found = self._followed(last, before, moved, limit_ns)
            loop.recording = 1
            self.work += loop.instants
        for t, moves in before.items():
            if self._moves[t] is not moves:
                self._replace(t, moves)
        return found

    def _followed(
        self, m: int, before: Mapping[int, SimulatedMoves], moved: int, limit_ns: int | None
    ) -> SimulatedCost:
        """The cost of a run until its end, or until it goes on as the present one does at some
        snapshot from number ``m`` on.
        """
        table, limit = self._table, NEVER if limit_ns is None else limit_ns - 1
        scalars = table.cells["scalars"]
        further = 1
        while m < len(self._snapshots):
            kept = self._snapshots[m]
            if kept.total > scalars[1]:
                status = self._run(limit, kept.total)
                if status != STOPPED:
                    return self._cost(status, moved, limit_ns)
                if (
                    scalars[1] == kept.total
                    and tuple(table.cells["done"]) == kept.done
                    and table.mark(before) == kept.mark
                ):
                    return (
                        self.cost[0],
                        self.cost[1] + scalars[0] - kept.time if self.cost[1] else 0,
                        moved,
                    )
            m, further = m + further, 2 * further
        return self._cost(self._run(limit, NEVER), moved, limit_ns)

    def accept(self, changes: Changes) -> SimulatedCost:
        """Take changes over into the present choices."""
        before = {t: self._moves[t] for t in changes}
        differ = self._put(changes)
        for t, choice in changes.items():
            if choice is None:
                self.choices.pop(t, None)
            else:
                self.choices[t] = choice
        if differ:
            first, _ = self._passed(differ)
            origin = self._snapshots[first - 1] if first else self._start
            self._restore(origin, before)
            self._keep(origin, self._moved(before))
        return self.cost

    def _moved(self, before: Mapping[int, SimulatedMoves]) -> int:
        """The bytes that the present choices move, where those of some tensors were others."""
        return self.cost[2] + sum(
            [self._moves[t].moved_bytes - old.moved_bytes for t, old in before.items()]
        )

    def stalls(self) -> list[tuple[int, int, int]]:
        """The waits of ops in the present run: (op, nanoseconds, the tensor it waited for; below 0:
        room, or other ops).

        What the step waits for after its last op is a wait of the op after it, for the tensor that
        moves last.
        """
        return self._stalls

    def fullest(self, after: int, before: int) -> int:
        """The op between two that starts when the device tier holds the most in the present run."""
        held = self._table.cells["op_held"]
        between = range(min(max(after + 1, 0), self._count - 1), min(before, self._count)) or [
            min(max(after + 1, 0), self._count - 1)
        ]
        return max(between, key=lambda i: held[i])

    # -- changes
    # ----------------------------------------------------------------------------------------------

    def _put(self, changes: Changes) -> list[int]:
        """Put choices into the table: the ops from whose ends on something is different, -1 for
        time 0.
        """
        differ: list[int] = []
        for t, choice in changes.items():
            old, new = self._moves[t], self._compiler.moves(t, choice)
            if old is not new:
                changed, waits = self._replace(t, new)
                if self._several:
                    differ += self._waiting(t, changed, waits)
                for k in changed:
                    differ += [moves[k][4] for moves in (old.moves, new.moves) if k in moves]
                if old.initial != new.initial:
                    differ.append(AT_START)
        return differ

    def _replace(self, t: int, new: SimulatedMoves) -> tuple[list[int], list[int]]:
        """Put a tensor's moves into the table in place of those that it has: which of its places
        and of its uses are different.
        """
        old, base, put = self._moves[t], self._table.base[t], self._table.loop.put
        self._moves[t] = new
        before, after = old.moves, new.moves
        changed = [k for k, row in after.items() if before.get(k) != row]
        for k in changed:
            put(base + k, *after[k])
        for k in before:
            if k not in after:
                put(base + k, *NO_ROW)
                changed.append(k)
        waits: list[int] = []
        if old.awaited != new.awaited:
            cells, uses = self._table.cells, self._uses[t]
            for one, (number, place) in zip(old.awaited, new.awaited, strict=True):
                if one[1] != place:
                    u = uses[number]
                    waits.append(u)
                    cells["need_from"][u], cells["need_to"][u] = (
                        (base + place, base + place + 1) if place >= 0 else (0, 0)
                    )
        return changed, waits

    def _waiting(self, t: int, places: Iterable[int], waits: Iterable[int]) -> list[int]:
        """On several streams, the ops before those that wait for what stands in other places, or
        for something else.
        """
        users, writers, found = (
            self.problem.graph.users[t],
            self.problem.graph.writers[t],
            list[int](),
        )
        for k in places if writers else ():
            window = k // MOVES
            w = bisect_left(writers, users[window]) if window < len(users) else len(writers)
            if w < len(writers):
                found += self._before(writers[w])
        for u in waits:
            found += self._before(self._table.cells["use_op"][u])
        return found

    def _before(self, i: int) -> list[int]:
        """The op before another on its stream, at whose end that one may begin to wait."""
        cells, (stream, place) = self._table.cells, self._places[i]
        return [cells["queue"][cells["queue_from"][stream] + place - 1] if place else AT_START]

    def _passed(self, ops: Iterable[int]) -> tuple[int, int]:
        """The least and the largest number of snapshots at which one of some ops has not ended."""
        places = [self._places[i] for i in {*ops}]
        passed = [bisect_right(self._done[stream], place) for stream, place in places]
        return min(passed), max(passed)

    # -- runs
    # ----------------------------------------------------------------------------------------------

    def _restore(self, origin: _Snapshot, before: Mapping[int, SimulatedMoves]) -> bool:
        """The state of a snapshot, with the moves as they are now where they were others; whether
        it fits.
        """
        table, loop = self._table, self._table.loop
        table.put_back(origin.state)
        loop.instants = 0
        if origin is not self._start:
            return True
        for t, old in before.items():
            new = self._moves[t]
            if old.initial != new.initial:
                table.start(t, new.initial)
        loop.begin()
        return table.fits

    def _keep(self, origin: _Snapshot, moved: int) -> None:
        """Run from the state of a snapshot on, and keep the run as the present one."""
        table = self._table
        if origin is self._start:
            self._start, self._snapshots = _Snapshot(-1, (), table.kept()), []
            self._done = [[] for _ in table.cells["done"]]
            if not table.fits:
                self.cost, self._stalls = (self._count + 1, 0, moved), []
                return
        else:
            count = self._snapshots.index(origin) + 1
            self._snapshots = self._snapshots[:count]
            self._done = [ended[:count] for ended in self._done]
        scalars, done = table.cells["scalars"], table.cells["done"]
        while True:
            status = self._run(NEVER, scalars[1] + self._stride)
            if status != STOPPED:
                break
            for ended, so_far in zip(done, self._done, strict=True):
                so_far.append(ended)
            self._snapshots.append(
                _Snapshot(scalars[1], tuple(done), table.kept(), scalars[0], table.mark())
            )
        self.cost = self._cost(status, moved, None)
        self._stalls = list(self._waits(status))

    def _run(self, limit: int, stop: int) -> int:
        """Run on. More flows at a time than the table computes exactly are no plan that can be
        judged: as if a rule were broken.
        """
        try:
            return self._table.run(limit, stop)
        except UncoveredError:
            return ILLEGAL

    def _cost(self, status: int, moved: int, limit_ns: int | None) -> SimulatedCost:
        scalars = self._table.cells["scalars"]
        last = max([scalars[3], *self._table.cells["free_since"]])
        if status == ENDED:
            return 0, last, moved
        if status == LATE and limit_ns is not None:
            return 0, limit_ns, moved
        if status == STUCK:
            return self._count - scalars[1] + 1, last, moved
        return self._count + 1, 0, moved

    def _waits(self, status: int) -> Iterable[tuple[int, int, int]]:
        cells = self._table.cells
        done, idle, cause = cells["done"], cells["op_idle"], cells["op_cause"]
        for i in np.flatnonzero(idle).tolist():
            stream, place = self._places[i]
            if place < done[stream]:
                yield i, idle[i], cause[i]
        ended = max(cells["free_since"])
        if status == ENDED and cells["scalars"][3] > ended:
            yield self._count, cells["scalars"][3] - ended, cells["scalars"][4]
