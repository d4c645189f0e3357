"""Solves the linear program behind the lower bound: adds the rows that a solution breaks, and
decides a few shares one way or the other.

Of the rows that say how much time lies between two points, few bind; and of the sets of tensors
that cannot all be present, few matter. So they are added when a solution breaks them. Each bound on
the way is a true one, so that the search may end at any time; it ends after a number of solutions
that depends on the size of the program, never by a clock.
"""

from collections import defaultdict
from collections.abc import Mapping
from heapq import heappop, heappush
from typing import Any

from hosim.analysis.lower_bounds.linear_program import SolverStopped, Term
from hosim.analysis.lower_bounds.passages import PassageLimit
from hosim.analysis.lower_bounds.traffic_program import Crossing, TrafficProgram, bits_of

_ROUNDS, _GAIN = 12, 2e-4
"""Solutions of the whole program at most, and the share by which one has to raise the bound to
count as a gain.
"""

_IDLE_ROUNDS, _LARGE = 2, 40_000
"""So many solutions without gain may follow one another, and none where the rows of the program
have more coefficients than this.
"""

_BRANCHES, _BRANCH_WORK, _BRANCH_ROUNDS = 32, 80_000, 2
"""Solutions with shares decided: so many at most, fewer of larger programs, each with so many
rounds of rows.
"""

_ROWS, _SMALL, _MORE_ROWS = 40, 10_000, 200
"""Rows that are added at once, those that are broken most; and where the rows of the program have
more coefficients than the second.
"""

_SLIGHT = 1e-6
"""The tolerance beyond which a constraint is broken, or a variable is neither 0 nor 1."""


class BoundSearch:
    """One program's rows and solutions."""

    def __init__(self, program: TrafficProgram) -> None:
        import numpy as np

        self._np = np
        self._of = program
        count = self._count = program.count
        self._columns = [c.variable for c in program.crossings]
        self._since = np.array(
            [[c.since >> k & 1 for k in range(count + 1)] for c in program.crossings], dtype=float
        ).reshape(-1, count + 1)
        self._until = np.array(
            [[c.until >> k & 1 for k in range(count + 1)] for c in program.crossings], dtype=float
        ).reshape(-1, count + 1)
        self._follows = np.zeros((count + 1, count + 1), dtype=bool)
        self._follows[0, :] = self._follows[:, count] = True
        for j, i in enumerate(program.points.ops):
            for k in bits_of(program.points.before[i]):
                self._follows[k + 1, j] = True
        self._ends = np.array([0.0, *(d / program.unit for d in program.times.duration)])
        self._limits: list[tuple[Any, Any, int]] = []
        for limit in program.passages.limits:
            weight = np.array([self._time(limit, crossing) for crossing in program.crossings])
            self._limits.append((weight, np.where(self._follows, 0.0, -np.inf), limit.sharers))
        self._limits += self._slowed()
        self._done: set[tuple[int, int, int]] = set()
        self._enough = float("inf")
        self._alone = all(limit.sharers == 1 for limit in program.passages.limits)

    def bound_ns(self, enough: int | None = None, *, branched: bool = True) -> float:
        """Nanoseconds that no plan beats; 0 if the solver finds nothing out. The search ends at
        ``enough``, if it gets there.

        Shares are decided one way or the other if it is ``branched``.
        """
        if enough is not None:
            self._enough = enough / self._of.unit
        try:
            root = self._refined({}, _ROUNDS)
        except SolverStopped:
            return 0.0
        if root is None:
            return 0.0
        return min(self._branched(root) if branched else root[0], self._of.horizon) * self._of.unit

    def _refined(self, fixed: Mapping[int, float], rounds: int) -> tuple[float, Any] | None:
        """A bound with some shares decided, and the last solution; ``None`` if no plan decides them
        so.
        """
        best, idle, x = 0.0, 0, None
        for _ in range(rounds):
            found = self._of.program.floor(self._of.end_of_step, fixed)
            if found is None:
                return None
            floor, x = found
            idle = 0 if floor > best * (1 + _GAIN) else idle + 1
            best = max(best, floor)
            last = best >= self._enough or idle > (
                _IDLE_ROUNDS if self._of.program.entries <= _LARGE else 0
            )
            if last or not self._add_rows(x) + self._add_covers(x):
                break
        return best, x

    def _branched(self, root: tuple[float, Any]) -> float:
        """The least bound over all ways to decide a few shares; of several devices only their mean
        has a share, which may be any.
        """
        budget = min(_BRANCHES, _BRANCH_WORK // self._of.program.entries) if self._alone else 0
        leaves: list[tuple[float, int, dict[int, float], Any]] = [(root[0], 0, {}, root[1])]
        count = 0
        while leaves and count < budget and leaves[0][0] < self._enough:
            floor, number, fixed, x = heappop(leaves)
            variable, _ = max(
                self._of.choices, key=lambda c: min(x[c[0]], 1 - x[c[0]]) * c[1], default=(-1, 0.0)
            )
            if variable < 0 or min(x[variable], 1 - x[variable]) < _SLIGHT:
                return floor
            for value in (0.0, 1.0):
                count += 1
                child = {**fixed, variable: value}
                try:
                    found = self._refined(child, _BRANCH_ROUNDS)
                except SolverStopped:
                    heappush(leaves, (floor, number, fixed, x))
                    return leaves[0][0]
                if found is not None:
                    heappush(leaves, (max(floor, found[0]), count, child, found[1]))
        return leaves[0][0] if leaves else root[0]

    # -- rows
    # ----------------------------------------------------------------------------------------------

    def _time(self, limit: PassageLimit, crossing: Crossing) -> float:
        """Return the time that the whole group of a crossing takes of a limit, in units of the
        program.
        """
        if crossing.channel not in limit.channels:
            return 0.0
        if limit.engines:
            return crossing.group.time[crossing.channel] / limit.engines / self._of.unit
        moved = limit.sharers * crossing.group.size * 1e9
        return moved / limit.bandwidth_bytes_per_s / self._of.unit

    def _slowed(self) -> list[tuple[Any, Any, int]]:
        """By stream: what its ops take between two points if copies there leave them too little of
        the device tier's bandwidth.
        """
        np, times, count = self._np, self._of.times, self._count
        if times.spare is None:
            return []
        per_byte = 1e9 / self._of.passages.hardware.device.bandwidth_bytes_per_s
        weight = np.array([c.group.size * per_byte / self._of.unit for c in self._of.crossings])
        found = []
        for stream, in_all in times.in_all.items():
            least = np.full((count + 1, count + 1), -np.inf)
            ours = [k for k in range(count) if times.stream[k] == stream]
            before = {k: times.passed[k] - times.spare[k][0] * per_byte for k in ours}
            after = {k: before[k] + times.duration[k] - times.spare[k][1] * per_byte for k in ours}
            whole = in_all - times.spare_in_all[stream] * per_byte
            least[0, count] = whole
            for k in ours:
                least[0, k], least[k + 1, count] = before[k], whole - after[k]
                for j in ours:
                    if j > k:
                        least[k + 1, j] = before[j] - after[k]
            found.append((weight, least / self._of.unit, 1))
        return found

    def _add_rows(self, x: Any) -> int:
        """Between the end of one point and the begin of another lies time for all that crosses
        between them; adds the broken rows.

        What several devices share says so only of time from the start or to the end of the step, as
        the devices may be apart in between.
        """
        np, of = self._np, self._of
        begin = np.array([*(x[b] for b in of.begin), x[of.end_of_step]])
        end = np.array([0.0, *(x[b] for b in of.begin)]) + self._ends
        found: list[tuple[float, int, int, int]] = []
        for number, (weight, least, sharers) in enumerate(self._limits):
            if not weight.any():
                continue
            load = (self._since * (weight * x[self._columns])[:, None]).T @ self._until + least
            room = begin[None, :] - end[:, None]
            if sharers > 1:
                room = self._room_of_all(x[of.end_of_step])
            found += [
                (float(load[i, j] - room[i, j]), number, int(i), int(j))
                for i, j in np.argwhere(load > room + _SLIGHT)
                if (number, i, j) not in self._done
            ]
        for _, number, i, j in sorted(found, reverse=True)[
            : _ROWS if self._of.program.entries <= _SMALL else _MORE_ROWS
        ]:
            self._done.add((number, i, j))
            self._add_row(*self._limits[number], i, j)
        return len(found)

    def _add_row(self, weight: Any, least: Any, sharers: int, i: int, j: int) -> None:
        """Add the row: what crosses between point ``i - 1`` and point ``j`` takes no longer than
        lies between them, or of several devices in all.
        """
        of = self._of
        sums: dict[int, float] = defaultdict(float)
        for r in self._np.nonzero((self._since[:, i] > 0) & (self._until[:, j] > 0) & (weight > 0))[
            0
        ]:
            sums[self._columns[r]] -= weight[r]
        terms: list[Term] = [
            *sums.items(),
            (of.begin[j] if j < self._count and sharers == 1 else of.end_of_step, 1.0),
        ]
        if sharers > 1:
            of.program.at_least(terms, -self._room_of_all(0.0)[i, j])
            return
        if i:
            terms.append((of.begin[i - 1], -1.0))
        of.program.at_least(terms, self._ends[i] + least[i, j])

    def _room_of_all(self, makespan: float) -> Any:
        """Of what devices share: the time between two points of which one is the start or the end
        of the step, in a given makespan.
        """
        np, of, count = self._np, self._of, self._count
        room = np.full((count + 1, count + 1), np.inf)
        room[0, count] = makespan
        for k, (earliest, duration, tail) in enumerate(
            zip(of.times.earliest, of.times.duration, of.times.tail, strict=True)
        ):
            room[0, k] = makespan - tail / of.unit
            room[k + 1, count] = makespan - (earliest + duration) / of.unit
        return room

    def _add_covers(self, x: Any) -> int:
        """Rows that whole tensors satisfy and shares of them need not: without those of a set, the
        rest cover what is left.
        """
        added = 0
        for items, least in self._of.covers:
            out: set[int] = set()
            left = least
            for variable, size, single in sorted(items, key=lambda item: -x[item[0]]):
                if x[variable] < _SLIGHT:
                    break
                if left <= size or not single:
                    continue
                out.add(variable)
                left -= size
                rest = [(v, (min(s, left) if a else s) / left) for v, s, a in items if v not in out]
                if sum(c * x[v] for v, c in rest) < 1 - 1e-4:
                    self._of.program.at_least(rest, 1.0)
                    added += 1
        return added
