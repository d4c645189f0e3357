"""A sweep that takes gaps, as hosim/planner/hyperoffload/selection.py says it, with lists and
dictionaries: no kernel, no heap, no columns, and each interval looked at.

It shares with the planner what is tested by itself: gaps, transfer times and the rates that fabrics
leave. Tiers are taken by what hides most, without a placement rule.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from hosim.analysis import Gap
from hosim.analysis.costmodel import machine_of_copies
from hosim.analysis.costmodel.transfers import alone_ns, channel_bandwidth
from hosim.cache_plan import AT_START
from hosim.planner.hyperoffload import Weights
from hosim.planner.hyperoffload.tensor_choices import Problem, left_rates, timelines
from hosim.planner.schedule.tiers_below import LowerTier

ONE = 2**62


@dataclass
class Busy:
    """The busy intervals of a channel; free ones below ``smallest`` are busy as well."""

    smallest: int
    spans: list[tuple[int, int]] = field(default_factory=list)

    def reserve(self, start: int, length: int) -> None:
        if not length:
            return
        merged: list[tuple[int, int]] = []
        for begin, end in sorted([*self.spans, (start, start + length)]):
            if merged and begin - merged[-1][1] < self.smallest:
                merged[-1] = merged[-1][0], end
            else:
                merged.append((begin, end))
        self.spans = merged

    def free(self, start: int, length: int) -> bool:
        """Nothing busy overlaps; what takes no time may not lie strictly inside either."""
        return all(end <= start or begin >= start + length for begin, end in self.spans)

    def earliest(self, release: int, length: int) -> int:
        starts = [release, *(end for _, end in self.spans if end > release)]
        return next(start for start in starts if self.free(start, length))

    def latest(self, deadline: int, length: int, release: int) -> int | None:
        starts = [
            deadline - length,
            *(begin - length for begin, _ in self.spans if begin < deadline),
        ]
        fitting = [start for start in starts if start >= release and self.free(start, length)]
        return max([start for start in fitting if start + length <= deadline], default=None)


@dataclass(frozen=True)
class Way:
    """A way to spend a gap."""

    score: int
    tier: int
    start: str
    store: int | None
    final: int | None
    fetch: int | None
    stall: int


@dataclass
class Life:
    """What a tensor does: its tier, where it starts, its returns and its stores."""

    tier: int
    start: str
    away: dict[int, int | None] = field(default_factory=dict)
    stores: dict[int, int] = field(default_factory=dict)


class NaiveSweep:
    """A sweep over a problem; ``lives`` is what it comes to."""

    def __init__(self, problem: Problem, budget: int, weights: Weights, look: int = 4) -> None:
        self.problem, self.budget, self.weights, self.look = problem, budget, weights, look
        self.graph = graph = problem.graph
        self.count = len(graph.ops)
        self.machine = machine_of_copies(graph, problem.hardware)
        self.sizes = [tensor.size_bytes for tensor in graph.tensors]
        self.homes = problem.starts_below
        self.lives: dict[int, Life] = {}
        self.clean: set[tuple[int, int]] = set()
        self.waiting: list[tuple[int, int, int, Gap, bool]] = []
        self.moved = [0] * (self.count + 2)
        self.back: dict[int, list[Gap]] = {}
        self.taken: set[Gap] = set()
        self.short = self.stall = self.judged = self.serial = 0
        self.tiers = {below.name: k for k, below in enumerate(problem.below)}
        self.channels = [self._lanes(up) for up in (True, False)]
        self.stored_from: dict[int, int] = {}

    def _ways(self, up: bool) -> dict[str, str]:
        return {b.name: (b.up if up else b.down).name for b in self.problem.below}

    def _lanes(self, up: bool) -> list[Busy]:
        ways, moving = self._ways(up), sorted([self.sizes[gap.tensor] for gap in self.problem.gaps])
        left, usual = sum(moving) // 20, 0
        for usual in moving:
            left -= usual
            if left <= 0:
                break
        first, smallest = timelines(self.machine, ways, usual)
        lanes = {tier: Busy(ns) for tier, ns in smallest.items()}
        return [lanes[first[tier]] for tier in ways]

    # -- times

    def ns(self, tier: int, size: int, up: bool) -> int:
        name = list(self.tiers)[tier]
        channel = self._ways(up)[name]
        taken = alone_ns(self.machine, channel, size)
        own = channel_bandwidth(self.machine, channel)
        for ways in (self._ways(False), self._ways(True)):
            for other, rate in reversed(left_rates(self.machine, ways).items()):
                if ways[other] == channel and rate < own:
                    beside = size * 10**9 // rate - size * 10**9 // own
                    return int((taken + beside) * self.weights.slow)
        return int(taken * self.weights.slow)

    def share(self, tier: int, size: int, stored: bool) -> int:
        fast = self.problem.below[0]
        names = [fast.up.name, fast.down.name][: 2 if stored else 1]
        byte = sum(
            [alone_ns(self.machine, name, 2**30) / 2**30 * self.weights.slow for name in names]
        )
        taken = self.ns(tier, size, True) + (self.ns(tier, size, False) if stored else 0)
        return int(min(1.0, byte * size / max(1, taken)) * ONE) + 2**10

    def over_until(self, at: int) -> int:
        starts, total = self.problem.start_ns, 0
        last = bisect_right(starts, at) - 1
        for i in range(last + 1):
            if self.problem.held_bytes[i] > self.budget:
                ns = self.problem.durations[i]
                total += ns if i < last else max(0, min(ns, at - starts[i]))
        return total

    def begin(self, i: int) -> int:
        return self.problem.start_ns[i] if i < self.count else self.problem.horizon_ns

    def end(self, i: int) -> int:
        return self.problem.end_ns[i] if i < self.count else self.problem.horizon_ns

    def ended_by(self, at: int) -> int:
        """The last op such that it and all before it end by then."""
        ended = [max(self.problem.end_ns[: i + 1]) <= at for i in range(self.count)]
        return sum(ended) - 1

    # -- judging

    def judge(self, gap: Gap, i: int) -> Way | None:
        self.judged += 1
        life, home, best = self.lives.get(gap.tensor), self.homes.get(gap.tensor), None
        for tier, below in enumerate(self.problem.below):
            if (life is not None and life.tier != tier) or home not in (None, below.name):
                continue
            if best is not None and self._is_behind(below):
                continue
            ways = [self.spend(gap, i, tier, *leaves) for leaves in self.departures(gap, i, tier)]
            found = max(ways, key=lambda way: way.score)
            if home is None and not self.fits(gap, found, tier):
                continue
            if best is None or found.score > best.score:
                best = found
        return best

    def _is_behind(self, below: LowerTier) -> bool:
        device, joined = self.problem.hardware.device_tier, self.problem.hardware.channel_between
        return (below.name, device) not in joined or (device, below.name) not in joined

    def passing(self, name: str) -> int:
        """The bytes of a chunk each way, for each tier that lies behind this one."""
        device, chunk = self.problem.hardware.device_tier, self.problem.hardware.chunk_bytes
        ends = [(device, below.name) for below in self.problem.below]
        passed = [self.between(*way) for end in ends for way in (end, end[::-1])]
        return sum([name in tiers for tiers in passed]) * min(chunk, max(self.sizes, default=0))

    def between(self, source: str, target: str) -> list[str]:
        """The tiers on the way with the fewest hops."""
        ways = [[source]]
        while ways[0][-1] != target:
            way = ways.pop(0)
            ways += [[*way, b] for a, b in self.problem.hardware.channel_between if a == way[-1]]
        return ways[0][1:-1]

    def since(self, gap: Gap, way: Way) -> int:
        return 0 if way.start != "home" else max(gap.written, 0)

    def span(self, t: int, start: int) -> range:
        users = self.graph.users[t]
        ends = self.graph.survives[t] or not users
        return range(start, self.count + 1 if ends else users[-1] + 1)

    def fits(self, gap: Gap, way: Way, tier: int) -> bool:
        """The tier has room for the tensor, beside what is there at the same positions."""
        t, start = gap.tensor, self.since(gap, way)
        new = set(self.span(t, start))
        if t in self.stored_from:
            new -= set(self.span(t, self.stored_from[t]))
        name, held = self.problem.below[tier].name, dict.fromkeys(new, 0)
        for other, where in self.homes.items():
            for at in new if where == name else ():
                held[at] += self.sizes[other]
        for other, first in self.stored_from.items():
            for at in new & set(self.span(other, first)) if self.lives[other].tier == tier else ():
                held[at] += self.sizes[other]
        most = self.problem.below[tier].capacity_bytes - self.passing(name)
        return all(there + self.sizes[t] <= most for there in held.values())

    def departures(
        self, gap: Gap, i: int, tier: int
    ) -> list[tuple[str, int | None, int | None, int]]:
        """Where the tensor starts, its store, its store at the end, and how late these are."""
        t, problem, graph = gap.tensor, self.problem, self.graph
        start = self.lives[t].start if t in self.lives else "home"
        free, again = graph.tensors[t].persistent, gap.after == AT_START and i >= gap.before
        down, lane = self.ns(tier, self.sizes[t], False), self.channels[1][tier]
        writers = graph.writers[t]
        final, found = (start, None, None, 0), []
        if writers:
            at = lane.earliest(problem.end_ns[writers[-1]], down)
            final = ("below", None, at, max(0, at + down - problem.horizon_ns))
        if free and gap.after == AT_START and (start == "home" or again):
            if not writers or start == "copy":
                return [("below", None, None, 0)]
            found = [final]
            if start != "home" or again or not gap.returns:
                return found
        clean = (t, gap.version) in self.clean or (
            gap.version == 0 and (start != "home" or t in self.homes)
        )
        if clean or (not gap.returns and gap.before < self.count):
            return [*found, (start, None, None, 0)]
        written = problem.end_ns[gap.written] if gap.written != AT_START else 0
        wanted = problem.end_ns[gap.after] if gap.after != AT_START else self.begin(i)
        store = lane.latest(wanted, down, written)
        store = lane.earliest(written, down) if store is None else store
        late = max(0, store + down - self.begin(i))
        first = gap.version == 0 and gap.after != AT_START and start == "home"
        if first and free and t in problem.initial and self.weights.copies:
            if not writers:
                return [("copy", None, None, 0)]
            if final[3] <= late:
                return [("copy", None, final[2], final[3])]
        return [*found, (start, store, None, late)]

    def spend(
        self,
        gap: Gap,
        i: int,
        tier: int,
        start: str,
        store: int | None,
        final: int | None,
        late: int,
    ) -> Way:
        size, until = self.sizes[gap.tensor], self.over_until(self.begin(gap.before))
        if not gap.returns:
            return Way(1000 * (until - 4 * late), tier, start, store, final, None, late)
        again = gap.after == AT_START and i >= gap.before
        up, lane, release = self.ns(tier, size, True), self.channels[0][tier], 0
        if not again:
            ends = [self.end(i)] + ([self.end(gap.after)] if gap.after != AT_START else [])
            release = max([*ends, *([] if store is None else [store + self.ns(tier, size, False)])])
        deadline = self.begin(gap.before)
        fetch = lane.latest(deadline, up, release)
        if fetch is None:
            fetch = lane.earliest(release, up)
            late += max(0, fetch + up - deadline)
        over = zip(self.problem.held_bytes, self.problem.durations, strict=False)
        whole = sum([ns for held, ns in over if held > self.budget])
        covered = whole if again else self.over_until(fetch)
        share = self.share(tier, size, store is not None or final is not None)
        waits = until - self.over_until(min(deadline, fetch + up))
        score = (
            1000 * (covered * share // ONE - 4 * late) - round(1000 * self.weights.waiting) * waits
        )
        return Way(score, tier, start, store, final, fetch, late)

    # -- sweeping

    def wait(self, gap: Gap, score: int, late: bool) -> None:
        self.serial += 1
        self.waiting.append((-score, -self.sizes[gap.tensor], self.serial, gap, late))

    def late_score(self, gap: Gap) -> int:
        return -1000 * (self.problem.horizon_ns + self.up_ns(gap))

    def up_ns(self, gap: Gap) -> int:
        return self.ns(self.lives[gap.tensor].tier, self.sizes[gap.tensor], True)

    def run(self) -> NaiveSweep:
        self.bring_up()
        opening = self.openings()
        level = 0
        for i in range(self.count + 1):
            for gap in opening.get(i, []):
                way = self.judge(gap, i)
                if way is not None:
                    self.wait(gap, way.score, False)
            for gap in self.back.get(i, []):
                if gap.before - 1 > i:
                    self.wait(gap, self.late_score(gap), True)
            level += self.moved[i]
            while self.problem.held_bytes[i] + level > self.budget:
                looked = self.candidates(i)
                if not looked:
                    self.short = max(self.short, self.problem.held_bytes[i] + level - self.budget)
                    break
                best = max(looked, key=lambda each: each[0])
                for each in looked:
                    if each is not best:
                        self.wait(each[1], each[0], each[2] is None)
                _, gap, way = best
                level -= self.sizes[gap.tensor]
                if way is not None:
                    self.take(gap, way, i)
                else:
                    self.lives[gap.tensor].away[gap.after] = gap.before - 1
                    self.moved[gap.before] += self.sizes[gap.tensor]
                    self.stall += self.up_ns(gap)
        return self

    def bring_up(self) -> None:
        """What starts below comes up as late as hides, the latest use first."""
        graph, todo = self.graph, []
        for t, home in self.homes.items():
            users = graph.users[t]
            if users and home in self.tiers:
                if t in graph.ops[users[0]].reads:
                    todo.append((users[0], t, self.tiers[home]))
                else:
                    self.lives[t] = Life(self.tiers[home], "home")
        for first, t, tier in sorted(todo, reverse=True):
            up, lane = self.ns(tier, self.sizes[t], True), self.channels[0][tier]
            at = lane.latest(self.begin(first), up, 0)
            back = AT_START if at is None else min(self.ended_by(at), first - 1)
            lane.reserve(lane.earliest(0 if at is None else at, up), up)
            self.lives[t] = Life(tier, "home", {AT_START: back})
            if back + 1 < first:
                self.moved[back + 1] += self.sizes[t]
                self.moved[first] -= self.sizes[t]
                self.back.setdefault(back + 1, []).append(Gap(t, AT_START, first, 0, True))

    def openings(self) -> dict[int, list[Gap]]:
        """The gaps that span an op over budget, by the op from which on they are open."""
        held = self.problem.held_bytes
        over = [held[i] + sum(self.moved[: i + 1]) > self.budget for i in range(self.count + 1)]
        found: dict[int, list[Gap]] = {}
        for gap in self.problem.gaps:
            until = gap.before + (gap.before == self.count and not gap.returns)
            users = self.graph.users[gap.tensor]
            persistent = self.graph.tensors[gap.tensor].persistent
            if self.sizes[gap.tensor] and any(over[gap.after + 1 : until]):
                found.setdefault(gap.after + 1, []).append(gap)
            again = gap.after == AT_START and persistent and bool(users)
            if self.sizes[gap.tensor] and again and any(over[users[-1] + 1 :]):
                found.setdefault(users[-1] + 1, []).append(gap)
        return found

    def candidates(self, i: int) -> list[tuple[int, Gap, Way | None]]:
        looked: list[tuple[int, Gap, Way | None]] = []
        while self.waiting and len(looked) < self.look:
            first = min(self.waiting, key=lambda each: each[:3])
            self.waiting.remove(first)
            gap, late = first[3:]
            if not self.is_open(gap, i) or (not late and gap in self.taken):
                continue
            way = None if late else self.judge(gap, i)
            if way is not None:
                looked.append((way.score, gap, way))
            elif late and gap.before - 1 >= i:
                looked.append((self.late_score(gap), gap, None))
        return looked

    def is_open(self, gap: Gap, i: int) -> bool:
        users, life = self.graph.users[gap.tensor], self.lives.get(gap.tensor)
        if gap.after == AT_START and users and i > users[-1]:
            if self.graph.tensors[gap.tensor].persistent:
                back = life.away.get(users[-1], AT_START) if life is not None else AT_START
                return back is not None and back < i
        elif gap.after != AT_START and gap.before == self.count:
            starts_below = life is not None and life.start == "below"
            return (i < self.count or not gap.returns) and not starts_below
        return i < gap.before

    def take(self, gap: Gap, way: Way, i: int) -> None:
        t, size, users = gap.tensor, self.sizes[gap.tensor], self.graph.users[gap.tensor]
        again = gap.after == AT_START and i >= gap.before
        self.taken.add(gap)
        life = self.lives.setdefault(t, Life(way.tier, way.start))
        life.start = way.start
        if t not in self.homes:
            since = self.since(gap, way)
            self.stored_from[t] = min(since, self.stored_from.get(t, since))
        leaves_again = gap.after == AT_START and bool(users) and way.start == "below"
        if leaves_again:
            life.away.pop(users[-1], None)
        back = None
        if way.fetch is not None:
            back = self.ended_by(way.fetch)
            back = min(back if again else max(back, i), gap.before - 1)
        life.away[gap.after] = back
        if way.store is not None:
            early = self.ended_by(way.store)
            if early < gap.after or gap.after == AT_START:
                life.stores[gap.after] = min(max(early, gap.written), i - 1)
            self.clean.add((t, gap.version))
        down, up = self.ns(way.tier, size, False), self.ns(way.tier, size, True)
        for lane, at, length in (
            (self.channels[1][way.tier], way.store, down),
            (self.channels[1][way.tier], way.final, down),
            (self.channels[0][way.tier], way.fetch, up),
        ):
            if at is not None:
                lane.reserve(lane.earliest(at, length), length)
        self.stall += way.stall
        if again:
            return
        if back is not None:
            self.moved[back + 1] += size
            if i <= back and back + 1 < gap.before:
                self.back.setdefault(back + 1, []).append(gap)
        elif not gap.returns and gap.before < self.count:
            self.moved[gap.before] += size
        if leaves_again:
            gone = users[-1] + 1
            if way.final is not None:
                gone = max(gone, bisect_right(self.problem.start_ns, way.final + down))
            if gone <= self.count:
                self.moved[gone] -= size
