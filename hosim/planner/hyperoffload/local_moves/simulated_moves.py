"""What one tensor's choice comes to in a simulation: where it starts, its cache ops by place, and what the ops that read it wait for.

The places of a tensor's moves in a program table stand between its uses: :data:`MOVES` of them before its first use, after that one, and so
on. So a move has the same place whatever the others are, and what a use that writes waits for is known beforehand.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from hosim.cache_plan import DETACH
from hosim.engine import ProgramTable, TableMove, TableRow, UncoveredError
from hosim.planner.hyperoffload.tensor_choices import Problem, TensorChoice, initial_tiers, place

MOVES = 4
"""How many moves a tensor may have between two uses: it is stored and leaves, and comes back; and it is written back."""


@dataclass(frozen=True, slots=True)
class SimulatedMoves:
    """One tensor's moves: the positions of its tiers at time 0, its rows by place, for each reading use the place it waits for, or -1."""

    initial: tuple[int, ...]
    moves: dict[int, TableRow]
    awaited: tuple[tuple[int, int], ...]
    moved_bytes: int


class MoveCompiler:
    """Turns choices of a problem into moves. ``direct`` are the tiers that a channel joins to the device tier each way.

    ``room`` is how many places the moves of each tensor have, and ``base`` the first of them.
    """

    def __init__(self, problem: Problem) -> None:
        hardware, graph = problem.hardware, problem.graph
        self.problem = problem
        self.tier = hardware.tier_index
        self._channel = {ends: hardware.channels.index(c) for ends, c in hardware.channel_between.items()}
        device = hardware.device_tier
        self.direct = {tier for tier in self.tier if (tier, device) in self._channel and (device, tier) in self._channel}
        movable = {gap.tensor for gap in problem.gaps} | set(problem.starts_below)
        self.room = [MOVES * (len(users) + 1) if t in movable else 0 for t, users in enumerate(graph.users)]
        self._known: dict[tuple[object, ...], SimulatedMoves] = {}
        self._initial = set(graph.initial)
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
        home = problem.starts_below.get(t)
        if choice is None:
            here = [home or problem.hardware.device_tier] if t in self._initial or home is not None else []
            return SimulatedMoves(tuple([self.tier[tier] for tier in here]), {}, self._awaited(t, {}), 0)
        start = initial_tiers(problem, t, choice)
        moves = self._placed(t, choice)
        copied = problem.graph.tensors[t].size_bytes * sum([row[3] >= 0 for row in moves.values()])
        return SimulatedMoves(tuple([self.tier[tier] for tier in start]), moves, self._awaited(t, moves), copied)

    def _placed(self, t: int, choice: TensorChoice) -> dict[int, TableRow]:
        """The moves of a tensor, by place from the first of its places on."""
        problem, users = self.problem, self.problem.graph.users[t]
        reach = 4 * len(problem.graph.ops) + 8
        assert self.table is not None
        moves: dict[int, TableRow] = {}
        between = [0] * (len(users) + 1)
        for after, rank, turn, _, op in sorted(place(problem, t, choice), key=lambda placed: placed[:3]):
            window = bisect_right(users, after)
            number = between[window]
            if number == MOVES or not self.room[t]:
                raise UncoveredError
            between[window] += 1
            order = ((rank * 2 + 1) * reach + turn) * len(problem.graph.tensors) + t
            source = self.tier[op.source]
            if op.op == DETACH:
                move = TableMove(t, source, -1, -1, after, order)
            else:
                assert op.destination is not None
                move = TableMove(t, source, self.tier[op.destination], self._channel[op.source, op.destination], after, order)
            moves[MOVES * window + number] = self.table.row(move)
        return moves

    def _awaited(self, t: int, moves: dict[int, TableRow]) -> tuple[tuple[int, int], ...]:
        graph = self.problem.graph
        device = self.tier[self.problem.hardware.device_tier]
        arriving = [(row[4], k) for k, row in moves.items() if row[2] == device]
        awaited = []
        for number, i in enumerate(graph.users[t]):
            if t not in graph.ops[i].writes:
                before = [k for after, k in arriving if after < i]
                awaited.append((number, before[-1] if before else -1))
        return tuple(awaited)


def writes_awaited(users: Sequence[int], writes: Sequence[bool]) -> list[tuple[int, int, int]]:
    """What each use that writes waits for: its number, the first of the tensor's places that count, and the one after the last."""
    found, first = [], 0
    for number, writing in enumerate(writes):
        if writing:
            found.append((number, first, MOVES * (number + 1)))
            first = MOVES * (number + 1)
    return found
