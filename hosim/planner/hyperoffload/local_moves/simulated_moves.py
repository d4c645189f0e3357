"""The effect of one tensor's choice in a simulation: where it starts, its cache ops by place, and
what the ops that read it wait for.

The places of a tensor's moves in a program table stand between its uses: :data:`MOVES` of them
before its first use, after that one, and so on. So a move has the same place whatever the others
are, and what a use that writes waits for is known beforehand.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import cache
from operator import itemgetter
from typing import NamedTuple

from hosim.engine import ProgramTable, TableRow, UncoveredError
from hosim.planner.hyperoffload.tensor_choices import Problem, TensorChoice, initial_tiers, place

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
        home = problem.starts_below.get(t)
        if choice is None:
            here = (
                [home or problem.hardware.device_tier]
                if t in problem.initial or home is not None
                else []
            )
            return SimulatedMoves(
                tuple([self.tier[tier] for tier in here]), {}, self._awaited(t, {}), 0
            )
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
