"""One sweep over the ops of a graph: what is on its way, what is held, and which gaps are taken
(:mod:`hosim.planner.hyperoffload.selection`).
"""

from __future__ import annotations

from typing import Any

from hosim.engine.cells import Flags, Int, Ints, Longs, made
from hosim.planner.hyperoffload.kernels.found_numbers import above
from hosim.planner.hyperoffload.kernels.gap_judging import (
    BEGIN,
    BEST,
    LOOKED,
    NO_RETURN,
    PARTS,
    PRESENT,
    GapJudging,
)
from hosim.planner.hyperoffload.kernels.lowered_choices import STARTS_BELOW


class GapSweep(GapJudging):
    """A sweep with what it has decided: for each gap the op after which its tensor comes back, and
    the one after which it is stored, if that is not as soon as it leaves.

    The first ``forced`` gaps are those before the first use of what starts below; ``chosen`` lists
    the tensors that move, in the order in which that was decided. The heap has gaps that may be
    taken, the best score first, of equal ones the largest tensor, of these the first one: a gap's
    number twice, plus one if it is taken and its tensor would only come back later.
    """

    gaps: Int
    forced: Int
    look: Int

    held: Longs
    last_gap: Ints

    chosen: Ints
    back: Ints = made("gaps", -3)
    store: Ints = made("gaps", -3)
    taken: Flags = made("gaps")
    level: Longs = made("ops+2")
    opening_from: Ints = made("ops+3")
    opening: Ints = made("2*gaps")
    returning: Ints = made("ops+2", -1)
    last_returning: Ints = made("ops+2", -1)
    next_returning: Ints = made("gaps", -1)
    heap_score: Longs = made("3*gaps")
    heap_serial: Ints = made("3*gaps")
    heap_item: Ints = made("3*gaps")
    looked: Ints = made("look")
    over_before: Ints = made("ops+2")

    def __init__(self, cells: Any, budget: int, horizon: int, waiting: int, known: int) -> None:
        """``known`` tensors of ``chosen`` are there already."""
        GapJudging.__init__(self, cells, horizon, waiting)
        for name in GapSweep.__annotations__:
            setattr(self, name, cells[name])
        self.budget = budget
        self.chosen_count = known
        self.moved = 0
        self.short = 0
        self.stall = 0
        self.heaped = 0
        self.serial = 0

    def run(self) -> None:
        """Sweep over all ops."""
        self.weigh_ops()
        self.fetch_what_starts_below()
        self.list_openings()
        for i in range(self.ops + 1):
            for k in range(self.opening_from[i], self.opening_from[i + 1]):
                g = self.opening[k]
                if self.judge(g, i):
                    self.push(2 * g, self.score[BEST])
            g = self.returning[i]
            while g >= 0:
                if self.before[g] - 1 > i:
                    self.push(2 * g + 1, self.late_score(g))
                g = self.next_returning[g]
            self.moved += self.level[i]
            while self.held[i] + self.moved > self.budget:
                if not self.find_best(i):
                    if self.held[i] + self.moved - self.budget > self.short:
                        self.short = self.held[i] + self.moved - self.budget
                    break
                g = self.best >> 1
                if self.best & 1:
                    self.delay(g)
                else:
                    back = self.take_gap(g, i)
                    if i <= back and back + 1 < self.before[g]:
                        self.return_at(back + 1, g)
                self.moved -= self.size[self.tensor[g]]

    def fetch_what_starts_below(self) -> None:
        """Prefetches of tensors whose home is below: as late as hides, the latest use first."""
        for g in range(self.forced):
            t = self.tensor[g]
            first = self.before[g]
            trip = self.home[t] * self.sizes + self.size_class[t]
            channel = self.up_channel[self.home[t]]
            back = BEGIN
            at = self.latest(channel, trip, self.begins[first], 0)
            if at < 0:
                at = self.earliest(channel, trip, 0)
            else:
                back = above(self.ends, 0, self.ops, at) - 1
                if back > first - 1:
                    back = first - 1
            self.reserve_from(channel, trip, at)
            self.tier_of[t] = self.home[t]
            self.chosen[self.chosen_count] = t
            self.chosen_count += 1
            self.back[g] = back
            if back + 1 < first:
                self.level[back + 1] += self.size[t]
                self.level[first] -= self.size[t]
                self.return_at(back + 1, g)

    def return_at(self, i: int, g: int) -> None:
        """A tensor is back before op i although its gap goes on."""
        if self.returning[i] < 0:
            self.returning[i] = g
        else:
            self.next_returning[self.last_returning[i]] = g
        self.last_returning[i] = g

    def list_openings(self) -> None:
        """The gaps by the ops from which on they are open, without those in which no op can exceed
        the budget. A move only frees room, except for the prefetches of what starts below, which
        ``level`` has.
        """
        early = 0
        for i in range(self.ops + 1):
            early += self.level[i]
            over = 1 if self.held[i] + early > self.budget else 0
            self.over_before[i + 1] = self.over_before[i] + over
        for fill in range(2):
            for g in range(self.forced, self.gaps):
                t = self.tensor[g]
                if not self.size[t]:
                    continue
                first = self.after[g] + 1
                until = self.before[g]
                if until == self.ops and not self.returns[g]:
                    until = self.ops + 1
                if self.over_before[until] > self.over_before[first]:
                    self.open_at(first, g, fill)
                if self.after[g] == BEGIN and self.persistent[t] and self.last_user[t] >= 0:
                    # what starts below is below again after its last use
                    first = self.last_user[t] + 1
                    if self.over_before[self.ops + 1] > self.over_before[first]:
                        self.open_at(first, g, fill)
            if not fill:
                for i in range(self.ops + 1):
                    self.opening_from[i + 2] += self.opening_from[i + 1]

    def open_at(self, i: int, g: int, fill: int) -> None:
        """Count a gap that is open from op i on, or list it."""
        if fill:
            self.opening[self.opening_from[i + 1]] = g
            self.opening_from[i + 1] += 1
        else:
            self.opening_from[i + 2] += 1

    # -- the heap
    # ----------------------------------------------------------------------------------------------

    def push(self, item: int, score: int) -> None:
        """Put a candidate into the heap."""
        k = self.heaped
        self.heaped += 1
        self.serial += 1
        while k > 0:
            parent = (k - 1) >> 1
            if not self.better(score, item, self.serial, parent):
                break
            self.put(k, self.heap_score[parent], self.heap_item[parent], self.heap_serial[parent])
            k = parent
        self.put(k, score, item, self.serial)

    def pop(self) -> int:
        """Take the best candidate out of the heap."""
        top = self.heap_item[0]
        self.heaped -= 1
        last = self.heaped
        score = self.heap_score[last]
        item = self.heap_item[last]
        serial = self.heap_serial[last]
        k = 0
        child = 1
        while child < last:
            if child + 1 < last and self.better(
                self.heap_score[child + 1],
                self.heap_item[child + 1],
                self.heap_serial[child + 1],
                child,
            ):
                child += 1
            if self.better(score, item, serial, child):
                break
            self.put(k, self.heap_score[child], self.heap_item[child], self.heap_serial[child])
            k = child
            child = 2 * k + 1
        self.put(k, score, item, serial)
        return top

    def better(self, score: int, item: int, serial: int, k: int) -> bool:
        """Return whether a candidate comes before the one at a place of the heap."""
        if score != self.heap_score[k]:
            return score > self.heap_score[k]
        mine = self.size[self.tensor[item >> 1]]
        other = self.size[self.tensor[self.heap_item[k] >> 1]]
        if mine != other:
            return mine > other
        return serial < self.heap_serial[k]

    def put(self, k: int, score: int, item: int, serial: int) -> None:
        """Put a candidate at a place of the heap."""
        self.heap_score[k] = score
        self.heap_item[k] = item
        self.heap_serial[k] = serial

    # -- the best candidate
    # ----------------------------------------------------------------------------------------------

    def find_best(self, i: int) -> bool:
        """Take the best candidate at op i out of the heap, with the best way to spend its gap;
        whether there is one. The others go back.
        """
        self.find_candidates(i)
        if not self.looked_count:
            return False
        best = 0
        for k in range(1, self.looked_count):
            if self.score[LOOKED + k] > self.score[LOOKED + best]:
                best = k
        for k in range(self.looked_count):
            if k != best:
                self.push(self.looked[k], self.score[LOOKED + k])
        self.best = self.looked[best]
        self.copy(LOOKED + best, BEST)
        return True

    def find_candidates(self, i: int) -> None:
        """Take those on top of the heap that can leave at op i, each judged anew, as its place may
        be stale.
        """
        self.looked_count = 0
        while self.heaped and self.looked_count < self.look:
            item = self.pop()
            g = item >> 1
            if not self.is_open(g, i):
                continue
            if item & 1:
                if self.before[g] - 1 < i:
                    continue
                self.score[BEST] = self.late_score(g)
            elif self.taken[g] or not self.judge(g, i):
                continue
            self.copy(BEST, LOOKED + self.looked_count)
            self.looked[self.looked_count] = item
            self.looked_count += 1

    def late_score(self, g: int) -> int:
        """Worse than any gap that is not taken yet: its transfer is exposed."""
        return -PARTS * (self.horizon + self.up_ns(g))

    def up_ns(self, g: int) -> int:
        """How long a tensor takes to come back from where it is."""
        t = self.tensor[g]
        tier = self.tier_of[t] if self.tier_of[t] >= 0 else 0
        return self.trip_ns[tier * self.sizes + self.size_class[t]]

    def is_open(self, g: int, i: int) -> bool:
        """Return whether a gap spans op i and its tensor has not gone for good by then."""
        t = self.tensor[g]
        if self.after[g] == BEGIN:
            last = self.last_user[t] if self.last_user[t] >= 0 else self.ops
            if i <= last or not self.persistent[t]:
                return i < self.before[g]
            last = self.last_gap[t]
            if last < 0 or self.back[last] == PRESENT:
                return True
            return self.back[last] != NO_RETURN and self.back[last] < i  # not while it is away
        if self.before[g] == self.ops:
            return (i < self.ops or not self.returns[g]) and self.start_of[t] != STARTS_BELOW
        return i < self.before[g]

    def delay(self, g: int) -> None:
        """Let a tensor that is back too early return only for its use."""
        self.level[self.before[g]] += self.size[self.tensor[g]]
        self.back[g] = self.before[g] - 1
        self.stall += self.up_ns(g)

    # -- taking
    # ----------------------------------------------------------------------------------------------

    def take_gap(self, g: int, i: int) -> int:
        """Note the choice and reserve its transfers' time; the op after which the tensor returns,
        or :data:`NO_RETURN`.
        """
        t = self.tensor[g]
        tier = self.in_tier[BEST]
        trip = tier * self.sizes + self.size_class[t]
        start = self.starts[BEST]
        store_at = self.store_at[BEST]
        back = self.return_of(g, i)
        self.taken[g] = 1
        if self.tier_of[t] < 0:
            self.chosen[self.chosen_count] = t
            self.chosen_count += 1
        if self.home[t] < 0:
            self.place(t, self.below_from(g, BEST), tier)
        self.tier_of[t] = tier
        self.start_of[t] = start
        leaves_again = self.after[g] == BEGIN and self.last_user[t] >= 0 and start == STARTS_BELOW
        if leaves_again and self.last_gap[t] >= 0:
            self.back[self.last_gap[t]] = PRESENT
        self.back[g] = back
        if store_at >= 0:
            early = above(self.ends, 0, self.ops, store_at) - 1
            if early < self.after[g] or self.after[g] == BEGIN:
                if early < self.written[g]:
                    early = self.written[g]
                self.store[g] = early if early < i - 1 else i - 1  # op i needs the room
        self.reserve_times(g, tier, trip)
        self.stall += self.stalls[BEST]
        if self.after[g] == BEGIN and i >= self.before[g]:
            return back
        if back != NO_RETURN:
            self.level[back + 1] += self.size[t]
        elif not self.returns[g] and self.before[g] < self.ops:
            self.level[self.before[g]] += self.size[t]
        if leaves_again:
            gone = self.last_user[t] + 1
            if self.final_at[BEST] >= 0:
                ends = self.final_at[BEST] + self.trip_ns[self.trips + trip]
                there = above(self.start_ns, 0, self.ops, ends)
                gone = there if there > gone else gone
            if gone <= self.ops:
                self.level[gone] -= self.size[t]
        return back

    def return_of(self, g: int, i: int) -> int:
        """The op after which the prefetch of a gap that is taken at op i is issued."""
        if self.fetch_at[BEST] < 0:
            return NO_RETURN
        back = above(self.ends, 0, self.ops, self.fetch_at[BEST]) - 1
        if back < i and not (self.after[g] == BEGIN and i >= self.before[g]):
            back = i
        return back if back < self.before[g] - 1 else self.before[g] - 1

    def reserve_times(self, g: int, tier: int, trip: int) -> None:
        """Reserve the channels for the transfers of a gap."""
        down = self.trips + trip
        self.reserve_from(self.down_channel[tier], down, self.store_at[BEST])
        self.reserve_from(self.down_channel[tier], down, self.final_at[BEST])
        if self.store_at[BEST] >= 0:
            self.below[self.content[g]] = 1
        self.reserve_from(self.up_channel[tier], trip, self.fetch_at[BEST])
