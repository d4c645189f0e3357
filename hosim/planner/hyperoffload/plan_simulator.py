"""What choices cost, at any size of the graph: a simulation that starts where a change begins to matter and ends where it has ceased to.

The simulator keeps the run of the best choices so far as snapshots, one every few ops. A change of a few choices is judged from the last
snapshot before the first cache op that it changes. At each later snapshot the two runs are compared: once they go on alike, all that
follows is the run that is known, earlier or later by a constant. While they differ only in tensors that nothing touches for a while, and
the bytes that these hold make no difference to anything, the runs go on alike too, so that such stretches are passed over.

The rules are those of docs/contract.md (:mod:`hosim.planner.hyperoffload.simulator_loop`). The engine has the last word: tests compare the
two, figure by figure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from hosim.cache_plan import AT_START
from hosim.planner.hyperoffload.choice_moves import Changes
from hosim.planner.hyperoffload.choices import Choices, TensorChoice
from hosim.planner.hyperoffload.problem import Problem
from hosim.planner.hyperoffload.simulated_moves import GONE, MoveCompiler, PlacedMove, SimulatedMoves, Touch
from hosim.planner.hyperoffload.simulator_loop import run
from hosim.planner.hyperoffload.simulator_state import NEVER, RunSnapshot, RunState, goes_on_alike, restored, snapshot, with_time
from hosim.planner.hyperoffload.step_model import StepModel

SimulatedCost = tuple[int, int, int]
"""Less is better: ops that never start (0: it fits), makespan in nanoseconds, bytes moved."""

_LEAST_STRIDE, _SNAPSHOTS, _MOST_SNAPSHOTS, _MOST_STATES = 4, 250, 2_000, 64_000_000
"""Ops between two snapshots, at least; how many snapshots there are on most graphs, and at most; the states of tensors in all of them."""

_PATIENCE = 2
"""Snapshots after the last change at which a run that is late by more than is wanted is given up: it seldom catches up."""

_HOPELESS, _LARGE = 200, 200
"""A run that is late by such a part of the whole is given up at once, though changes are still to come; on graphs of more ops than that."""

_PENDING_TO_AN_INSTANT = 32
"""Moves that are issued and not over of which a snapshot takes as long as an instant."""

WORK_OF_A_JUDGEMENT = 10
"""What a judgement takes beside its instants, in instants."""

_Pair = tuple[int, SimulatedMoves | None, SimulatedMoves | None]
"""A tensor, its moves as they are and as they are to be."""


@dataclass(frozen=True, slots=True)
class _Passed:
    """Snapshots of the known run that another one passes over: some tensors in other ``states``, so many bytes more held, later."""

    first: int
    last: int
    states: Mapping[int, int]
    held: Sequence[int]
    late: int


@dataclass(slots=True)
class _Judged:
    """What came of changes: ``trail`` is their run until it ``meets`` the known one at a snapshot, ``late`` by so much from there on."""

    changes: Changes
    pairs: Sequence[_Pair]
    cost: SimulatedCost
    trail: Sequence[RunSnapshot | _Passed]
    meets: int
    late: int


class PlanSimulator:
    """Judges choices for a problem within ``budget_bytes``. ``choices`` are the present ones, whose run is kept, and ``cost`` is theirs.

    ``work`` counts what all judgements took, in instants simulated. ``stride`` is how many ops lie between two snapshots.
    """

    def __init__(self, problem: Problem, budget_bytes: int, stride: int | None = None) -> None:
        self.problem = problem
        self.budget_bytes = budget_bytes
        self._compiler = MoveCompiler(problem)
        self._step = StepModel(problem, budget_bytes, self._compiler.tiers)
        count, tensors = len(problem.graph.ops), max(1, len(problem.graph.tensors))
        most = max(20, min(_MOST_SNAPSHOTS, _MOST_STATES // tensors))
        self._stride = stride or max(_LEAST_STRIDE, min(16, count // _SNAPSHOTS), -(-count // most))
        self._remaining = [
            list(accumulate([problem.durations[i] for i in reversed(queue)], initial=0))[::-1] for queue in self._step.queues
        ]
        self.choices: dict[int, TensorChoice] = {}
        self.cost: SimulatedCost = (count + 1, 0, 0)
        self._moving: dict[int, SimulatedMoves] = {}
        self._touches: dict[int, list[Touch]] = {}
        self._after: dict[int, list[PlacedMove]] = {}
        self._snapshots: list[RunSnapshot] = []
        self._end = 0
        self._last: _Judged | None = None
        self.work = 0

    @property
    def tiers(self) -> Sequence[str]:
        """The tiers below that a channel joins to the device tier each way: where tensors may be, in the order of the problem's."""
        return [tier.name for tier in self.problem.below if tier.name in self._compiler.direct]

    def covers(self, choices: Choices) -> bool:
        """Whether the engine says the same: not where tensors take several channels, or devices do not all do the same."""
        used = {tier for choice in choices.values() for tier in (choice.below, *choice.tiers.values())} | set(
            self.problem.starts_below.values()
        )
        return self._step.alike and used <= self._compiler.direct

    # -- the best choices ------------------------------------------------------------------------------------------

    def begin(self, choices: Choices) -> SimulatedCost:
        """Simulate choices from the start, and keep them as the best."""
        self.choices = dict(choices)
        self._moving, self._touches, self._after = {}, {}, {}
        for t in sorted({*choices, *self.problem.starts_below}):
            moves = self._compiler.moves(t, choices.get(t))
            if moves is not None:
                self._enter(t, moves)
        state = self._step.begin(self._moving)
        self._snapshots = [snapshot(state, 0)]
        moved = sum([moves.moved_bytes for moves in self._moving.values()])
        self.cost, self._end = (self._step.count + 1, 0, moved), 0
        self._last = None
        if not state.failed:
            run = self._run(0, (), set(), None)
            run.cost = run.cost[0], run.cost[1], moved
            self._adopt(run)
        return self.cost

    def __call__(self, choices: Choices) -> SimulatedCost:
        """The cost of any choices, judged as a change of the best ones."""
        names = {*self.choices, *choices}
        return self.judge({t: choices.get(t) for t in names if choices.get(t) != self.choices.get(t)})

    def judge(self, changes: Changes, limit_ns: int | None = None) -> SimulatedCost:
        """The cost of the best choices with these changes.

        One that is no less than ``limit_ns`` may be found less than it is, but not below the limit; one that is very late on the way is
        given up on large graphs, whatever it would come to.
        """
        self._last = self._judged(changes, limit_ns)
        self.work += WORK_OF_A_JUDGEMENT
        return self._last.cost

    def accept(self, changes: Changes) -> SimulatedCost:
        """Take changes over into the present choices."""
        judged = self._last
        if judged is None or judged.changes is not changes or not (judged.trail or judged.pairs == []):
            judged = self._judged(changes, None)
        self._last = None
        if judged.pairs and not judged.trail:  # it does not fit at time 0
            return self.begin({t: choice for t, choice in {**self.choices, **changes}.items() if choice is not None})
        self._adopt(judged)
        for t, choice in changes.items():
            if choice is None:
                self.choices.pop(t, None)
            else:
                self.choices[t] = choice
        return self.cost

    def stalls(self) -> list[tuple[int, int, int]]:
        """The waits of ops in the best run: (op, nanoseconds, the tensor it waited for; below 0: room, or other ops).

        What the step waits for after its last op is a wait of the op after it, for the tensor that moves last.
        """
        return [stall for kept in self._snapshots for stall in kept.stalls]

    def fullest(self, after: int, before: int) -> int:
        """The op around which the device tier holds the most in the best run, between two ops."""
        kept = self._snapshots
        first = max(0, bisect_right(kept, after, key=lambda snapshot: snapshot.total) - 1)
        last = max(first + 1, bisect_right(kept, before, key=lambda snapshot: snapshot.total))
        most = max(kept[first:last], key=lambda snapshot: snapshot.peaks[0] if snapshot.peaks else 0)
        return min(max(after + 1, most.total, 0), self._step.count - 1)

    def _enter(self, t: int, moves: SimulatedMoves) -> None:
        self._moving[t] = moves
        for placement in moves.placed:
            self._after[placement[0]] = sorted([*self._after.get(placement[0], ()), placement])
        for i, touch in moves.touches.items():
            self._touches[i] = [*self._touches.get(i, ()), touch]

    def _leave(self, t: int) -> None:
        moves = self._moving.pop(t, None)
        if moves is None:
            return
        for after in {placement[0] for placement in moves.placed}:
            left = [placement for placement in self._after[after] if placement[3] != t]
            if left:
                self._after[after] = left
            else:
                del self._after[after]
        for i in moves.touches:
            others = [touch for touch in self._touches[i] if touch[0] != t]
            if others:
                self._touches[i] = others
            else:
                del self._touches[i]

    # -- changes ---------------------------------------------------------------------------------------------------

    def _judged(self, changes: Changes, limit_ns: int | None) -> _Judged:
        pairs: list[_Pair] = []
        moved = self.cost[2]
        for t, choice in changes.items():
            old, new = self._moving.get(t), self._compiler.moves(t, choice)
            if old is not new and old != new:
                pairs.append((t, old, new))
                moved += (new.moved_bytes if new else 0) - (old.moved_bytes if old else 0)
        if not pairs:
            return _Judged(changes, pairs, self.cost, [], len(self._snapshots), 0)
        for t, _, new in pairs:
            self._leave(t)
            if new is not None:
                self._enter(t, new)
        try:
            first, hot = self._extent(pairs)
            run = self._run(first, pairs, hot, limit_ns)
            run.changes, run.pairs, run.cost = changes, pairs, (run.cost[0], run.cost[1], moved)
            return run
        finally:
            for t, old, _ in pairs:
                self._leave(t)
                if old is not None:
                    self._enter(t, old)

    def _extent(self, pairs: Sequence[_Pair]) -> tuple[int, set[int]]:
        """The snapshot before which nothing changes, and the snapshots after which something does before the next one."""
        hot: set[int] = set()
        several = len(self._step.queues) > 1
        for _, old, new in pairs:
            before, now = (old.placed if old else ()), (new.placed if new else ())
            if (old.state if old else 0) != (new.state if new else 0):
                hot.add(0)
            for placement in set(before) ^ set(now):
                hot.add(self._segment(placement[0]))
            if several:
                earlier, later = (old.touches if old else {}), (new.touches if new else {})
                for i in {*earlier, *later}:
                    if earlier.get(i) != later.get(i):
                        hot |= self._awaiting(i)
        return min(hot, default=0), hot

    def _segment(self, i: int) -> int:
        """The last snapshot at which op ``i`` has not ended."""
        if i == AT_START:
            return 0
        step = self._step
        if len(step.queues) == 1:
            return max(0, bisect_right(self._snapshots, i, key=lambda kept: kept.total) - 1)
        s, place = step.stream_of[i], step.place[i]
        return max(0, bisect_right(self._snapshots, place, key=lambda kept: kept.done[s]) - 1)

    def _awaiting(self, i: int) -> set[int]:
        """The snapshots after which op ``i`` may wait or run before the next one."""
        step = self._step
        place = step.place[i]
        begins = self._segment(step.queues[step.stream_of[i]][place - 1]) if place else 0
        return set(range(begins, self._segment(i) + 1))

    # -- runs ------------------------------------------------------------------------------------------------------

    def _run(self, first: int, pairs: Sequence[_Pair], hot: set[int], limit_ns: int | None) -> _Judged:
        """Run from a snapshot on until the known run goes on alike."""
        step, known, weights = self._step, self._snapshots, self._step.weights
        origin: RunSnapshot | None = known[first] if first else self._begun(known[0], pairs)
        trail: list[RunSnapshot | _Passed] = []
        if origin is None:
            return _Judged({}, (), (step.count + 1, 0, 0), trail, len(known), 0)
        state = restored(origin, len(step.engines))
        base, last_hot, m = origin.time, max(hot, default=first), first
        trail.append(with_time(origin, base))
        fresh = not first
        busy: dict[int, set[int]] = {}
        judged = limit_ns is not None and not self.cost[0]
        limit = limit_ns or 0
        while True:
            while m + 1 < len(known) and known[m + 1].total <= state.total:
                m += 1
            target = known[m + 1].total if m + 1 < len(known) else state.total + self._stride
            reached = run(step, state, target, self._touches, self._after, self._moving, fresh)
            fresh = False
            self.work += state.instants + len(state.pending) // _PENDING_TO_AN_INSTANT
            state.instants = 0
            if state.failed:
                return _Judged({}, (), (step.count + 1, 0, 0), [], len(known), 0)
            ahead = trail[-1]
            assert isinstance(ahead, RunSnapshot)
            ahead.peaks, ahead.tight, ahead.stalls = tuple(state.peaks), tuple(state.tight), state.stalls
            if not reached:
                ended = state.total == step.count and not any(state.queues)
                left = 0 if ended else step.count - state.total + 1
                return _Judged({}, (), (left, base + state.last, 0), trail, len(known), 0)
            present = snapshot(state, base + state.now)
            state.peaks[:], state.stalls = state.held, []
            state.tight[:] = [False] * len(state.tight)
            if judged and self._soonest(state) + base >= limit:
                return _Judged({}, (), (0, self._soonest(state) + base, 0), [], len(known), 0)
            while m + 1 < len(known) and known[m + 1].total < state.total:
                m += 1
            if m + 1 >= len(known) or known[m + 1].total != state.total:
                trail.append(present)
                continue
            m += 1
            known_here = known[m]
            late = present.time - known_here.time
            too_late = judged and m > last_hot and self._end + late >= limit
            if judged and step.count > _LARGE and self._end + late >= limit + self._end // _HOPELESS:
                return _Judged({}, (), (0, self._end + late, 0), [], len(known), 0)
            alike = goes_on_alike(present, known_here)
            differ = {t: state.states[t] for t, _, _ in pairs if state.states[t] != known_here.states[t]} if alike else {}
            if (
                not alike
                or present.mark - known_here.mark != sum([(code - known_here.states[t]) * weights[t] for t, code in differ.items()])
                or any([t in state.pending for t in differ])
            ):
                if too_late and m > last_hot + _PATIENCE:
                    return _Judged({}, (), (0, self._end + late, 0), [], len(known), 0)
                trail.append(present)
                continue
            if too_late:
                return _Judged({}, (), (0, self._end + late, 0), [], len(known), 0)
            if not differ and m > last_hot:
                return _Judged({}, (), (self.cost[0], self._end + late, 0), trail, m, late)
            held = [h - k for h, k in zip(present.held, known_here.held, strict=True)]
            for t in differ:
                if t not in busy:
                    busy[t] = self._busy(t, pairs)
            passed = m
            while passed < len(known) and passed not in hot and not any([passed in busy[t] for t in differ]):
                if not self._inert(known[passed], held):
                    break
                passed += 1
            if passed > m:
                trail.append(_Passed(m, passed, differ, held, late))
            if passed == len(known):
                return _Judged({}, (), (self.cost[0], self._end + late, 0), trail, len(known), 0)
            if passed > m:
                m = passed
                present = self._patched(known[m], differ, held, late)
                base = present.time
                state = restored(present, len(step.engines))
            trail.append(present)

    def _adopt(self, judged: _Judged) -> None:
        """Make a judged run the best one."""
        for t, _, new in judged.pairs:
            self._leave(t)
            if new is not None:
                self._enter(t, new)
        known = self._snapshots
        tail = known[judged.meets :]
        if judged.trail:
            made: list[RunSnapshot] = known[: bisect_right(known, judged.trail[0].total, key=lambda kept: kept.total) - 1]  # type: ignore[union-attr]
            for item in judged.trail:
                if isinstance(item, RunSnapshot):
                    made.append(item)
                    continue
                for m in range(item.first, item.last):
                    between = self._patched(known[m], item.states, item.held, item.late)
                    between.peaks = tuple([p + h for p, h in zip(known[m].peaks, item.held, strict=True)])
                    between.tight, between.stalls = known[m].tight, known[m].stalls
                    made.append(between)
            for kept in tail:
                kept.time += judged.late
            self._snapshots = made + tail
        self.cost = judged.cost
        self._end = judged.cost[1]

    def _begun(self, origin: RunSnapshot, pairs: Sequence[_Pair]) -> RunSnapshot | None:
        """Time 0 with changed tensors where they now start; None if something does not fit."""
        step = self._step
        changed = [(t, old.state if old else 0, new.state if new else 0) for t, old, new in pairs]
        changed = [(t, a, b) for t, a, b in changed if a != b]
        if step.pinning and changed:
            state = step.begin(self._moving)
            return None if state.failed else snapshot(state, 0)
        held, states, mark = list(origin.held), origin.states[:], origin.mark
        for t, before, now in changed:
            for code, sign in ((before, -1), (now, 1)):
                if code & 3 != GONE:
                    held[0] += sign * step.sizes[t]
                for k in range(1, len(held)):
                    if code >> 2 * k & 3:
                        held[k] += sign * step.sizes[t]
            states[t] = now
            mark += (now - before) * step.weights[t]
        if any([h > min(c, p) for h, c, p in zip(held, step.capacities, step.parts, strict=True)]):
            return None
        return replace(origin, held=tuple(held), states=states, mark=mark)

    def _patched(self, kept: RunSnapshot, states: Mapping[int, int], held: Sequence[int], late: int) -> RunSnapshot:
        """A known snapshot with some tensors where they are in another run, which is ``late`` by so much."""
        patched, weights = with_time(kept, kept.time + late), self._step.weights
        patched.states = kept.states[:]
        for t, code in states.items():
            patched.mark += (code - kept.states[t]) * weights[t]
            patched.states[t] = code
        patched.held = tuple([h + k for h, k in zip(held, kept.held, strict=True)])
        return patched

    def _inert(self, kept: RunSnapshot, held: Sequence[int]) -> bool:
        """Whether it makes no difference that tiers hold so many bytes more from a snapshot to the next one."""
        step = self._step
        for k, more in enumerate(held):
            if more and (kept.tight[k] or kept.peaks[k] + more > min(step.capacities[k], step.parts[k]) or step.pinning):
                return False
        return True

    def _busy(self, t: int, pairs: Sequence[_Pair]) -> set[int]:
        """The snapshots after which a tensor is used or moved before the next one."""
        found: set[int] = set()
        for i in self.problem.graph.users[t]:
            found |= self._awaiting(i)
        for u, old, new in pairs:
            if u == t:
                for moves in (old, new):
                    found |= {self._segment(p[0]) for p in (moves.placed if moves else ())}
        return found

    def _soonest(self, state: RunState) -> int:
        """The least instant at which all ops can have ended."""
        soonest = state.now
        for s, left in enumerate(self._remaining):
            n, running = state.done[s], state.running[s] >= 0
            begin = state.op_end[s] if running and state.op_end[s] < NEVER else state.now
            soonest = max(soonest, begin + left[min(n + running, len(left) - 1)])
        return soonest
