"""The score of a gap: what it would bring to move its tensor, given the transfers that are planned
already.

Most of the planning time goes into these scores: what depends on a tensor's size or on an op alone
is computed once, and scores are tuples.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from hosim.analysis import Gap, initial_set
from hosim.analysis.costmodel import machine_of_copies
from hosim.analysis.costmodel.transfers import alone_ns, channel_bandwidth
from hosim.cache_plan import AT_START
from hosim.planner.hyperoffload.tensor_choices import (
    BELOW,
    COPY,
    HOME,
    ChannelTimeline,
    Problem,
    TensorChoice,
    least_size_that_counts,
    left_rates,
    timelines,
)
from hosim.planner.schedule.tiers_below import LowerTier, Placement, TierSpace, has_hops

_LONG = 2**30
"""Bytes whose transfer takes no longer than they need."""


_STALL = 4
"""The weight of a nanosecond of stall; above 1, so that no transfer ends late to cover more."""


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights by which candidates are judged.

    ``waiting`` weighs over-budget time spent waiting after an early return, ``slow`` is what
    transfer times are multiplied with (above 1: room for contention; below: the step is
    stretched). ``copies`` says whether persistent tensors may start with a second copy below, and
    ``placement`` by which rule a tensor gets its tier: None takes the one that hides most. With an
    ``alpha`` gaps are ranked by the cost of the HyperOffload description
    (:mod:`hosim.planner.hyperoffload.selection`), and neither ``waiting`` nor a stall counts.
    """

    waiting: float = 0.0
    copies: bool = True
    slow: float = 1.0
    placement: Placement | None = None
    alpha: float | None = None


class Departure(NamedTuple):
    """The departure of a tensor: where it starts, when its store and its store at the end of the
    step begin, and how late they are.
    """

    start: str
    store_at: int | None = None
    final_store_at: int | None = None
    late: int = 0


class GapScore(NamedTuple):
    """A gap's score and the transfers that it would take. ``fetch_at`` is None where nothing
    returns.
    """

    score: float
    gap: Gap
    below: LowerTier
    leaves: Departure
    fetch_at: int | None
    stall: int

    @property
    def below_from(self) -> int:
        """The op from which on the tensor's copy may be below: it is stored after its last write at
        the earliest.
        """
        return 0 if self.leaves.start != HOME else max(self.gap.written, 0)


class RoundTrip(NamedTuple):
    """The time that a tensor of some size takes ``down`` to a tier and ``up`` again, in
    nanoseconds.

    ``stored`` and ``clean`` are the parts of that, in both directions and up only, that its bytes
    would take on the fastest tier: near 0 for a small tensor, whose latency keeps the channel from
    others, and for a slow tier.
    """

    down: int
    up: int
    stored: float
    clean: float


class GapScoring:
    """Scores gaps for one sweep. ``choices`` and ``versions`` (tensor, version stored below) are
    what has been taken so far.
    """

    def __init__(self, problem: Problem, budget: int, weights: Weights) -> None:
        self.problem = problem
        self.weights = weights
        graph, hardware = problem.graph, machine_of_copies(problem.graph, problem.hardware)
        self.hardware = hardware
        self.count = len(graph.ops)
        self.start_ns, self.end_ns = problem.start_ns, problem.end_ns
        self.horizon = problem.horizon_ns
        self.begins = [*problem.start_ns[: self.count], self.horizon]
        self.finishes = [*problem.end_ns[: self.count], self.horizon]
        self.ends = list(accumulate(problem.end_ns, max))
        self.sizes = [tensor.size_bytes for tensor in graph.tensors]
        self.persistent = [bool(tensor.persistent) for tensor in graph.tensors]
        """Whether it is the plan's to say where a tensor starts."""
        self._written_ns = [
            problem.end_ns[writers[-1]] if writers else -1 for writers in graph.writers
        ]
        """When the last op that writes a tensor ends; below 0 if none does."""
        self.choices: dict[int, TensorChoice] = {}
        self.versions: set[tuple[int, int]] = set()
        self.initial = graph.derived(initial_set)
        self.usual_bytes = usual = least_size_that_counts(
            [self.sizes[gap.tensor] for gap in problem.gaps]
        )
        ups, downs = (
            {b.name: b.up.name for b in problem.below},
            {b.name: b.down.name for b in problem.below},
        )
        self.up: dict[str, ChannelTimeline] = timelines(hardware, ups, usual)
        self.down: dict[str, ChannelTimeline] = timelines(hardware, downs, usual)
        left = [
            (channels[tier], rate)
            for channels in (ups, downs)
            for tier, rate in left_rates(hardware, channels).items()
        ]
        own = {channel: channel_bandwidth(hardware, channel) for channel, _ in left}
        self._shared = {
            channel: (own[channel], rate) for channel, rate in left if rate < own[channel]
        }
        starts_below = {t: (tier,) for t, tier in problem.starts_below.items()}
        self.space = TierSpace(
            graph,
            problem.hardware,
            [b.name for b in problem.below],
            starts_below,
            weights.placement,
        )
        self._behind = {b.name for b in problem.below if has_hops(problem.hardware, b)}
        """The tiers behind others, whose channels the way to them takes."""
        fastest = [problem.below[0].up, problem.below[0].down] if problem.below else []
        self._per_byte = [
            alone_ns(hardware, channel.name, _LONG) / _LONG * weights.slow for channel in fastest
        ]
        self._round_trips: dict[str, dict[int, RoundTrip]] = {b.name: {} for b in problem.below}
        over = [
            int(held > budget) * d
            for held, d in zip(problem.held_bytes, problem.durations, strict=False)
        ]
        self._over = [0, *accumulate(over)]
        self._over_at = [self._over_until(at) for at in self.begins]

    # -- times
    # ----------------------------------------------------------------------------------------------

    def round_trip(self, below: LowerTier, size: int) -> RoundTrip:
        """Nanoseconds of a tensor of ``size`` bytes to that tier and back, with this sweep's
        weights.
        """
        known = self._round_trips[below.name]
        if size not in known:
            up, down = self._time(below.up.name, size), self._time(below.down.name, size)
            clean, stored = (
                self._per_byte[0] * size / max(1, up),
                sum(self._per_byte) * size / max(1, up + down),
            )
            known[size] = RoundTrip(down, up, min(1.0, stored), min(1.0, clean))
        return known[size]

    def _time(self, channel: str, size: int) -> int:
        own, left = self._shared.get(channel, (1, 1))
        return int(
            (alone_ns(self.hardware, channel, size) + size * 10**9 // left - size * 10**9 // own)
            * self.weights.slow
        )

    def _over_until(self, at: int) -> int:
        """Over-budget time before ``at``, of the pressure as it was before anything left."""
        k = bisect_right(self.start_ns, at) - 1
        if k < 0:
            return 0
        before = self._over[k]
        here, since = self._over[k + 1] - before, at - self.start_ns[k]
        return before + (here if here < since else since if since > 0 else 0)

    # -- judging
    # ----------------------------------------------------------------------------------------------

    def judge(self, gap: Gap, i: int) -> GapScore | None:
        """The best score of a gap at op i, over the lower tiers; None if no tier can take it."""
        t = gap.tensor
        choice = self.choices.get(t)
        forced = self.problem.starts_below.get(t)
        start = HOME if choice is None else choice.start
        best: GapScore | None = None
        for below in (
            self._preferred(t) if forced is None and choice is None else self.problem.below
        ):
            if (choice is not None and below.name != choice.below) or (
                forced is not None and below.name != forced
            ):
                continue
            trip = self.round_trip(below, self.sizes[t])
            if best is not None and (
                below.name in self._behind or best.score >= self._most(gap, i, trip)
            ):
                continue
            scored: GapScore | None = None
            for leaves in self._departures(gap, i, below, trip, start):
                other = self._with_return(gap, i, below, trip, leaves)
                if scored is None or other.score > scored.score:
                    scored = other
            if scored is None or (
                forced is None and not self.space.fits(t, scored.below_from, below.name)
            ):
                continue
            if best is None or scored.score > best.score:
                best = scored
            if self.weights.placement is not None:
                break
        return best

    def _most(self, gap: Gap, i: int, trip: RoundTrip) -> float:
        """No score of this gap over this round trip is better.

        What a transfer covers more by ending late it loses by the stall, which weighs more.
        """
        if not gap.returns:
            return self._over_at[gap.before]
        covered = (
            self._over[-1]
            if gap.after == AT_START and i >= gap.before
            else self._over_at[gap.before]
        )
        return int(covered * max(trip.stored, trip.clean))

    def _preferred(self, t: int) -> Sequence[LowerTier]:
        """The tiers below that may take a tensor; with a placement rule the first that does is
        taken.
        """
        if self.weights.placement is None:
            return self.problem.below
        named = {b.name: b for b in self.problem.below}
        return [named[name] for name in self.space.order(t)]

    def _departures(
        self, gap: Gap, i: int, below: LowerTier, trip: RoundTrip, start: str
    ) -> Sequence[Departure]:
        """The ways to leave the device tier for a gap that is wanted from op i on; at most two."""
        t, down = gap.tensor, trip.down
        channel = self.down[below.name]
        free = self.persistent[t]
        first: tuple[Departure, ...] = ()
        if (
            free and gap.after == AT_START and (start == HOME or i >= gap.before)
        ):  # away after its last use: then at the step's start too
            if (
                self._written_ns[t] < 0 or start == COPY
            ):  # the store of a copy has its place already
                return (Departure(BELOW),)
            first = (self._final(t, channel, down),)
            if start != HOME or i >= gap.before or not gap.returns:
                return first
        if gap.dead(self.count) or self._clean(gap, start):
            return (*first, Departure(start))
        written = self.end_ns[gap.written] if gap.written != AT_START else 0
        needed = self.begins[i]
        wanted = self.end_ns[gap.after] if gap.after != AT_START else needed
        store_at = channel.latest(
            wanted, down, written
        )  # copied while it is still used, if that can be
        if store_at is None:
            store_at = channel.earliest(written, down)
        late = max(0, store_at + down - needed)
        if (
            free
            and gap.version == 0
            and gap.after != AT_START
            and start == HOME
            and t in self.initial
            and self.weights.copies
        ):
            if self._written_ns[t] < 0:
                return (*first, Departure(COPY))
            final = self._final(t, channel, down)
            if final.late <= late:
                return (*first, Departure(COPY, None, final.final_store_at, final.late))
        return (*first, Departure(start, store_at, None, late))

    def _final(self, t: int, channel: ChannelTimeline, down: int) -> Departure:
        """Return the departure of a tensor that the step writes if it starts below: it must be
        there again at the end.
        """
        final_at = channel.earliest(self._written_ns[t], down)
        return Departure(BELOW, None, final_at, max(0, final_at + down - self.horizon))

    def _with_return(
        self, gap: Gap, i: int, below: LowerTier, trip: RoundTrip, leaves: Departure
    ) -> GapScore:
        weights = self.weights
        _, store_at, final_store_at, stall = leaves
        before = gap.before
        if not gap.returns:
            return GapScore(self._over_at[before] - _STALL * stall, gap, below, leaves, None, stall)
        length = trip.up
        again = gap.after == AT_START and i >= before
        free_at = 0
        if not again:
            free_at = self.finishes[i]
            if gap.after != AT_START and self.end_ns[gap.after] > free_at:
                free_at = self.end_ns[gap.after]
            if store_at is not None and store_at + trip.down > free_at:
                free_at = store_at + trip.down
        deadline_at = self.begins[before]
        fetch_at = self.up[below.name].latest(deadline_at, length, free_at)
        if fetch_at is None:
            fetch_at = self.up[below.name].earliest(free_at, length)
            stall += max(0, fetch_at + length - deadline_at)
        covered = self._over[-1] if again else self._over_until(fetch_at)
        stored = store_at is not None or final_store_at is not None
        score: float = int(covered * (trip.stored if stored else trip.clean))
        if weights.waiting:
            score -= weights.waiting * (
                self._over_at[before] - self._over_until(min(deadline_at, fetch_at + length))
            )
        return GapScore(score - _STALL * stall, gap, below, leaves, fetch_at, stall)

    def back(self, scored: GapScore, i: int) -> int | None:
        """The op after which the prefetch of a gap scored at op i is issued; None where nothing
        returns.
        """
        gap = scored.gap
        if scored.fetch_at is None:
            return None
        back = bisect_right(self.ends, scored.fetch_at) - 1
        again = gap.after == AT_START and i >= gap.before
        return min(back if again else max(back, i), gap.before - 1)

    def _clean(self, gap: Gap, start: str) -> bool:
        """Return whether a valid copy of the gap's contents is below."""
        if (gap.tensor, gap.version) in self.versions:
            return True
        return gap.version == 0 and (
            start in (COPY, BELOW) or gap.tensor in self.problem.starts_below
        )
