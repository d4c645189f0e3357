"""Which tensors leave, and when they come back: one sweep over the ops with the channels' own timelines in hand.

Candidate selection. The sweep goes through the ops in order with what the device tier holds. Where that exceeds the budget, it takes the
best of the gaps that are open there, until it fits. A gap is judged on the channels as they are then, not on idle ones:

- its store takes the earliest free time of the channel down after its last use, its prefetch the *latest* free time of the channel up that
  ends before its next use, so that it stays away as long as hides;
- what it gains is the over-budget time that it is away for; what it costs is the over-budget time that it waits in the device tier after
  coming back too early (because the channel was full just before its use), and, weighed heavily, the stall where a transfer cannot be
  in time at all.

So where pressure is a hill (training: activations pile up), gaps that reach over the hill win; where it is a plateau (weights streamed
through a small budget), the choice spreads evenly over the step, as only a gap whose prefetch fits just before its use does not wait.
Contents that have a valid copy below leave for nothing. A persistent tensor can be given one from the start (``copy``), at the price of
a store after its last write, or start below altogether.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from hosim.costmodel.transfer_time import alone_ns, channel_bandwidth
from hosim.planner.choices import BELOW, COPY, HOME, Choice
from hosim.planner.pooled import Placement, Shelf
from hosim.planner.problem import START, Below, Gap, Problem, initial_set
from hosim.planner.timeline import left_rates, timelines, usual_size

_LOOK, _LOOK_IF_LARGE, _LARGE = 8, 3, 20_000
"""Candidates that are judged anew before one is taken, as their place in the heap may be stale; fewer in graphs with many ops."""

_LONG = 2**30
"""Bytes whose transfer takes no longer than they need."""


@dataclass(frozen=True, slots=True)
class Weights:
    """How candidates are judged.

    ``waiting`` weighs over-budget time spent waiting after an early return, ``stall`` the nanoseconds of stall. ``lead_ns`` is how long
    before its use a prefetch should have ended, ``slow`` what transfer times are multiplied with (above 1: room for contention; below:
    the step is stretched). ``copies`` says whether persistent tensors may start with a second copy below, ``tiers`` how many tiers
    below are used, the fastest first, and ``placement`` by which rule a tensor gets its tier: None takes the one that hides most.
    """

    waiting: float = 0.0
    stall: float = 4.0
    lead_ns: int = 0
    copies: bool = True
    slow: float = 1.0
    tiers: int = 99
    placement: Placement | None = None


@dataclass(frozen=True, slots=True)
class Selection:
    """Choices, and the largest number of bytes by which an op still exceeds the budget (0 where the sweep succeeded).

    ``full`` names the tiers below that had no room for something, in words.
    """

    choices: dict[int, Choice]
    short_bytes: int
    expected_stall_ns: int
    full: str = ""


@dataclass(frozen=True, slots=True)
class _Departure:
    """How a tensor leaves: where it starts, when its store begins, and the one at the end of the step, and how late they are."""

    start: str
    store_at: int | None = None
    final_store_at: int | None = None
    late: int = 0


@dataclass(slots=True)
class _Offer:
    """A candidate judged: where its transfers would go. ``late`` ones are only delayed."""

    score: float
    gap: Gap
    below: Below
    leaves: _Departure
    fetch_at: int | None = None
    back: int | None = None
    stall: int = 0
    late: bool = False


def _below_from(offer: _Offer) -> int:
    """The op from which on the tensor's copy may be below: it is stored after its last write at the earliest."""
    return 0 if offer.leaves.start != HOME else max(offer.gap.written, 0)


def select(problem: Problem, budget_bytes: int, weights: Weights) -> Selection:
    """Choices that keep every op within the budget, in listed order; O(gaps log gaps) with few candidates judged twice."""
    return _Sweep(problem, budget_bytes, weights).run()


class _Sweep:
    def __init__(self, problem: Problem, budget: int, weights: Weights) -> None:
        self.problem = problem
        self.budget = budget
        self.weights = weights
        graph = problem.graph
        self.count = len(graph.ops)
        self.start_ns, self.end_ns = problem.start_ns, problem.end_ns
        self.horizon = problem.horizon_ns
        self.ends = list(accumulate(problem.end_ns, max))
        self.look = _LOOK if self.count < _LARGE else _LOOK_IF_LARGE
        self.tiers = problem.below[: weights.tiers]
        usual = usual_size([graph.tensors[gap.tensor].size_bytes for gap in problem.gaps])
        ups, downs = {b.name: b.up.name for b in problem.below}, {b.name: b.down.name for b in problem.below}
        self.up, self.down = timelines(problem.hardware, ups, usual), timelines(problem.hardware, downs, usual)
        left = [(ways[tier], rate) for ways in (ups, downs) for tier, rate in left_rates(problem.hardware, ways).items()]
        own = {channel: channel_bandwidth(problem.hardware, channel) for channel, _ in left}
        self.shared = {channel: (own[channel], rate) for channel, rate in left if rate < own[channel]}
        starts_below = {t: (tier,) for t, tier in problem.starts_below.items()}
        self.shelf = Shelf(graph, problem.hardware, [b.name for b in problem.below], starts_below, weights.placement)
        fastest = [problem.below[0].up, problem.below[0].down] if problem.below else []
        self.per_byte = [alone_ns(problem.hardware, channel.name, _LONG) / _LONG * weights.slow for channel in fastest]
        self.heap: list[tuple[float, int, int, Gap, bool]] = []
        self.serial = 0
        self.level = [0] * (self.count + 2)
        self.choices: dict[int, Choice] = {}
        self.versions: set[tuple[int, int]] = set()
        self.short = 0
        self.stall = 0
        over = [int(held > budget) * d for held, d in zip(problem.held_bytes, problem.durations, strict=False)]
        self.over = [0, *accumulate(over)]
        self.initial = graph.derived(initial_set)
        self.times: dict[tuple[str, int], int] = {}

    # -- the sweep ---------------------------------------------------------------------------------------------

    def run(self) -> Selection:
        problem, graph = self.problem, self.problem.graph
        returning: dict[int, list[Gap]] = defaultdict(list)
        self._fetch_what_starts_below(returning)
        opening: dict[int, list[Gap]] = defaultdict(list)
        for gap in problem.gaps:
            opening[gap.after + 1].append(gap)
            if gap.after == START and graph.tensors[gap.tensor].persistent and graph.users[gap.tensor]:
                # what starts below is below again after its last use
                opening[graph.users[gap.tensor][-1] + 1].append(gap)
        taken: set[tuple[int, int]] = set()
        moved = 0
        for i in range(self.count + 1):
            for gap in opening.get(i, ()):
                if graph.tensors[gap.tensor].size_bytes:
                    offer = self._judge(gap, i)
                    if offer is not None:
                        self._push(gap, offer.score, False)
            for gap in returning.get(i, ()):
                if gap.before - 1 > i:
                    self._push(gap, self._late_score(gap), True)
            moved += self.level[i]
            while problem.held_bytes[i] + moved > self.budget:
                offer = self._best(i, taken)
                if offer is None:
                    self.short = max(self.short, problem.held_bytes[i] + moved - self.budget)
                    break
                moved -= graph.tensors[offer.gap.tensor].size_bytes
                if offer.late:
                    self._delay(offer.gap)
                else:
                    taken.add((offer.gap.tensor, offer.gap.after))
                    self._take(offer, i)
                    if offer.back is not None and i <= offer.back and offer.back + 1 < offer.gap.before:
                        returning[offer.back + 1].append(offer.gap)
        return Selection(self.choices, self.short, self.stall, self.shelf.full())

    def _push(self, gap: Gap, score: float, late: bool) -> None:
        self.serial += 1
        heapq.heappush(self.heap, (-score, -self.problem.graph.tensors[gap.tensor].size_bytes, self.serial, gap, late))

    def _best(self, i: int, taken: set[tuple[int, int]]) -> _Offer | None:
        """The best candidate at op i among those on top of the heap, judged anew; the others go back."""
        looked: list[_Offer] = []
        while self.heap and len(looked) < self.look:
            _, _, _, gap, late = heapq.heappop(self.heap)
            if not self._open(gap, i) or (not late and (gap.tensor, gap.after) in taken):
                continue
            if not late:
                offer = self._judge(gap, i)
                if offer is not None:
                    looked.append(offer)
            elif gap.before - 1 >= i:
                looked.append(_Offer(self._late_score(gap), gap, self.problem.below[0], _Departure(HOME), late=True))
        best = max(looked, key=lambda offer: offer.score, default=None)
        for offer in looked:
            if offer is not best:
                self._push(offer.gap, offer.score, offer.late)
        return best

    def _late_score(self, gap: Gap) -> float:
        """Worse than any gap that is not taken yet: its transfer is exposed."""
        return float(-self.horizon) - self._time_up(gap)

    def _delay(self, gap: Gap) -> None:
        """Let a tensor that is back too early return only for its use."""
        back = gap.before - 1
        self.level[gap.before] += self.problem.graph.tensors[gap.tensor].size_bytes
        self.choices[gap.tensor] = self.choices[gap.tensor].with_return(gap.after, back)
        self.stall += self._time_up(gap)

    def _open(self, gap: Gap, i: int) -> bool:
        """Whether a gap spans op i and its tensor has not gone for good by then."""
        if gap.after == START:
            users = self.problem.graph.users[gap.tensor]
            last = users[-1] if users else self.count
            if i <= last or not self.problem.graph.tensors[gap.tensor].persistent:
                return i < gap.before
            choice = self.choices.get(gap.tensor)
            back = choice.away.get(last, START) if choice is not None else START
            return back is not None and back < i  # not while it is away after its last use already
        if gap.before == self.count:
            choice = self.choices.get(gap.tensor)
            return (i < self.count or not gap.returns) and (choice is None or choice.start != BELOW)
        return i < gap.before

    # -- judging -----------------------------------------------------------------------------------------------

    def _judge(self, gap: Gap, i: int) -> _Offer | None:
        """The best way to take a gap at op i, over the tiers below; None if there is none."""
        choice = self.choices.get(gap.tensor)
        forced = self.problem.starts_below.get(gap.tensor)
        best: _Offer | None = None
        for below in self._preferred(gap.tensor) if forced is None and choice is None else self.problem.below:
            if (choice is not None and below.name != choice.below) or (forced is not None and below.name != forced):
                continue
            offer = self._judge_in(gap, i, below, choice)
            if forced is None and offer is not None and not self._has_room(offer):
                continue
            if offer is not None and (best is None or offer.score > best.score):
                best = offer
            if best is not None and self.weights.placement is not None:
                break
        return best

    def _preferred(self, t: int) -> Sequence[Below]:
        """The tiers below that may take a tensor; with a placement rule the first that does is taken."""
        if self.weights.placement is None:
            return self.tiers
        named = {b.name: b for b in self.problem.below}
        return [named[name] for name in self.shelf.order(t)]

    def _has_room(self, offer: _Offer) -> bool:
        """Whether the tier below has room from where the tensor's copy is there on."""
        return self.shelf.fits(offer.gap.tensor, _below_from(offer), offer.below.name)

    def _judge_in(self, gap: Gap, i: int, below: Below, choice: Choice | None) -> _Offer | None:
        best: _Offer | None = None
        for leaves in self._departures(gap, i, below, choice.start if choice is not None else HOME):
            offer = self._with_return(gap, i, below, leaves)
            if best is None or offer.score > best.score:
                best = offer
        return best

    def _departures(self, gap: Gap, i: int, below: Below, start: str) -> Iterator[_Departure]:
        """The ways to leave the device tier for a gap that is wanted from op i on."""
        problem, t = self.problem, gap.tensor
        down, channel = self._time(below.down.name, t), self.down[below.name]
        free = bool(problem.graph.tensors[t].persistent)  # where it starts is the plan's to say
        written_last = problem.last_write.get(t)
        final: _Departure | None = None
        if free and written_last is not None:  # what is below at time 0 must be there again at the end
            final_at = channel.earliest(self.end_ns[written_last], down)
            final = _Departure(BELOW, None, final_at, max(0, final_at + down - self.horizon))
        if free and gap.after == START and (start == HOME or i >= gap.before):  # away after its last use: then at the step's start too
            if final is None or start == COPY:  # the store of a copy has its place already
                yield _Departure(BELOW)
                return
            yield final
            if start != HOME or i >= gap.before or not gap.returns:
                return
        if gap.dead(self.count) or self._clean(t, gap, start):
            yield _Departure(start)
            return
        written = self.end_ns[gap.written] if gap.written != START else 0
        wanted = self.end_ns[gap.after] if gap.after != START else self._at(i)
        store_at = channel.latest(wanted, down, written)  # copied while it is still used, if that can be
        if store_at is None:
            store_at = channel.earliest(written, down)
        late = max(0, store_at + down - self._at(i))
        if gap.version == 0 and gap.after != START and t in self.initial and free and start == HOME and self.weights.copies:
            if final is None:
                yield _Departure(COPY)
                return
            if final.late <= late:
                yield replace(final, start=COPY)
                return
        yield _Departure(start, store_at, None, late)

    def _with_return(self, gap: Gap, i: int, below: Below, leaves: _Departure) -> _Offer:
        weights = self.weights
        deadline_at = self._at(gap.before)
        if not gap.returns:
            score = self._over_until(deadline_at) - weights.stall * leaves.late
            return _Offer(score, gap, below, leaves, stall=leaves.late)
        length = self._time(below.up.name, gap.tensor)
        deadline = deadline_at - weights.lead_ns
        again = gap.after == START and i >= gap.before
        released = self.end_ns[gap.after] if gap.after != START else 0
        stored = leaves.store_at + self._time(below.down.name, gap.tensor) if leaves.store_at is not None else 0
        free_at = 0 if again else max(released, self._after(i), stored)
        fetch_at = self.up[below.name].latest(deadline, length, free_at)
        stall = leaves.late
        if fetch_at is None:
            fetch_at = self.up[below.name].earliest(free_at, length)
            stall += max(0, fetch_at + length - deadline_at)
        back = bisect_right(self.ends, fetch_at) - 1
        back = min(back if again else max(back, i), gap.before - 1)
        covered = self.over[-1] if again else self._over_until(fetch_at)
        covered = int(covered * self._share_of_bytes(gap.tensor, below, leaves))
        waiting = self._over_until(deadline_at) - self._over_until(min(deadline_at, fetch_at + length))
        score = covered - weights.waiting * waiting - weights.stall * stall
        return _Offer(score, gap, below, leaves, fetch_at, back, stall)

    def _at(self, i: int) -> int:
        """When op i starts; the end of everything for the position after the last op."""
        return self.start_ns[i] if i < self.count else self.horizon

    def _after(self, i: int) -> int:
        return self.end_ns[i] if i < self.count else self.horizon

    def _clean(self, t: int, gap: Gap, start: str) -> bool:
        if (t, gap.version) in self.versions:
            return True
        return gap.version == 0 and (start in (COPY, BELOW) or t in self.problem.starts_below)

    def _over_until(self, at: int) -> int:
        """Over-budget time before ``at``, of the pressure as it was before anything left."""
        k = bisect_right(self.start_ns, at) - 1
        if k < 0:
            return 0
        here = self.over[k + 1] - self.over[k]
        return self.over[k] + min(here, max(0, at - self.start_ns[k]))

    def _time(self, channel: str, t: int) -> int:
        """Nanoseconds that the tensor takes on a channel, as this sweep reckons."""
        size = self.problem.graph.tensors[t].size_bytes
        key = (channel, size)
        if key not in self.times:
            own, left = self.shared.get(channel, (1, 1))
            self.times[key] = int(
                (alone_ns(self.problem.hardware, channel, size) + size * 10**9 // left - size * 10**9 // own) * self.weights.slow
            )
        return self.times[key]

    def _share_of_bytes(self, t: int, below: Below, leaves: _Departure) -> float:
        """Of its transfers' time, the part that its bytes would take on the fastest way down and up.

        Near 0 for a small tensor, whose latency keeps the channel from others, and for a slow tier.
        """
        stored = leaves.store_at is not None or leaves.final_store_at is not None
        least = sum(self.per_byte) if stored else self.per_byte[0]
        taken = self._time(below.up.name, t) + (self._time(below.down.name, t) if stored else 0)
        return min(1.0, least * self.problem.graph.tensors[t].size_bytes / max(1, taken))

    def _time_up(self, gap: Gap) -> int:
        choice = self.choices.get(gap.tensor)
        name = choice.below if choice is not None else self.problem.below[0].name
        return self._time(next(b for b in self.problem.below if b.name == name).up.name, gap.tensor)

    # -- taking ------------------------------------------------------------------------------------------------

    def _take(self, offer: _Offer, i: int) -> None:
        problem, gap, leaves = self.problem, offer.gap, offer.leaves
        t = gap.tensor
        size = problem.graph.tensors[t].size_bytes
        below = offer.below
        users = problem.graph.users[t]
        choice = self.choices.get(t)
        if choice is None:
            choice = Choice(below.name, leaves.start)
        elif choice.start != leaves.start:
            choice = replace(choice, start=leaves.start)
        if t not in problem.starts_below:
            self.shelf.place(t, _below_from(offer), [below.name])
        if gap.after == START and users and leaves.start == BELOW:
            choice = choice.without(users[-1])
        choice = choice.with_return(gap.after, offer.back)
        if leaves.store_at is not None:
            early = bisect_right(self.ends, leaves.store_at) - 1
            if early < gap.after or gap.after == START:
                choice = choice.with_store(gap.after, min(max(early, gap.written), i - 1))  # op i needs the room
        self.choices[t] = choice
        down = self._time(below.down.name, t)
        for at in (leaves.store_at, leaves.final_store_at):
            if at is not None:
                self.down[below.name].reserve(self.down[below.name].earliest(at, down), down)
        if leaves.store_at is not None:
            self.versions.add((t, gap.version))
        if offer.fetch_at is not None:
            up, length = self.up[below.name], self._time(below.up.name, t)
            up.reserve(up.earliest(offer.fetch_at, length), length)
        self.stall += offer.stall
        if gap.after == START and i >= gap.before:
            return
        if offer.back is not None:
            self.level[offer.back + 1] += size
        elif gap.dead(self.count):
            self.level[gap.before] += size
        if gap.after == START and leaves.start == BELOW and users:
            gone = users[-1] + 1
            if leaves.final_store_at is not None:
                gone = max(gone, bisect_right(self.start_ns, leaves.final_store_at + down))
            if gone <= self.count:
                self.level[gone] -= size

    def _fetch_what_starts_below(self, returning: dict[int, list[Gap]]) -> None:
        """Prefetches of tensors whose home is below: as late as hides, the latest use first."""
        problem, graph = self.problem, self.problem.graph
        below = {b.name: b for b in problem.below}
        todo = []
        for t, tier in problem.starts_below.items():
            users = graph.users[t]
            if users and tier in below:
                if t in graph.ops[users[0]].reads:
                    todo.append((users[0], t, tier))
                else:  # made anew, and stored at the end
                    self.choices[t] = Choice(tier, HOME)
        for first, t, tier in sorted(todo, reverse=True):
            length = self._time(below[tier].up.name, t)
            at = self.up[tier].latest(self.start_ns[first] - self.weights.lead_ns, length, 0)
            if at is None:
                back, at = START, self.up[tier].earliest(0, length)
            else:
                back = min(bisect_right(self.ends, at) - 1, first - 1)
            self.up[tier].reserve(self.up[tier].earliest(at, length), length)
            self.choices[t] = Choice(tier, HOME, {START: back})
            if back + 1 < first:
                self.level[back + 1] += graph.tensors[t].size_bytes
                self.level[first] -= graph.tensors[t].size_bytes
                returning[back + 1].append(Gap(t, START, first, 0, True))
