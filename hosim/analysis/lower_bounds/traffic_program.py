"""The linear program behind the lower bound: what must cross the channels between some points of a
graph, under any plan.

docs/lower-bound.md derives it. A variable between 0 and 1 says what share of a group of tensors of
one life is absent from the device tier at a point, crosses a channel in a gap, or starts where;
each plan gives the variables values that satisfy every row, and its makespan is the value of the
objective, so that the least value is a lower bound on them all.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hosim.analysis.lower_bounds.linear_program import LinearProgram, Term
from hosim.analysis.lower_bounds.passages import Passages
from hosim.analysis.pressure_points import Points
from hosim.analysis.tensor_lives import Life, LifeGap

_SCALE = 1000.0
"""Units of time of the program in the longest chain of ops and the time of all transfers, one after
the other.
"""

Item = tuple[int, float, bool]
"""A share that is absent, the bytes of its group, and whether the group is a single tensor."""


@dataclass(frozen=True, slots=True)
class Group:
    """Tensors of one life: their bytes, and by channel the time that they occupy it together."""

    life: Life
    size: float
    alone: bool
    time: Mapping[str, float]


@dataclass(slots=True)
class Crossing:
    """A share of a group crosses ``channel`` after the end of each of the points ``since`` and
    before the begin of each of ``until``.

    Bit 0 of ``since`` is time 0 and its bit k + 1 point k; bit K of ``until``, of K points, is the
    end of the step.
    """

    variable: int
    channel: str
    since: int
    until: int
    group: Group


@dataclass(frozen=True, slots=True)
class Times:
    """By point, nanoseconds: its duration, its earliest start, and what must pass from its start to
    the end.

    ``longest`` is the longest chain of ops. ``passed`` are nanoseconds of the ops of the point's
    stream before it, ``in_all`` those of all of them by stream. ``spare``, where copies may slow
    ops down, has the bytes that copies can move during these ops, and during the point, without
    doing so.
    """

    duration: Sequence[int]
    earliest: Sequence[int]
    tail: Sequence[int]
    between: Sequence[tuple[int, int, int]]
    """(point, later point, nanoseconds between the starts of the two at least)."""
    longest: int
    stream: Sequence[str]
    passed: Sequence[int]
    in_all: Mapping[str, int]
    spare: Sequence[tuple[float, float]] | None
    spare_in_all: Mapping[str, float]


class TrafficProgram:
    """The program of one graph, machine and capacity, less what
    :mod:`hosim.analysis.lower_bounds.bound_search` adds while it solves it.

    ``begin`` has the points' starts and ``end_of_step`` the makespan, in ``unit`` nanoseconds.
    ``covers`` are the items that are absent together have so many bytes at least; ``choices`` the
    shares that are 0 or 1 in a plan of one device, with their bytes.
    """

    def __init__(
        self,
        points: Points,
        groups: Sequence[Group],
        used: Sequence[int],
        capacity: int,
        passages: Passages,
        times: Times,
    ) -> None:
        self.points = points
        self.count = len(points.ops)
        self.passages = passages
        self.times = times
        self.capacity = float(capacity)
        moving = sum(
            max(group.time.values()) * (2 * len(group.life.gaps) + len(group.life.versions))
            for group in groups
        )
        self.unit = max(1.0, times.longest + moving) / _SCALE
        self.program = LinearProgram()
        self.crossings: list[Crossing] = []
        self.choices: list[tuple[int, float]] = []
        self.excess = [float(u - capacity) for u in used]
        for group in groups:
            for gap in group.life.gaps:
                for k in bits_of(gap.inside):
                    self.excess[k] += group.size
        self.tight = sum(1 << k for k, e in enumerate(self.excess) if e > 0)
        self.covers: list[tuple[list[Item], float]] = []
        self._clock()
        self.at_begin: defaultdict[int, list[Item]] = defaultdict(list)
        self.at_end: defaultdict[int, list[Item]] = defaultdict(list)
        below: list[Item] = []
        for group in groups:
            self._group(group, below)
        for k in bits_of(self.tight):
            self._cover(self.at_begin[k], self.excess[k])
            self._cover(self.at_end[k], self.excess[k])
        self._cover(below, sum(size for _, size, _ in below) - self.capacity)

    # -- time
    # ----------------------------------------------------------------------------------------------

    def _clock(self) -> None:
        program, times, unit = self.program, self.times, self.unit
        self.horizon = 4.0 * _SCALE
        self.begin = [program.variable(early / unit, self.horizon) for early in times.earliest]
        self.end_of_step = program.variable(times.longest / unit, self.horizon)
        for k, tail in enumerate(times.tail):
            program.at_least([(self.end_of_step, 1.0), (self.begin[k], -1.0)], tail / unit)
        for k, later, least in times.between:
            program.at_least([(self.begin[later], 1.0), (self.begin[k], -1.0)], least / unit)

    # -- tensors
    # ----------------------------------------------------------------------------------------------

    def _group(self, group: Group, below: list[Item]) -> None:
        program, life, passages = self.program, group.life, self.passages
        there: int | None = None
        copies: dict[str, int] = {}
        if life.starts:
            fixed = life.tiers
            there = program.variable(
                float(passages.device in fixed), float(not fixed or passages.device in fixed)
            )
            for tier in passages.lower:
                copies[tier] = program.variable(
                    float(tier in fixed), float(not fixed or tier in fixed)
                )
            if not fixed and group.alone:
                self.choices.append((there, group.size))
            if life.first_read:
                program.at_least([(there, 1.0), *((copy, 1.0) for copy in copies.values())], 1.0)
            absent = program.variable()
            program.at_least([(absent, -1.0), (there, -1.0)], -1.0)  # not more than 1 - there
            below.append((absent, group.size, group.alone))
        stored = self._stores(group, copies)
        absences: defaultdict[
            int, list[tuple[LifeGap, dict[int, int], dict[int, int], list[int]]]
        ] = defaultdict(list)
        for gap in life.gaps:
            inside = gap.inside & self.tight
            head = (
                gap.version == 0
                and not gap.by_begin
                and life.starts
                and gap is life.gaps[0]
                and life.first_read
            )
            tail = not gap.reads
            if not inside and not head:
                continue
            begins = {k: program.variable() for k in bits_of(inside)}
            ends = {k: program.variable() for k in bits_of(inside)}
            for k in bits_of(inside):
                self.at_begin[k].append((begins[k], group.size, group.alone))
                self.at_end[k].append((ends[k], group.size, group.alone))
            fetched = self._fetches(
                group,
                gap,
                begins,
                ends,
                there if head or (tail and life.restored) else None,
                head,
                copies,
                stored,
            )
            valid = [(s, 1.0) for s in stored.get(gap.version, {}).values()]
            if gap.version == 0:
                valid += [(copy, 1.0) for copy in copies.values()]
            for k in bits_of(inside):
                program.at_least([*valid, (begins[k], -1.0)], 0.0)
                program.at_least([*valid, (ends[k], -1.0)], 0.0)
            absences[gap.version].append((gap, begins, ends, fetched))
        for version, gaps in absences.items():
            self._stored_by(group, version, gaps, stored.get(version, {}), copies)

    def _stores(self, group: Group, copies: Mapping[str, int]) -> dict[int, dict[str, int]]:
        """By version and channel, the share that is copied out over it at all."""
        program, life = self.program, group.life
        stored: dict[int, dict[str, int]] = {}
        if life.starts and not life.last_version and not life.tiers:
            return {}  # nothing writes them, and they may start with copies in every tier below
        for version, span in life.versions:
            stored[version] = {}
            for channel in self.passages.out:
                variable = program.variable()
                stored[version][channel] = variable
                if group.alone:
                    self.choices.append((variable, group.size))
                self.crossings.append(
                    Crossing(
                        variable,
                        channel,
                        span.by_begin << 1 | 1,
                        span.by_end | 1 << self.count,
                        group,
                    )
                )
        if life.restored and life.last_version:
            for tier, copy in copies.items():
                ways = [
                    (stored[life.last_version][channel], 1.0)
                    for channel in self.passages.out
                    if tier in self.passages.reached_by(channel)
                ]
                program.at_least([*ways, (copy, -1.0)], 0.0)
        return stored

    def _fetches(
        self,
        group: Group,
        gap: LifeGap,
        begins: Mapping[int, int],
        ends: Mapping[int, int],
        there: int | None,
        head: bool,
        copies: Mapping[str, int],
        stored: Mapping[int, Mapping[str, int]],
    ) -> list[int]:
        """The share that comes in during a gap, by channel; and of what is absent when a point
        ends, after that.
        """
        program, passages = self.program, self.passages
        if not gap.reads and there is None:
            return []
        since, until = gap.by_begin << 1 | 1, gap.by_end | 1 << self.count
        come = {channel: program.variable() for channel in passages.into}
        if group.alone:
            self.choices += [(variable, group.size) for variable in come.values()]
        for channel, variable in come.items():
            self.crossings.append(Crossing(variable, channel, since, until, group))
            ways = [
                (copy, 1.0)
                for tier, copy in copies.items()
                if gap.version == 0 and tier in passages.reaching(channel)
            ]
            ways += [
                (s, 1.0)
                for out, s in stored.get(gap.version, {}).items()
                if passages.reached_by(out) & passages.reaching(channel)
            ]
            program.at_least([*ways, (variable, -1.0)], 0.0)
        if head and there is not None:
            self._first_fetches(come, there, copies)
        for k in begins:
            if gap.reads:
                program.at_least([*((v, 1.0) for v in come.values()), (begins[k], -1.0)], 0.0)
            late = []
            for channel, variable in come.items():
                if len(come) == 1 and gap.reads:
                    share = ends[k]
                else:
                    share = program.variable()
                    late.append((share, 1.0))
                program.at_least([(variable, 1.0), (share, -1.0)], 0.0)
                self.crossings.append(Crossing(share, channel, 1 << k + 1, until, group))
            if gap.reads and late:
                program.at_least([*late, (ends[k], -1.0)], 0.0)
                self._lasts(
                    group, zip(come, (share for share, _ in late), strict=True), k + 1, gap.ends_at
                )
            elif late and there is not None:  # absent, and to be there when the step ends
                program.at_least([*late, (ends[k], -1.0), (there, -1.0)], -1.0)
        return list(come.values()) if gap.reads else []

    def _first_fetches(
        self, come: Mapping[str, int], there: int, copies: Mapping[str, int]
    ) -> None:
        """A tensor that is first read and not there at time 0 comes from where copies are then."""
        program, first = self.program, []
        for channel, variable in come.items():
            share = program.variable()
            first.append((share, 1.0))
            program.at_least([(variable, 1.0), (share, -1.0)], 0.0)
            reaching = self.passages.reaching(channel)
            there_too = [(copy, 1.0) for t, copy in copies.items() if t in reaching]
            program.at_least([*there_too, (share, -1.0)], 0.0)
        program.at_least([*first, (there, 1.0)], 1.0)

    def _stored_by(
        self,
        group: Group,
        version: int,
        gaps: Sequence[tuple[LifeGap, dict[int, int], dict[int, int], list[int]]],
        stored: Mapping[str, int],
        copies: Mapping[str, int],
    ) -> None:
        """The tensors that have been copied out when a point begins: all that are absent then, or
        were absent before or have come back.
        """
        if not stored:
            return
        program = self.program
        span = dict(group.life.versions)[version]
        free = [(copy, 1.0) for copy in copies.values()] if version == 0 else []
        last: dict[int, dict[str, int]] = {}
        counted: dict[int, list[Crossing]] = {}
        for k in range(self.count):
            bit = 1 << k
            known = self.points.before[self.points.ops[k]]
            earlier = [p for p in last if known >> p & 1]
            earlier = [
                p
                for p in earlier
                if not any(self.points.before[self.points.ops[q]] >> p & 1 for q in earlier)
            ]
            if span.by_end & bit:
                continue
            implied: list[int] = []
            for gap, begins, ends, fetched in gaps:
                if k in begins:
                    implied.append(begins[k])
                implied += [ends[p] for p in earlier if p in ends]
                if gap.by_end & bit and not any(gap.by_end >> p & 1 for p in earlier):
                    implied += fetched
            if not implied and len(earlier) <= 1:
                for p in earlier:  # no more than at the last point
                    last[k], counted[k] = last[p], counted[p]
                    for crossing in counted[p]:
                        crossing.until |= bit
                continue
            shares = {channel: program.variable() for channel in stored}
            total = [(share, 1.0) for share in shares.values()]
            for variable in implied:
                program.at_least([*total, *free, (variable, -1.0)], 0.0)
            counted[k] = []
            for channel, share in shares.items():
                program.at_least([(stored[channel], 1.0), (share, -1.0)], 0.0)
                for p in earlier:
                    program.at_least([(share, 1.0), (last[p][channel], -1.0)], 0.0)
                crossing = Crossing(share, channel, span.by_begin << 1 | 1, bit, group)
                counted[k].append(crossing)
                self.crossings.append(crossing)
            last[k] = shares
            if len(shares) > 1 and (span.begins_at >= 0 or not version):
                self._lasts(group, shares.items(), span.begins_at + 1, k)

    def _lasts(
        self, group: Group, shares: Iterable[tuple[str, int]], since: int, until: int
    ) -> None:
        """One transfer of a tensor, over whichever channel, takes place between two points
        (``since`` as in a crossing).
        """
        if not group.alone or until < 0:
            return
        terms: list[Term] = [(self.begin[until] if until < self.count else self.end_of_step, 1.0)]
        if since:
            terms.append((self.begin[since - 1], -1.0))
        terms += [(share, -group.time[channel] / self.unit) for channel, share in shares]
        self.program.at_least(terms, self.times.duration[since - 1] / self.unit if since else 0.0)

    # -- memory
    # ----------------------------------------------------------------------------------------------

    def _cover(self, items: Sequence[tuple[int, float, bool]], least: float) -> None:
        """The items that are absent together have at least ``least`` bytes."""
        if least <= 0 or not items:
            return
        self.program.at_least(
            [(v, (min(size, least) if alone else size) / least) for v, size, alone in items], 1.0
        )
        self.covers.append((list(items), least))


def bits_of(points: int) -> Iterator[int]:
    """The points of a set, ascending."""
    while points:
        low = points & -points
        yield low.bit_length() - 1
        points ^= low
