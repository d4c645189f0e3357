"""The score of a gap: what it would bring to move its tensor, given the transfers that are planned
already.

Arrays are indexed by op, tensor, gap, tier below and channel. A *trip* is the number of a tier
times the number of sizes, plus that of a size; its way up has the same number, its way down that
number plus all trips.
"""

from __future__ import annotations

from typing import Any

from hosim.engine.cells import Flags, Int, Ints, Longs, made
from hosim.planner.hyperoffload.kernels.found_numbers import above
from hosim.planner.hyperoffload.kernels.lowered_choices import AT_HOME, STARTS_BELOW, WITH_COPY

BEGIN = -1
"""Time 0, where the number of an op is due (:data:`hosim.cache_plan.AT_START`)."""
NO_RETURN, PRESENT = -2, -3
"""In the place of the op after which a tensor comes back from a gap: it never does; it does not
leave."""
NONE = -1
"""In the place of a time or of a tier: there is none."""
TRIED, OF_TIER, BEST, LOOKED = 0, 1, 2, 3
"""The way that is tried, the best one over a tier, the best one of a gap, and the first of those
that are compared.
"""
SHARE, PARTS = 62, 1000
"""Shares are counted in parts of one, two to this power of them; scores and the weight of waiting
in thousandths.
"""
STALL_WEIGHT = 4
"""The weight of a nanosecond of stall; above 1, so that no transfer ends late to cover more."""
FAR = 256
"""Free intervals that a search for the latest one looks at before it gives up; a channel with more
that are too short is as good as full.
"""


class GapJudging:
    """Judges gaps on channels as they are reserved so far.

    ``over`` has the time before each op at which the device tier would be over budget if nothing
    moved. A channel's busy intervals stand from ``room`` times its number on, ascending and apart
    by at least its ``smallest``: what fits nothing counts as busy. Of a way to spend a gap, from
    ``score`` on, arrays have its score, the tier below, where the tensor starts, when its store,
    its store at the end of the step and its prefetch begin, how late the stores are, and its stall.
    """

    ops: Int
    tiers: Int
    sizes: Int
    trips: Int
    spans: Int
    span: Int
    room: Int
    copies: Int
    ruled: Int
    balanced: Int

    start_ns: Longs
    end_ns: Longs
    ends: Longs
    begins: Longs
    finishes: Longs
    over: Longs

    size: Longs
    size_class: Ints
    persistent: Flags
    initial: Flags
    written_ns: Longs
    last_user: Ints
    last_op: Ints
    home: Ints

    tensor: Ints
    after: Ints
    before: Ints
    content: Ints
    version: Ints
    returns: Flags
    written: Ints

    trip_ns: Longs
    stored_share: Longs
    clean_share: Longs
    behind: Flags
    up_channel: Ints
    down_channel: Ints
    smallest: Longs
    preferred: Ints
    way_ns: Longs
    load: Longs
    free: Longs
    ample: Flags

    tier_of: Ints
    start_of: Ints = made("tensors")
    since: Ints = made("tensors", -1)
    below: Flags = made("contents")
    over_at: Longs = made("ops+1")
    busy_from: Longs = made("channels*room")
    busy_to: Longs = made("channels*room")
    busy: Ints = made("channels")
    full_until: Longs = made("2*trips")
    full: Flags = made("tiers")
    turn: Ints = made("tiers")

    score: Longs = made("look+3")
    in_tier: Ints = made("look+3")
    starts: Ints = made("look+3")
    store_at: Longs = made("look+3")
    final_at: Longs = made("look+3")
    late_by: Longs = made("look+3")
    fetch_at: Longs = made("look+3")
    stalls: Longs = made("look+3")

    def __init__(self, cells: Any, horizon: int, waiting: int) -> None:
        for name in GapJudging.__annotations__:
            setattr(self, name, cells[name])
        self.horizon = horizon
        self.waiting = waiting
        self.judged = 0

    # -- times
    # ----------------------------------------------------------------------------------------------

    def over_until(self, at: int) -> int:
        """Over-budget time before ``at``, of the pressure as it was before anything left."""
        k = above(self.start_ns, 0, self.ops, at) - 1
        if k < 0:
            return 0
        here = self.over[k + 1] - self.over[k]
        since = at - self.start_ns[k]
        if here < since:
            return self.over[k] + here
        return self.over[k] + (since if since > 0 else 0)

    def weigh_ops(self) -> None:
        """Note the over-budget time before each op."""
        for k in range(self.ops + 1):
            self.over_at[k] = self.over_until(self.begins[k])

    def part(self, time: int, share: int) -> int:
        """A share of a time."""
        return (time * share) >> SHARE

    # -- channels
    # ----------------------------------------------------------------------------------------------

    def reserve(self, c: int, start: int, length: int) -> None:
        """Mark ``[start, start + length)`` of a channel as busy; it is free."""
        if length <= 0:
            return
        first = c * self.room
        last = first + self.busy[c]
        end = start + length
        k = above(self.busy_from, first, last, start - 1)
        left = k > first and start - self.busy_to[k - 1] < self.smallest[c]
        right = k < last and self.busy_from[k] - end < self.smallest[c]
        if left and right:
            self.busy_to[k - 1] = self.busy_to[k]
            self.busy[c] -= 1
            for j in range(k, last - 1):
                self.busy_from[j] = self.busy_from[j + 1]
                self.busy_to[j] = self.busy_to[j + 1]
        elif left:
            self.busy_to[k - 1] = end
        elif right:
            self.busy_from[k] = start
        else:
            self.busy[c] += 1
            j = last
            while j > k:
                self.busy_from[j] = self.busy_from[j - 1]
                self.busy_to[j] = self.busy_to[j - 1]
                j -= 1
            self.busy_from[k] = start
            self.busy_to[k] = end

    def earliest(self, c: int, trip: int, release: int) -> int:
        """The earliest start at or after ``release`` of a free interval for a trip.

        None starts before ``full_until`` of the trip, as intervals only get busier.
        """
        length = self.trip_ns[trip]
        known = self.full_until[trip]
        start = release if release > known else known
        last = c * self.room + self.busy[c]
        k = above(self.busy_to, c * self.room, last, start)
        while k < last and self.busy_from[k] - start < length:
            start = self.busy_to[k]
            k += 1
        if release <= known:
            self.full_until[trip] = start
        return start

    def reserve_from(self, c: int, trip: int, release: int) -> None:
        """Reserve the earliest free interval for a trip from ``release`` on, unless that is
        :data:`NONE`.
        """
        if release >= 0:
            self.reserve(c, self.earliest(c, trip, release), self.trip_ns[trip])

    def latest(self, c: int, trip: int, deadline: int, release: int) -> int:
        """The latest start, from ``release`` on, of a free interval for a trip that ends by
        ``deadline``; :data:`NONE` if there is none.
        """
        first = c * self.room
        start = deadline - self.trip_ns[trip]
        k = above(self.busy_from, first, first + self.busy[c], deadline - 1) - 1
        for _ in range(FAR):
            if start < release:
                return NONE
            if k < first or self.busy_to[k] <= start:
                return start
            start = self.busy_from[k] - self.trip_ns[trip]  # before the deadline, as k starts there
            k -= 1
        return NONE

    # -- room below
    # ----------------------------------------------------------------------------------------------

    def last_span(self, t: int) -> int:
        """The span of ops before which a tensor's copy is over, if nothing replaces it."""
        return (self.last_op[t] + self.span - 1) // self.span

    def fits(self, t: int, start: int, tier: int) -> bool:
        """Return whether a tier has room for a tensor from op ``start`` on, or has it already."""
        if self.ample[tier]:
            return True
        end = self.last_span(t)
        if self.since[t] >= 0:
            if self.tier_of[t] != tier:
                return False
            if self.since[t] // self.span < end:
                end = self.since[t] // self.span
        for k in range(tier * self.spans + start // self.span, tier * self.spans + end):
            if self.free[k] < self.size[t]:
                self.full[tier] = 1
                return False
        return True

    def place(self, t: int, start: int, tier: int) -> None:
        """Put a tensor into a tier that has room for it, from op ``start`` on."""
        end = self.last_span(t)
        if self.since[t] >= 0:
            if start >= self.since[t]:
                return
            end = self.since[t] // self.span
        elif self.last_user[t] >= 0:
            self.load[tier] += self.way_ns[tier * self.sizes + self.size_class[t]]
        for k in range(tier * self.spans + start // self.span, tier * self.spans + end):
            self.free[k] -= self.size[t]
        self.since[t] = start

    def rank(self, t: int) -> None:
        """The tiers in the order in which the placement rule prefers them for a tensor, now."""
        for k in range(self.tiers):
            self.turn[k] = self.preferred[t * self.tiers + k]
        if not self.balanced:
            return
        for k in range(1, self.tiers):
            tier = self.turn[k]
            j = k
            while j > 0 and self.sooner(t, tier, self.turn[j - 1]):
                self.turn[j] = self.turn[j - 1]
                j -= 1
            self.turn[j] = tier

    def sooner(self, t: int, tier: int, other: int) -> bool:
        """Return whether the channels of a tier are done before those of another with all that was
        put there and a tensor.
        """
        mine = self.way_ns[tier * self.sizes + self.size_class[t]]
        theirs = self.way_ns[other * self.sizes + self.size_class[t]]
        ends = self.load[tier] + mine
        other_ends = self.load[other] + theirs
        return ends < other_ends or (ends == other_ends and mine < theirs)

    # -- judging
    # ----------------------------------------------------------------------------------------------

    def judge(self, g: int, i: int) -> bool:
        """Judge the ways to spend a gap that is wanted from op i on, over the tiers below: the best
        one, and whether any tier can take the tensor.
        """
        self.judged += 1
        t = self.tensor[g]
        forced = self.home[t]
        given = self.tier_of[t] if forced < 0 else forced
        ranked = self.ruled and given < 0
        found = False
        if ranked:
            self.rank(t)
        for k in range(self.tiers):
            tier = self.turn[k] if ranked else k
            if given >= 0 and (tier != given or (self.tier_of[t] >= 0 and tier != self.tier_of[t])):
                continue
            trip = tier * self.sizes + self.size_class[t]
            if found and (self.behind[tier] or self.score[BEST] >= self.most(g, i, trip)):
                continue
            self.compared = 0
            self.leave(g, i, tier, trip)
            if forced < 0 and not self.fits(t, self.below_from(g, OF_TIER), tier):
                continue
            if not found or self.score[OF_TIER] > self.score[BEST]:
                self.copy(OF_TIER, BEST)
                found = True
            if self.ruled:
                break
        return found

    def below_from(self, g: int, way: int) -> int:
        """The op from which on the copy may be below: it is stored after its last write at the
        earliest.
        """
        if self.starts[way] != AT_HOME or self.written[g] < 0:
            return 0
        return self.written[g]

    def copy(self, way: int, other: int) -> None:
        """Let one way be another."""
        self.score[other] = self.score[way]
        self.in_tier[other] = self.in_tier[way]
        self.starts[other] = self.starts[way]
        self.store_at[other] = self.store_at[way]
        self.final_at[other] = self.final_at[way]
        self.late_by[other] = self.late_by[way]
        self.fetch_at[other] = self.fetch_at[way]
        self.stalls[other] = self.stalls[way]

    def most(self, g: int, i: int, trip: int) -> int:
        """No score of this gap over this trip is better: what a transfer covers more by ending late
        it loses by the stall, which weighs more.
        """
        covered = self.over_at[self.before[g]]
        if not self.returns[g]:
            return PARTS * covered
        if self.after[g] == BEGIN and i >= self.before[g]:
            covered = self.over[self.ops]
        stored = self.part(covered, self.stored_share[trip])
        clean = self.part(covered, self.clean_share[trip])
        return PARTS * (stored if stored > clean else clean)

    def leave(self, g: int, i: int, tier: int, trip: int) -> None:
        """Try the ways to leave the device tier for a gap; at most two."""
        t = self.tensor[g]
        start = self.start_of[t]
        down = self.trips + trip
        channel = self.down_channel[tier]
        again = self.after[g] == BEGIN and i >= self.before[g]
        final_at = NONE
        final_late = 0
        if self.written_ns[t] >= 0 and self.persistent[t]:  # it must be there again at the end
            final_at = self.earliest(channel, down, self.written_ns[t])
            final_late = self.late(final_at, down, self.horizon)
        if self.persistent[t] and self.after[g] == BEGIN and (start == AT_HOME or again):
            # away after its last use: then at the step's start, too
            if self.written_ns[t] < 0 or start == WITH_COPY:  # its store has its place already
                self.attempt(g, i, trip, STARTS_BELOW, NONE, NONE, 0)
                return
            self.attempt(g, i, trip, STARTS_BELOW, NONE, final_at, final_late)
            if start != AT_HOME or again or not self.returns[g]:
                return
        if (not self.returns[g] and self.before[g] < self.ops) or self.is_clean(g, start):
            self.attempt(g, i, trip, start, NONE, NONE, 0)
            return
        needed = self.begins[i]
        written = self.end_ns[self.written[g]] if self.written[g] >= 0 else 0
        wanted = self.end_ns[self.after[g]] if self.after[g] >= 0 else needed
        store_at = self.latest(channel, down, wanted, written)  # while it is still used, if it can
        if store_at < 0:
            store_at = self.earliest(channel, down, written)
        late = self.late(store_at, down, needed)
        if (
            self.copies
            and self.version[g] == 0
            and self.after[g] >= 0
            and start == AT_HOME
            and self.persistent[t]
            and self.initial[t]
        ):
            if self.written_ns[t] < 0:
                self.attempt(g, i, trip, WITH_COPY, NONE, NONE, 0)
                return
            if final_late <= late:
                self.attempt(g, i, trip, WITH_COPY, NONE, final_at, final_late)
                return
        self.attempt(g, i, trip, start, store_at, NONE, late)

    def late(self, at: int, trip: int, deadline: int) -> int:
        """How long after ``deadline`` a trip ends that begins at ``at``."""
        late = at + self.trip_ns[trip] - deadline
        return late if late > 0 else 0

    def is_clean(self, g: int, start: int) -> bool:
        """Return whether a valid copy of the gap's contents is below."""
        if self.below[self.content[g]]:
            return True
        return self.version[g] == 0 and (start != AT_HOME or self.home[self.tensor[g]] >= 0)

    def attempt(
        self, g: int, i: int, trip: int, start: int, store_at: int, final_at: int, late: int
    ) -> None:
        """Judge one way to spend a gap, and keep it if it is the best one over its tier."""
        self.in_tier[TRIED] = trip // self.sizes
        self.starts[TRIED] = start
        self.store_at[TRIED] = store_at
        self.final_at[TRIED] = final_at
        self.late_by[TRIED] = late
        self.fetch_at[TRIED] = NONE
        self.stalls[TRIED] = late
        self.come_back(g, i, trip, TRIED)
        if not self.compared or self.score[TRIED] > self.score[OF_TIER]:
            self.copy(TRIED, OF_TIER)
            self.compared = 1

    def come_back(self, g: int, i: int, trip: int, way: int) -> None:
        """Place the prefetch of a way, and score it."""
        before = self.before[g]
        stall = self.stalls[way]
        if not self.returns[g]:
            self.score[way] = PARTS * (self.over_at[before] - STALL_WEIGHT * stall)
            return
        again = self.after[g] == BEGIN and i >= before
        free_at = 0
        store_at = self.store_at[way]
        if not again:
            free_at = self.finishes[i]
            if self.after[g] >= 0 and self.end_ns[self.after[g]] > free_at:
                free_at = self.end_ns[self.after[g]]
            if store_at >= 0 and store_at + self.trip_ns[self.trips + trip] > free_at:
                free_at = store_at + self.trip_ns[self.trips + trip]
        deadline = self.begins[before]
        channel = self.up_channel[trip // self.sizes]
        fetch_at = self.latest(channel, trip, deadline, free_at)
        if fetch_at < 0:
            fetch_at = self.earliest(channel, trip, free_at)
            stall += self.late(fetch_at, trip, deadline)
        covered = self.over[self.ops] if again else self.over_until(fetch_at)
        if store_at >= 0 or self.final_at[way] >= 0:
            score = PARTS * self.part(covered, self.stored_share[trip])
        else:
            score = PARTS * self.part(covered, self.clean_share[trip])
        if self.waiting:
            there = fetch_at + self.trip_ns[trip]
            waits = self.over_at[before] - self.over_until(there if there < deadline else deadline)
            score -= self.waiting * waits
        self.score[way] = score - PARTS * STALL_WEIGHT * stall
        self.fetch_at[way] = fetch_at
        self.stalls[way] = stall
