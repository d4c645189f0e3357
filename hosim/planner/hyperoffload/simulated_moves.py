"""What one tensor's choice comes to in a simulation: where it starts, its cache ops by place, and what the ops that use it wait for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from hosim.cache_plan import AT_START, DETACH, PREFETCH
from hosim.engine import DIES, compile_graph
from hosim.planner.hyperoffload.choices import TensorChoice, initial_tiers, place
from hosim.planner.hyperoffload.problem import Problem

READS, WRITES, MAKES, ENDS, MAY_END = 1, 2, 4, 8, 16
"""What an op does with a moved tensor: flags. It makes what it need not find there; it surely or perhaps releases it at its end."""

HERE, COMING, GONE = 0, 1, 2
"""State of a moved tensor in the device tier, the two lowest bits of its state: as if it did not move; being filled; no bytes held."""

IN_PART, VALID_BELOW = 1, 2
"""The two bits of each tier below: bytes held that are being filled; a valid copy."""

NOTHING = -100
"""Before all cache ops, in the numbers of :attr:`SimulatedMove.number`."""


class SimulatedMove(NamedTuple):
    """A cache op of tensor ``t``. ``number`` orders those of one tensor, as place and rank; ``channel`` is -1 for a detach.

    ``tier`` is the tier below, by its place in a state.
    """

    number: int
    channel: int
    t: int
    tier: int


PlacedMove = tuple[int, int, int, int, SimulatedMove]
"""A move with its place: after which op, then what orders those of one place."""

Touch = tuple[int, int, int, int]
"""What an op has to do with a moved tensor: the tensor, the flags, the number of the last move that has to be over, and the op after
which that is issued (:data:`AT_START` if it surely is by then)."""


@dataclass(frozen=True, slots=True)
class SimulatedMoves:
    """One tensor's moves: its ``state`` at time 0, ``placed`` in order, a touch for each op that uses it, the bytes copied."""

    state: int
    placed: tuple[PlacedMove, ...]
    touches: dict[int, Touch]
    moved_bytes: int


class MoveCompiler:
    """Turns choices of a problem into moves. ``direct`` are the tiers that a channel joins to the device tier each way."""

    def __init__(self, problem: Problem) -> None:
        hardware = problem.hardware
        self.problem = problem
        self.tiers = [hardware.device_tier, *(tier.name for tier in hardware.tiers if tier.name != hardware.device_tier)]
        self._tier = {name: k for k, name in enumerate(self.tiers)}
        self._channel = {ends: hardware.channels.index(c) for ends, c in hardware.channel_between.items()}
        device = hardware.device_tier
        self.direct = {tier for tier in self.tiers if (tier, device) in self._channel and (device, tier) in self._channel}
        self._known: dict[tuple[object, ...], SimulatedMoves] = {}
        self._base = problem.graph.derived(compile_graph)
        self._single = len(problem.graph.streams) <= 1

    def moves(self, t: int, choice: TensorChoice | None) -> SimulatedMoves | None:
        """The moves of a tensor with this choice; None if it is as any that stays in the device tier."""
        if choice is None:
            home = self.problem.starts_below.get(t)
            if home is None:
                return None
            choice = TensorChoice(home)
            return SimulatedMoves(self._state((home,)), (), self._touches(t, ()), 0)
        key = (t, *choice.key())
        known = self._known.get(key)
        if known is None:
            if len(self._known) > 200_000:
                self._known.clear()
            known = self._known[key] = self._compiled(t, choice)
        return known

    def _compiled(self, t: int, choice: TensorChoice) -> SimulatedMoves:
        placed = []
        for after, rank, use, _, op in place(self.problem, t, choice):
            number = 4 * after + rank
            if op.op == DETACH:
                move = SimulatedMove(number, -1, t, 0)
            else:
                assert op.destination is not None
                below = op.source if op.op == PREFETCH else op.destination
                move = SimulatedMove(number, self._channel[op.source, op.destination], t, self._tier[below])
            placed.append((after, rank, use, t, move))
        placed.sort()
        start = initial_tiers(self.problem, t, choice)
        size = self.problem.graph.tensors[t].size_bytes
        copied = size * sum([p[4].channel >= 0 for p in placed])
        return SimulatedMoves(self._state(start), tuple(placed), self._touches(t, tuple(placed)), copied)

    def _state(self, start: tuple[str, ...]) -> int:
        """A tensor that has no copy at time 0 is as if it did not move: the op that makes it will find it so."""
        if not start:
            return HERE
        state = HERE if self.tiers[0] in start else GONE
        for tier in start:
            if tier != self.tiers[0]:
                state |= VALID_BELOW << 2 * self._tier[tier]
        return state

    def _touches(self, t: int, placed: tuple[PlacedMove, ...]) -> dict[int, Touch]:
        graph = self.problem.graph
        copies = [(p[0], p[4].number, p[1] == 2) for p in placed if p[4].channel >= 0]
        touches = {}
        for i in graph.users[t]:
            op, flags = graph.ops[i], 0
            last, issued = NOTHING, AT_START
            if t in op.reads:
                flags |= READS
            if t in op.writes:
                flags |= WRITES | (MAKES if t in op.outputs else 0)
                before = [c for c in copies if c[0] < i]
                last = 4 * i - 1
            else:
                before = [c for c in copies if c[0] < i and c[2]]
                last = before[-1][1] if before else NOTHING
            if before and not self._single:
                issued = before[-1][0]
            if self._base.fates[t] & DIES and graph.users[t][-1] == i:
                flags |= ENDS
            elif t in self._base.finish[i][2]:
                flags |= MAY_END
            touches[i] = (t, flags, last, issued)
        return touches
