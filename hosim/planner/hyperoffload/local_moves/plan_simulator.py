"""The cost of choices, at any size of the graph: a run of the engine's loop from the last snapshot
before a change begins to matter.

The simulator keeps the run of the present choices as snapshots, one every few ops. A change of a
few choices is put into the program table, judged by a run from the last snapshot before the first
cache op that it changes, and taken out again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    MOVES,
    NEVER,
    SAME,
    STOPPED,
    STUCK,
    ProgramBase,
    ProgramTable,
    UncoveredError,
    one_for_all,
)
from hosim.planner.hyperoffload.local_moves.choice_moves import Changes
from hosim.planner.hyperoffload.tensor_choices import (
    RANK,
    Choices,
    Problem,
    TensorChoice,
    initial_tiers,
    moves_of,
)

# -- simulated moves
# --------------------------------------------------------------------------------------------------
# The effect of one tensor's choice in a simulation: where it starts, and its cache ops by place.
#
# The places of a tensor's moves in a program table stand between its uses: :data:`MOVES` of them
# before its first use, after that one, and so on. So a move has the same place whatever the
# others are.

_in_order = itemgetter(0, 1)


class SimulatedMoves(NamedTuple):
    """One tensor's moves: the positions of its tiers at time 0, its rows by place, as the loop
    takes them (:meth:`hosim.engine.loop.Loop.exchange`), and the bytes that they copy.
    """

    initial: tuple[int, ...]
    rows: Any
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
        self._reach, self._tensors = 4 * len(graph.ops) + 8, len(graph.tensors)
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
            return SimulatedMoves(self.at_home.get(t, ()), ProgramTable.rows(()), 0)
        start = initial_tiers(problem, t, choice)
        rows, copies = self._placed(t, choice, start)
        return SimulatedMoves(
            tuple([self.tier[tier] for tier in start]),
            ProgramTable.rows(rows),
            problem.graph.tensors[t].size_bytes * copies,
        )

    def _placed(
        self, t: int, choice: TensorChoice, start: tuple[str, ...]
    ) -> tuple[list[int], int]:
        """The moves of a tensor, one behind the other, and how many are copies."""
        users, tier, tensors = self.problem.graph.users[t], self.tier, self._tensors
        rows: list[int] = []
        window = number = -1
        copies = 0
        found = [
            (after, ((RANK[op] * 2 + 1) * self._reach + turn) * tensors + t, source, destination)
            for op, source, destination, after, turn in moves_of(self.problem, t, choice, start)
        ]
        found.sort(key=_in_order)
        for after, order, source, destination in found:
            before, window = window, bisect_right(users, after)
            number = number + 1 if window == before else 0
            if number == MOVES or not self.room[t]:
                raise UncoveredError
            target = channel = -1
            if destination is not None:
                target, channel = tier[destination], self._channel[source, destination]
                copies += 1
            place = MOVES * window + number
            rows += (place, tier[source], target, channel, after, order, *self._flow(t, channel))
        return rows, copies

    def _flow_of(self, t: int, channel: int) -> tuple[int, int, int]:
        """The class of flows of a tensor on a channel, and what flows of it."""
        assert self.table is not None
        return self.table.flow_of(t, channel)


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


SimulatedCost = tuple[int, int, int]
"""Less is better: ops that never start (0: it fits), makespan in nanoseconds, bytes moved."""

ROOM, ORDER = -1, -2
"""The cause of an op's wait, if not a tensor: room, or other ops."""

_LEAST_STRIDE, _SNAPSHOTS = 8, 64
"""Ops between two snapshots, at least; how many snapshots there are."""

_OF_A_JUDGEMENT, _OF_A_CHANGE, _PUT_BACK = 32, 75, 600
"""The work of a judgement beside its instants, and for each tensor that changes; and the ops whose
state is put back with a unit of work.
"""


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
        self._stride = stride or max(_LEAST_STRIDE, self._count // _SNAPSHOTS)
        self._alike = one_for_all(hardware)
        uses = copy_uses(graph, hardware, problem.durations, graph.derived(copies_compete))
        machine = machine_of_copies(graph, hardware)
        try:
            self._table = ProgramTable(
                ProgramBase(graph, machine, problem.durations, uses, {}),
                budget_bytes,
                self._compiler.room,
                kept=self._count // self._stride + 1,
            )
        except UncoveredError:
            self._alike = False
            return
        self._compiler.table = self._table
        cells = self._table.cells
        self._places = [*zip(cells["stream_of"], cells["place"], strict=True)][: self._count]
        """By op its stream and its place there; in the end those of :data:`AT_START`, before any."""
        self._places.append((0, -1))
        self.choices: dict[int, TensorChoice] = {}
        self.cost: SimulatedCost = (self._count + 1, 0, 0)
        self._moves = _PresentMoves(self._compiler)
        self._table.reset(self._compiler.at_home)
        self._start = self._table.kept()
        self._snapshots: list[Any] = []
        """The states of the present run, after so many ops each."""
        self._stalls: list[tuple[int, int, int]] = []
        self.work = 0

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
        before, _ = self._exchange({t: choices.get(t) for t in {*self.choices, *choices}}, False)
        self.choices = dict(choices)
        self._restore(0, before)
        self._keep(0, sum([moves.moved_bytes for moves in self._moves.values()]))
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
        before, moved = self._exchange(changes, True)
        loop = self._table.loop
        found = self.cost
        if loop.last_changed >= 0:
            found = self._count + 1, 0, moved
            loop.recording = 0
            if self._restore(loop.first_changed, before):
                limit = NEVER if limit_ns is None else limit_ns - 1
                status = self._covered(lambda: self._table.follow(limit, loop.last_changed))
                found = self._cost(status, moved, limit_ns)
                self.work += loop.instants
            loop.recording = 1
        for t, moves in before.items():
            self._moves[t] = moves
            loop.exchange(t, moves.rows, 0)
        return found

    def accept(self, changes: Changes) -> SimulatedCost:
        """Take changes over into the present choices."""
        before, moved = self._exchange(changes, False)
        for t, choice in changes.items():
            if choice is None:
                self.choices.pop(t, None)
            else:
                self.choices[t] = choice
        loop = self._table.loop
        if loop.last_changed >= 0:
            self._restore(loop.first_changed, before)
            self._keep(loop.first_changed, moved)
        return self.cost

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

    def _exchange(self, changes: Changes, judged: bool) -> tuple[Mapping[int, SimulatedMoves], int]:
        """Put choices into the table: the moves that tensors had whose moves are others now, and
        the bytes that all move.

        The loop notes from where on something is different. ``judged``: it is there for a while.
        """
        before, moved, loop = dict[int, SimulatedMoves](), self.cost[2], self._table.loop
        loop.first_changed, loop.last_changed = len(self._snapshots), -1
        for t, choice in changes.items():
            old, new = self._moves[t], self._compiler.moves(t, choice)
            if old is not new:
                before[t], self._moves[t] = old, new
                moved += new.moved_bytes - old.moved_bytes
                loop.exchange(t, new.rows, judged)
                if old.initial != new.initial:
                    loop.end_changes(AT_START)
        return before, moved

    # -- runs
    # ----------------------------------------------------------------------------------------------

    def _restore(self, passed: int, before: Mapping[int, SimulatedMoves]) -> bool:
        """The state after so many snapshots, with the moves as they are now where they were others;
        whether it fits.
        """
        table, loop = self._table, self._table.loop
        table.put_back(self._snapshots[passed - 1] if passed else self._start)
        loop.instants = 0
        if passed:
            return True
        for t, old in before.items():
            if old.initial != self._moves[t].initial:
                table.start(t, self._moves[t].initial)
        loop.begin()
        return table.fits

    def _keep(self, passed: int, moved: int) -> None:
        """Run from the state after so many snapshots on, and keep the run as the present one."""
        table, scalars = self._table, self._table.cells["scalars"]
        del self._snapshots[passed:]
        table.forget(passed)
        if not passed:
            self._start = table.kept()
            if not table.fits:
                self.cost, self._stalls = (self._count + 1, 0, moved), []
                return
        while True:
            status = self._covered(lambda: table.run(NEVER, scalars[1] + self._stride))
            if status != STOPPED:
                break
            self._snapshots.append(table.keep())
        self.cost = self._cost(status, moved, None)
        self._stalls = list(self._waits(status))

    def _covered(self, run: Callable[[], int]) -> int:
        """What a run comes to. More flows at a time than the table computes exactly are no plan
        that can be judged: as if a rule were broken.
        """
        try:
            return run()
        except UncoveredError:
            return ILLEGAL

    def _cost(self, status: int, moved: int, limit_ns: int | None) -> SimulatedCost:
        cells = self._table.cells
        scalars = cells["scalars"]
        if status == SAME:
            sooner_ns = cells["kept_time"][self._table.loop.met] - scalars[0]
            return self.cost[0], self.cost[1] - sooner_ns if self.cost[1] else 0, moved
        if status == LATE and limit_ns is not None:
            return 0, limit_ns, moved
        last = max([scalars[3], *cells["free_since"]])
        if status == ENDED:
            return 0, last, moved
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
