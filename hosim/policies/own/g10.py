"""``g10``: gaps with the most relief per transfer time first, in reserved slots of bandwidth, after
G10.

Source: H. Zhang et al., G10: Enabling an efficient unified GPU memory and storage architecture with
smart tensor migrations, MICRO 2023, and its published simulator (github platformxlab/G10,
``scheduling_prefetch``). The rule as published: every op is a slot with so many bytes of bandwidth
in each direction and to each tier below. While some op is over the memory line, take the idle time
with the best relief, which is what it would free over the time for which the line is exceeded, if
it is longer than the transfer there and back. The tensor goes to the slowest tier (the SSD) unless
other transfers there delay its eviction, else to a faster one (the host). The eviction takes the
first free bandwidth after the last use, the prefetch the last before the next use; if these meet,
it stays. Then each prefetch is moved ahead, the first one first, as long as memory allows. In the
variants over direct storage, which have no page faults to fall back on, what is still over the line
makes idle times that cover it go regardless of bandwidth, the largest bytes times length first.

Our reading: relief is divided by the transfer time, as the paper has it; the line is the budget
(the simulator's is 99 % of the memory); weights that start in the device tier may be away until
their first use and after their last one, and come back for the end of the step (in the simulator
nothing makes them return); an eviction counts its bytes as free once its last slot is over. The
time of an op is its duration with everything resident. The last resort is taken only if the plan
runs out of memory without it.

``placement`` names another rule for the tier; whatever starts below because of the budget is in the
fastest tier with room otherwise.

Tensors start where they are at home, unless those at home in the device tier do not fit there at
the step's start or end: then all of them start below, and come up in reserved slots before their
first uses.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from hosim import engine
from hosim.analysis import Gap, tensor_gaps
from hosim.analysis.costmodel import machine_of_copies, op_durations
from hosim.analysis.costmodel.transfers import alone_ns
from hosim.cache_plan import AT_START, Plan
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.planner.schedule import (
    Absence,
    below_at_ends,
    between_uses,
    fits_from,
    held_bytes,
    insert,
)
from hosim.planner.schedule.tiers_below import (
    Placement,
    nearest_tiers,
    read_placement,
    space_below,
    starts,
)

Nanoseconds = np.ndarray[tuple[int], np.dtype[np.int64]]
"""Of each op."""

Positions = np.ndarray[tuple[int], np.dtype[np.int64]]
"""Of ops, for each idle time."""

Relief = np.ndarray[tuple[int], np.dtype[np.float64]]
"""Of each idle time."""

PUBLISHED = "g10"
"""The placement as published: the slowest tier where no other transfer delays the eviction."""


def plan(
    graph: Graph, hardware: Hardware, budget_bytes: int, *, placement: str = PUBLISHED
) -> Plan:
    """The plan. Each idle time taken costs what it spans in array steps, and each look at one O(log
    ops).
    """
    rule = None if placement == PUBLISHED else read_placement(placement, hardware)
    initial = starts(graph, hardware, budget_bytes, rule)
    planner = _G10(
        graph,
        hardware,
        budget_bytes,
        Plan(graph, initial=initial).residency(hardware.device_tier),
        rule,
    )
    planner.start_below()
    planner.evict()
    fits, held, absences = planner.fits(), planner.held.copy(), planner.absences.copy()
    planner.advance_prefetches()
    made = insert(graph, hardware, "g10", planner.absences, initial)
    if fits or engine.verdict(made, hardware, budget_bytes).feasible:
        return made
    planner.held, planner.absences = held, absences
    planner.evict_unreserved()
    planner.advance_prefetches()
    return insert(graph, hardware, "g10", planner.absences, initial)


class Slots:
    """Free nanoseconds of a channel during each op, by op position.

    A full slot is never looked at again (disjoint sets with path halving), so that a reservation
    costs what it fills.
    """

    def __init__(self, durations: Sequence[int]) -> None:
        self._free = [int(d) for d in durations]
        self._count = len(self._free)
        self._next = list(range(self._count + 1))  # the first slot from here on that is not full
        # the same backwards, shifted by one: 0 stands before the first slot
        self._previous = list(range(self._count + 1))
        for i, free in enumerate(self._free):
            if not free:
                self._close(i)

    def end_after(self, start: int, ns: int, reserve: bool = False) -> int:
        """The position behind the slot in which a transfer of ``ns`` ends that takes all free time
        from slot ``start`` on; with ``reserve`` it takes it.
        """
        i, free, following = start, self._free, self._next
        while ns > 0:
            while following[i] != i:
                following[i] = following[following[i]]
                i = following[i]
            if i >= self._count:
                return self._count
            ns -= self._reserved(i, ns) if reserve else free[i]
            i += 1
        return i

    def start_before(self, end: int, ns: int, reserve: bool = False) -> int:
        """The slot in which a transfer of ``ns`` must start that takes all free time before slot
        ``end``; -1 if there is not as much. With ``reserve`` it takes it.
        """
        i, free, previous = end, self._free, self._previous
        while ns > 0:
            while previous[i] != i:
                previous[i] = previous[previous[i]]
                i = previous[i]
            if i <= 0:
                return -1
            i -= 1
            ns -= self._reserved(i, ns) if reserve else free[i]
        return i

    def _reserved(self, i: int, ns: int) -> int:
        taken = min(ns, self._free[i])
        self._free[i] -= taken
        if not self._free[i]:
            self._close(i)
        return taken

    def _close(self, i: int) -> None:
        self._next[i] = i + 1
        self._previous[i + 1] = i


def by_relief(
    begins: Positions, ends: Positions, per_ns: Relief, over_ns: Nanoseconds
) -> Iterator[int]:
    """Idle times, the one with the most relief first, the first of equals, and none twice.

    Relief is ``per_ns`` for each nanosecond for which the line is exceeded between two positions of
    ops, of which ``over_ns`` has those of each op. Whoever takes an idle time clears ``over_ns`` of
    the ops that fit then, so that no relief rises: only the most is computed again.
    """
    relief = _relief(begins, ends, per_ns, over_ns)
    while len(relief) and relief[n := int(relief.argmax())] > 0:
        if over_ns[begins[n] : ends[n]].sum() * per_ns[n] < relief[n]:
            relief = np.where(relief > 0, _relief(begins, ends, per_ns, over_ns), 0)
        else:
            relief[n] = 0
            yield n


def _relief(begins: Positions, ends: Positions, per_ns: Relief, over_ns: Nanoseconds) -> Relief:
    before = np.concatenate(([0], np.cumsum(over_ns)))
    relief: Relief = (before[ends] - before[begins]) * per_ns
    return relief


class _WayBelow(NamedTuple):
    """Nanoseconds that a tensor's transfers to a tier below and back take alone."""

    tier: str
    down_ns: int
    up_ns: int

    @property
    def ns(self) -> int:
        """There and back."""
        return self.down_ns + self.up_ns


class _G10:
    """Memory and bandwidth by op, and the absences decided so far."""

    def __init__(
        self,
        graph: Graph,
        hardware: Hardware,
        line: int,
        residency: Mapping[int, tuple[str, ...]],
        rule: Placement | None,
    ) -> None:
        self.graph = graph
        self.hardware = hardware
        self.device = hardware.device_tier
        self.line = line
        self.residency = residency
        self.sizes = [tensor.size_bytes for tensor in graph.tensors]
        self.durations = np.array(op_durations(graph, hardware), dtype=np.int64)
        self.begins = np.concatenate(([0], np.cumsum(self.durations)))
        self._instants: list[int] = self.begins.tolist()
        self.held = held_bytes(graph, hardware.device_tier)
        self.tiers = nearest_tiers(machine_of_copies(graph, hardware))
        self.space = space_below(graph, hardware, residency, rule)
        self.rule = rule
        self.down = {b.name: Slots(self.durations.tolist()) for b in self.tiers}
        self.up = {b.name: Slots(self.durations.tolist()) for b in self.tiers}
        self.absences: list[Absence] = []
        self._gone: dict[Absence, int] = {}
        self._known: dict[int, dict[str, _WayBelow]] = {}

    # -- what starts below
    # -------------------------------------------------------------------------------------

    def start_below(self) -> None:
        """Fetch what starts below in the last free slots before its first use, and store it in the
        first ones after its last.
        """
        end = len(self.graph.ops)
        away = sorted(
            below_at_ends(self.graph, self.residency, self.device),
            key=lambda gap: (-gap.before, gap.tensor),
        )
        for gap in away:
            t, tier = gap.tensor, self.residency[gap.tensor][0]
            way = self._ways(t).get(tier)
            if gap.after == AT_START:
                start = (
                    self.up[tier].start_before(gap.before, way.up_ns, reserve=True) if way else 0
                )
                self._take(
                    Absence(t, AT_START, gap.before, AT_START, AT_START, max(start, 0) - 1, tier),
                    0,
                    max(start, 0),
                )
            else:
                written = bool(self.graph.writers[t])
                free = gap.after + 1
                if way and written:
                    free = self.down[tier].end_after(free, way.down_ns, reserve=True)
                self._take(Absence(t, gap.after, end, gap.after, gap.after, end, tier), free, end)

    # -- eviction
    # ----------------------------------------------------------------------------------------------

    def evict(self) -> None:
        """Take idle times until no op is over the line: the most bytes freed over time above it,
        per time of a round trip.
        """
        found = list(self._idle_times()) if self.tiers else []
        nearest = self.tiers[0].name if self.tiers else ""
        begins = np.array([gap.after + 1 for gap in found], dtype=np.int64)
        ends = np.array([gap.before for gap in found], dtype=np.int64)
        per_ns = np.array(
            [self.sizes[gap.tensor] / (self._ways(gap.tensor)[nearest].ns or 1) for gap in found]
        )
        over_ns = np.where(self.held > self.line, self.durations, 0)
        for n in by_relief(begins, ends, per_ns, over_ns):
            if self._place(found[n]):
                inside = slice(begins[n], ends[n])
                over_ns[inside][self.held[inside] <= self.line] = 0

    def fits(self) -> bool:
        """Return whether no op is over the line by the account so far."""
        return not (self.held > self.line).any()

    def evict_unreserved(self) -> None:
        """While an op is over the line that no slots could help: idle times that cover it, the
        largest bytes times length first.
        """
        taken = {(absence.tensor, absence.after) for absence in self.absences}
        found = [gap for gap in self._idle_times() if (gap.tensor, gap.after) not in taken]
        ends = np.array([(gap.after + 1, gap.before) for gap in found], dtype=np.int64).reshape(
            -1, 2
        )
        area = np.array([self.sizes[gap.tensor] for gap in found], dtype=np.int64) * (
            self.begins[ends[:, 1]] - self.begins[ends[:, 0]]
        )
        while found and not self.fits():
            peak = self.held.argmax()
            covering = np.where((ends[:, 0] <= peak) & (ends[:, 1] > peak), area, -1)
            best = int(covering.argmax())
            if covering[best] < 0:
                return
            area[best] = -1
            gap = found[best]
            tier = self.space.place(gap.tensor, gap.after)
            if tier is not None:
                absence = Absence(
                    gap.tensor, gap.after, gap.before, gap.after, gap.after, gap.before - 1, tier
                )
                self._take(absence, gap.after + 1, gap.before)

    def _idle_times(self) -> Iterator[Gap]:
        """Between two uses; and of persistent tensors of the device tier before the first and after
        the last.
        """
        end = len(self.graph.ops)
        yield from between_uses(self.graph, (t for t, size in enumerate(self.sizes) if size))
        for t, where in self.residency.items():
            if (
                self.device in where
                and self.sizes[t]
                and self.graph.users[t]
                and self.graph.tensors[t].persistent
            ):
                for gap in self.graph.derived(tensor_gaps)[t]:
                    if gap.before == end or (
                        gap.after == AT_START and gap.before > 0 and gap.returns
                    ):
                        yield gap

    def _place(self, gap: Gap) -> bool:
        """Evict over the idle time, to the tier that the rule prefers, or the slowest that is free,
        else to any; says if it could.
        """
        begin = gap.after + 1
        length = self._instants[gap.before] - self._instants[begin]
        ways = self._ways(gap.tensor)
        if self.rule is not None:
            return any(
                self._place_in(way, gap, self.down[way.tier].end_after(begin, way.down_ns))
                for way in map(ways.__getitem__, self.space.order(gap.tensor))
                if length > way.ns
            )
        delayed, fastest = [], next(reversed(ways), "")
        for way in ways.values():
            if length <= way.ns:
                continue
            gone = self.down[way.tier].end_after(begin, way.down_ns)
            gone_alone = bisect_left(self._instants, self._instants[begin] + way.down_ns)
            if way.tier != fastest and gone > gone_alone:
                delayed.append((way, gone))
            elif self._place_in(way, gap, gone):
                return True
        return any(self._place_in(way, gap, gone) for way, gone in delayed)

    def _place_in(self, way: _WayBelow, gap: Gap, gone: int) -> bool:
        """Evict that way if slots and room allow it, and say whether they do; ``gone`` is the position
        behind the op in which the eviction ends.
        """
        t = gap.tensor
        back = self.up[way.tier].start_before(gap.before, way.up_ns)
        if gone >= back or self.space.place(t, gap.after, [way.tier]) != way.tier:
            return False
        self.down[way.tier].end_after(gap.after + 1, way.down_ns, reserve=True)
        self.up[way.tier].start_before(gap.before, way.up_ns, reserve=True)
        self._take(
            Absence(t, gap.after, gap.before, gap.after, gap.after, back - 1, way.tier), gone, back
        )
        return True

    def _take(self, absence: Absence, gone: int, back: int) -> None:
        self.held[gone:back] -= self.sizes[absence.tensor]
        self.absences.append(absence)
        self._gone[absence] = gone

    # -- prefetching
    # -------------------------------------------------------------------------------------------

    def advance_prefetches(self) -> None:
        """Move each prefetch ahead, the first one first, as far as memory allows and the tensor is
        gone.
        """
        end = len(self.graph.ops)
        for n, absence in sorted(
            enumerate(self.absences), key=lambda entry: (entry[1].prefetch, entry[0])
        ):
            if absence.before == end:
                continue
            gone, back, size = self._gone[absence], absence.prefetch + 1, self.sizes[absence.tensor]
            ahead = fits_from(self.held, size, self.line, gone, back)
            if ahead < back:
                self.held[ahead:back] += size
                self.absences[n] = absence._replace(prefetch=ahead - 1)

    # -- times
    # ----------------------------------------------------------------------------------------------

    def _ways(self, t: int) -> dict[str, _WayBelow]:
        """The ways to the tiers below for a tensor, the slowest there and back first."""
        size = self.sizes[t]
        if size not in self._known:
            ways = [
                _WayBelow(b.name, *(alone_ns(self.hardware, c.name, size) for c in (b.down, b.up)))
                for b in self.tiers
            ]
            self._known[size] = {way.tier: way for way in sorted(ways, key=lambda way: -way.ns)}
        return self._known[size]
