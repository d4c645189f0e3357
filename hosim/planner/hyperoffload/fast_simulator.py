"""Makespans of choices on small graphs, many thousands a second: the rules of a replay and nothing else.

A search over single decisions needs only the makespan, of one stream, on channels that share nothing. The fast simulator computes it by
the rules of docs/contract.md with a few lists, in a tenth of the time of a replay, which compiles the plan and keeps figures. It does not
cover machines or graphs with more than that (:attr:`FastSimulator.exact` is false there). The engine has the last word: what a search
finds is replayed, and tests compare the two.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

from hosim.analysis.gaps import initial_set
from hosim.cache_plan import AT_START, DETACH, PREFETCH
from hosim.costmodel.transfer_time import alone_ns
from hosim.hardware import Hardware
from hosim.planner.hyperoffload.choices import Choices, Placed, TensorChoice, initial_tiers, place
from hosim.planner.hyperoffload.problem import Problem

_ABSENT, _PENDING, _VALID = 0, 1, 2

_Move = tuple[int, int, int]
"""A cache op: (channel, or -1 for a detach; tensor; tier below, from or to which it copies)."""


def _plain(hardware: Hardware) -> bool:
    """Whether a transfer's time depends on its size and its channel alone."""
    shared = hardware.fabrics or hardware.devices > 1 or any(c.engines > 1 or c.beside for c in hardware.channels)
    return not shared and not any(tier.pin_ns or tier.pageable for tier in hardware.tiers)


def _direct(problem: Problem) -> bool:
    """Whether a channel leads each way between the device tier and every tier that a tensor may be in."""
    device, joined = problem.hardware.device_tier, problem.hardware.channel_between
    tiers = {b.name for b in problem.below} | set(problem.starts_below.values())
    return all((tier, device) in joined and (device, tier) in joined for tier in tiers)


class FastSimulator:
    """Replays choices for a problem within ``budget_bytes``."""

    def __init__(self, problem: Problem, budget_bytes: int) -> None:
        graph, hardware = problem.graph, problem.hardware
        self.problem = problem
        self.capacity = budget_bytes
        self.exact = (
            len(graph.streams) <= 1 and _plain(hardware) and _direct(problem) and all(op.duration_ns is not None for op in graph.ops)
        )
        self._sizes = [tensor.size_bytes for tensor in graph.tensors]
        self._reads = [op.reads for op in graph.ops]
        self._writes = [op.writes for op in graph.ops]
        self._workspace = [op.workspace_bytes for op in graph.ops]
        self._dying: list[list[int]] = [[] for _ in graph.ops]
        for t, users in enumerate(graph.users):
            if users and not graph.survives[t]:
                self._dying[users[-1]].append(t)
        self._initial = graph.derived(initial_set)
        self._tiers = {tier.name: k for k, tier in enumerate(hardware.tiers)}
        self._capacities = [tier.capacity_bytes for tier in hardware.tiers]
        self._channel = {ends: hardware.channels.index(c) for ends, c in hardware.channel_between.items()}
        self._up = [c.destination == hardware.device_tier for c in hardware.channels]
        self._times: dict[tuple[int, int], int] = {}
        self._known: dict[Hashable, tuple[list[tuple[int, int, int, int, _Move]], tuple[int, ...]]] = {}

    def __call__(self, choices: Choices) -> tuple[int, int, int]:
        """Ops that never start (0 unless the plan runs out of memory), the makespan in nanoseconds, and the bytes moved."""
        placed: list[tuple[int, int, int, int, _Move]] = []
        where: dict[int, tuple[int, ...]] = {}
        for t, choice in choices.items():
            moves, where[t] = self._moves(t, choice)
            placed += moves
        placed.sort()
        after: dict[int, list[_Move]] = {}
        moved = 0
        for at, _, _, _, move in placed:
            after.setdefault(at, []).append(move)
            if move[0] >= 0:
                moved += self._sizes[move[1]]
        return (*self._run(after, where), moved)

    def _moves(self, t: int, choice: TensorChoice) -> tuple[list[tuple[int, int, int, int, _Move]], tuple[int, ...]]:
        key = (t, choice.below, choice.start, tuple(choice.away.items()), tuple(choice.stores.items()))
        known = self._known.get(key)
        if known is None:
            moves = [(*p[:4], self._move(p)) for p in place(self.problem, t, choice)]
            known = self._known[key] = moves, tuple([self._tiers[tier] for tier in initial_tiers(self.problem, t, choice)])
        return known

    def _move(self, placed: Placed) -> _Move:
        cache_op = placed[4]
        if cache_op.op == DETACH:
            return (-1, cache_op.tensor, -1)
        destination = cache_op.destination
        assert destination is not None
        below = cache_op.source if cache_op.op == PREFETCH else destination
        return (self._channel[cache_op.source, destination], cache_op.tensor, self._tiers[below])

    def _time(self, channel: int, t: int) -> int:
        key = (channel, self._sizes[t])
        if key not in self._times:
            self._times[key] = alone_ns(self.problem.hardware, self.problem.hardware.channels[channel].name, self._sizes[t])
        return self._times[key]

    def _run(self, after: dict[int, list[_Move]], where: dict[int, tuple[int, ...]]) -> tuple[int, int]:
        """The loop over instants, in rule 0's order."""
        problem, sizes, up, capacity = self.problem, self._sizes, self._up, self.capacity
        reads, writes, workspace, dying, durations = self._reads, self._writes, self._workspace, self._dying, problem.durations
        count = len(durations)
        device = self._tiers[problem.hardware.device_tier]
        state = bytearray(len(sizes))  # in the device tier
        below: list[list[int]] = [[] for _ in sizes]  # tiers with a valid copy
        held = [0] * len(self._capacities)
        home = problem.starts_below
        for t in self._initial:
            tiers = where.get(t)
            for tier in tiers if tiers is not None else (self._tiers[home[t]] if t in home else device,):
                held[tier] += sizes[t]
                if tier == device:
                    state[t] = _VALID
                else:
                    below[t].append(tier)
        if held[device] > capacity or any(h > c for h, c in zip(held, self._capacities, strict=True)):
            return count + 1, 0
        here = held[device]
        pending: dict[int, list[_Move]] = {}
        queues: list[deque[tuple[int, _Move]]] = [deque() for _ in up]
        flowing: list[_Move | None] = [None] * len(up)
        ends = [0] * len(up)
        due: list[int] = []
        sequence = 0
        i, running, op_end, now, last = 0, False, 0, 0, 0
        issued = after.get(AT_START, ())
        while True:
            for t in due:  # detaches that a transfer's end has set free
                waiting = pending.get(t)
                while waiting and waiting[0][0] < 0:
                    if state[t]:
                        state[t] = _ABSENT
                        here -= sizes[t]
                    del waiting[0]
                if waiting is not None and not waiting:
                    del pending[t]
            due.clear()
            for move in issued:
                channel, t, _ = move
                if channel < 0:
                    if t in pending:
                        pending[t].append(move)
                    else:
                        state[t] = _ABSENT
                        here -= sizes[t]
                    continue
                queues[channel].append((sequence, move))
                sequence += 1
                if t in pending:
                    pending[t].append(move)
                else:
                    pending[t] = [move]
            issued = ()
            if not running and i < count:
                needed = workspace[i]
                ready = True
                for t in reads[i]:
                    if state[t] != _VALID or (t in pending and any(m[0] >= 0 and up[m[0]] for m in pending[t])):
                        ready = False
                        break
                if ready:
                    for t in writes[i]:
                        if t in pending:  # all that is issued by now stands before the op
                            ready = False
                            break
                        if not state[t]:
                            needed += sizes[t]
                if ready and here + needed <= capacity:
                    here += needed
                    for t in writes[i]:
                        state[t] = _PENDING
                        if below[t]:
                            for tier in below[t]:
                                held[tier] -= sizes[t]
                            below[t] = []
                    running, op_end = True, now + durations[i]
            blocked: list[int] = []
            while True:
                first = -1
                for c, queue in enumerate(queues):
                    if queue and flowing[c] is None and c not in blocked and (first < 0 or queue[0][0] < queues[first][0][0]):
                        first = c
                if first < 0:
                    break
                move = queues[first][0][1]
                _, t, tier = move
                ok = pending[t][0] is move
                if ok and up[first]:
                    ok = tier in below[t] and (state[t] != _ABSENT or here + sizes[t] <= capacity)
                    if ok and state[t] == _ABSENT:
                        here += sizes[t]
                        state[t] = _PENDING
                elif ok:
                    ok = state[t] == _VALID and held[tier] + sizes[t] <= self._capacities[tier]
                    if ok:
                        held[tier] += sizes[t]
                if not ok:
                    blocked.append(first)
                    continue
                queues[first].popleft()
                flowing[first] = move
                ends[first] = now + self._time(first, t)
            upcoming = [ends[c] for c, move in enumerate(flowing) if move is not None]
            if running:
                upcoming.append(op_end)
            if not upcoming:
                break
            now = min(upcoming)
            if running and op_end == now:
                running = False
                here -= workspace[i]
                for t in writes[i]:
                    state[t] = _VALID
                for t in dying[i]:  # no cache op of it is left: choices store what comes back for a later user
                    if state[t]:
                        here -= sizes[t]
                    state[t] = _ABSENT
                    for tier in below[t]:
                        held[tier] -= sizes[t]
                    below[t] = []
                issued = after.get(i, ())
                i += 1
                last = now
            for c, done in enumerate(flowing):
                if done is not None and ends[c] == now:
                    _, t, tier = done
                    flowing[c] = None
                    if up[c]:
                        state[t] = _VALID
                    elif tier not in below[t]:
                        below[t].append(tier)
                    last = now
                    del pending[t][0]
                    if pending[t]:
                        due.append(t)
                    else:
                        del pending[t]
        return (0, last) if i == count and not any(queues) else (count - i + 1, last)
