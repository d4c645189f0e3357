"""Changes of choices around the stalls: of one tensor, or of several that are alike.

A change shifts returns or stores; takes an absence away, or gives one more; lets a tensor stay in
the place of another of about its size; takes another tier below, for one absence or for all, with
the return as early as that tier wants; or is any small change of one decision. Tensors are alike
that have the same size, kind and number of users, as the layers of a network do: the same change is
made to one, to some next to each other, or to all of them. Kinds of changes that paid lately are
drawn more often.
"""

from __future__ import annotations

from hosim.planner.hyperoffload.kernels.drawn_changes import (
    OF_RETURN,
    OF_SAVE,
    OF_STORE,
    DrawnChanges,
)
from hosim.planner.hyperoffload.kernels.found_numbers import above
from hosim.planner.hyperoffload.kernels.lowered_choices import (
    AT_HOME,
    AWAY,
    BELOW_IN,
    RETURN,
    SAVE,
    START,
    STARTS_BELOW,
    STAYS,
    TIER,
    UNSET,
    WITH_COPY,
)

SHIFT, SHIFT_ALL, SAVED, TAKE, GIVE, EXCHANGE, OTHER_TIER, DECISION, KINDS = (
    0,
    1,
    2,
    3,
    4,
    5,
    6,
    7,
    8,
)
ALONE, SOME, ALL, SCOPES = 0, 1, 2, 3
"""Kinds of changes, and of how many of the tensors that are alike."""

SHARES = (24, 6, 16, 16, 16, 18, 8, 25)
"""How often each kind is drawn if none has paid."""

REMEMBERED, DAMPING = 32, 2
"""What a kind forgets of its record at each trial, as such a part; and the whole runs that are added
to what it has spent.
"""

ORDER = -2
"""What an op waited for, if for other ops."""

WHOLE_RUN = 10
"""The place in the record of a search of the work of a whole run."""

DRAWS = 8
"""How many tensors are drawn to find one that can leave."""


class StallChanges(DrawnChanges):
    """Draws changes where the present run waits; :meth:`look` comes before, and again when the
    present choices have changed.
    """

    # -- where
    # ----------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Take in where ops of the present choices wait, and what is issued where."""
        total: int = 0
        self.waits = 0
        for k in range(self.stalls):
            if self.stall_cause[k] != ORDER:
                if self.cost_left:  # the last one is the nearest to where it stands still
                    self.waits = 0
                    total = 0
                total += self.stall_ns[k]
                self.wait[self.waits] = k
                self.wait_sum[self.waits] = total
                self.waits += 1
        for i in range(self.ops + 3):
            self.issue_from[i] = 0
        for r in range(self.tiers):
            self.busy[r] = 0
        self.count_issues(False)
        for i in range(1, self.ops + 3):
            self.issue_from[i] += self.issue_from[i - 1]
        self.count_issues(True)
        self.idle = self.below_tier[0] if self.below_tiers else 0
        for k in range(self.below_tiers):
            if self.busy[self.below_tier[k]] < self.busy[self.idle]:
                self.idle = self.below_tier[k]

    def count_issues(self, listed: bool) -> None:
        """Count what is issued after each op, or list it."""
        for j in range(self.candidates):
            t = self.candidate[j]
            if self.of_tensor(START, t) == STAYS:
                continue
            saved = self.saved_at(t)
            for s in range(self.first_slot[t], self.first_slot[t + 1]):
                if not self.gap[s] or not self.of_slot(AWAY, s):
                    continue
                back = self.of_slot(RETURN, s)
                if back != UNSET:
                    self.issue(back, s, OF_RETURN, listed)
                    tier = self.tier_in(t, s)
                    self.busy[tier] += self.up_ns[tier * self.tensors + t]
                if not self.starts_in(s):
                    self.issue(self.stored_at(s), s, OF_STORE, listed)
                if saved >= 0:
                    self.issue(saved, s, OF_SAVE, listed)
                    saved = -1

    def issue(self, at: int, s: int, kind: int, listed: bool) -> None:
        """Count what is issued after an op, or list it."""
        if not listed:
            self.issue_from[at + 3] += 1
            return
        k = self.issue_from[at + 2]
        self.issue_from[at + 2] += 1
        self.issue_slot[k] = s
        self.issue_kind[k] = kind

    def focus(self) -> int:
        """The place of a stall; -1: any op."""
        if self.waits == 0 or self.below_of(10) >= 8:
            return -1
        ns = self.below_sum(self.wait_sum[self.waits - 1])
        return above(self.wait_sum, 0, self.waits, ns)

    def chosen(self, op: int, blamed: int, reach: int) -> int:
        """The slot of an absence; -1: there is none."""
        if blamed >= 0 and self.of_tensor(START, blamed) != STAYS and self.below_of(10) < 4:
            s = self.first_slot[blamed + 1] - 1
            while s >= self.first_slot[blamed]:
                if self.slot_after[s] < op and self.gap[s] and self.of_slot(AWAY, s):
                    return s
                s -= 1
        first = self.issue_from[max(op - reach, -1) + 1]
        last = self.issue_from[min(op + reach // 4 + 2, self.ops + 1)]
        if last <= first:
            return -1
        s = self.issue_slot[first + self.below_of(last - first)]
        return s if self.of_slot(AWAY, s) else -1

    def same_slots(self, s: int) -> None:
        """List the slots of this number of the tensors in scope."""
        t = self.slot_tensor[s]
        self.own[0] = s
        self.owns = 1
        scope = self.arm % SCOPES
        if scope == ALONE or self.alike_at[t] < 0:
            return
        low = self.alike_from[t]
        high = self.alike_to[t]
        if scope == SOME:
            reach = 1 << self.below_of(3)
            low = max(low, self.alike_at[t] - reach)
            high = min(high, self.alike_at[t] + reach + 1)
        self.owns = 0
        window = s - self.first_slot[t]
        for k in range(low, high):
            again = self.first_slot[self.alike[k]] + window
            if again < self.first_slot[self.alike[k] + 1] and self.gap[again]:
                self.own[self.owns] = again
                self.owns += 1

    # -- what
    # ----------------------------------------------------------------------------------------------

    def draw(self) -> None:
        """Make a change; none if what was drawn cannot be changed."""
        self.arm = self.next_arm()
        kind = self.arm // SCOPES
        k = self.focus()
        k = -1 if k < 0 else self.wait[k]
        blamed = -1 if k < 0 else self.stall_cause[k]
        op = self.below_of(self.ops) if k < 0 else min(self.stall_op[k], self.ops - 1)
        reach = 2
        for _ in range(self.below_of(5)):
            reach *= 3
        if kind == SHIFT_ALL:
            self.shift_all(op, reach)
        elif kind == GIVE:
            self.give(op, -1)
        else:
            s = self.chosen(op, blamed, reach)
            if s >= 0:
                self.change(kind, s, op)
        self.settle()

    def change(self, kind: int, s: int, op: int) -> None:
        """Make a change of a kind to an absence and those alike."""
        if kind == DECISION:
            other = self.over(op)
            if other >= 0 and self.below_of(2):
                self.decide(other, s)
            else:
                self.decide(s, other)
            return
        if kind == EXCHANGE:
            self.exchange(s, op)
            return
        by = self.distance()
        self.same_slots(s)
        if kind == SHIFT:
            for k in range(self.owns):
                self.shift(self.own[k], by)
        elif kind == SAVED:
            at_end = self.below_of(2)
            for k in range(self.owns):
                self.shift_store(self.own[k], by, at_end)
        elif kind == TAKE:
            self.drop_own()
        else:
            self.change_tier(s)

    def next_arm(self) -> int:
        """A kind and a scope, by the even shares (1.5 times their sum, beside 1) or by what has
        paid.
        """
        total: int = 0
        for k in range(KINDS * SCOPES):
            total += self.paid[k]
        if total > 0 and self.below_of(2935) >= 1935:
            share: int = self.below_sum(total)
            k = 0
            while share >= self.paid[k]:
                share -= self.paid[k]
                k += 1
            return k
        kind = self.share[self.below_of(self.shares)]
        scope = self.below_of(10)
        return kind * SCOPES + (ALONE if scope < 6 else SOME if scope < 8 else ALL)

    def learn(self, gain: int, work: int) -> None:
        """Note what the last change saved, in parts of the makespan of which 2**30 are the whole,
        and the work of judging it.
        """
        k = self.arm
        self.gained[k] += gain - self.gained[k] // REMEMBERED
        self.spent[k] += work - self.spent[k] // REMEMBERED
        self.paid[k] = (self.gained[k] << 20) // (self.spent[k] + DAMPING * self.search[WHOLE_RUN])

    def over(self, op: int) -> int:
        """A slot around an op of a tensor that is drawn; -1 if those drawn have none."""
        if self.larges:
            for _ in range(DRAWS):
                s = self.around(self.large[self.below_of(self.larges)], op)
                if s >= 0:
                    return s
        return -1

    def around(self, t: int, op: int) -> int:
        """The slot of a tensor around an op; -1 where the search may not use it."""
        low = self.first_slot[t]
        high = self.first_slot[t + 1]
        while low < high:
            middle = (low + high) // 2
            if self.slot_before[middle] <= op:
                low = middle + 1
            else:
                high = middle
        if low < self.first_slot[t + 1] and self.slot_after[low] <= op and self.gap[low]:
            return low
        return -1

    def distance(self) -> int:
        """So many ops later: one, or up to 127; a little more often earlier."""
        far = 1
        if self.below_of(10) >= 4:
            far = 1 << self.below_of(7)
            far += self.below_of(far)
        return far if self.below_of(100) < 45 else -far

    def shift(self, s: int, by: int) -> None:
        """Let a return be issued so many ops later."""
        if self.of_slot(AWAY, s) and self.of_slot(RETURN, s) != UNSET:
            self.put_return(s, self.of_slot(RETURN, s) + by)

    def shift_all(self, op: int, reach: int) -> None:
        """Let all returns around an op be issued so many ops later."""
        by = self.distance()
        first = self.issue_from[max(op - reach, -1) + 1]
        last = self.issue_from[min(op + reach // 4 + 2, self.ops + 1)]
        for k in range(first, last):
            if self.issue_kind[k] == OF_RETURN:
                self.shift(self.issue_slot[k], by)

    def shift_store(self, s: int, by: int, at_end: int) -> None:
        """Let a store be issued so many ops later: before an absence or, ``at_end``, the one that
        saves for the end what the step has written.
        """
        if not self.of_slot(AWAY, s):
            return
        t = self.slot_tensor[s]
        saved = self.saved_at(t)
        if saved >= 0 and (at_end or self.starts_in(s)):
            self.put_tensor(SAVE, t, max(self.last_write[t], min(self.ops - 1, saved + by)))
        elif not self.starts_in(s):
            self.put_store(s, self.stored_at(s) + by)

    def drop_own(self) -> None:
        """Take the absences listed away: what started below starts up, with or without a copy
        below.
        """
        start = WITH_COPY if self.below_of(2) else AT_HOME
        for k in range(self.owns):
            s = self.own[k]
            t = self.slot_tensor[s]
            if not self.of_slot(AWAY, s):
                continue
            if s != self.first_slot[t]:
                self.put_slot(AWAY, s, 0)
            elif self.forced[t] < 0:
                self.put_slot(AWAY, s, 0)
                self.put_tensor(START, t, start)

    def change_tier(self, s: int) -> None:
        """Another tier below for those in scope that have the same: for all their absences, or for
        one that may return in time.
        """
        tier = self.tier_in(self.slot_tensor[s], s)
        others = 0
        for k in range(self.below_tiers):
            others += self.below_tier[k] != tier
        if others == 0:
            return
        at = self.below_of(others)
        k = 0
        while at > 0 or self.below_tier[k] == tier:
            at -= self.below_tier[k] != tier
            k += 1
        other = self.below_tier[k]
        one = self.below_of(2)
        times = self.times()
        for k in range(self.owns):
            s = self.own[k]
            t = self.slot_tensor[s]
            if self.forced[t] >= 0 or not self.of_slot(AWAY, s) or self.tier_in(t, s) != tier:
                continue
            if one:
                self.put_slot(TIER, s, UNSET if other == self.of_tensor(BELOW_IN, t) else other)
            else:
                self.put_below(t, other)
            if times and self.of_slot(RETURN, s) != UNSET:
                self.return_in_time(s, other, times)

    def times(self) -> int:
        """How many transfers are to fit in between the return and the use; 0: that is not what says
        when it returns.
        """
        drawn = self.below_of(5)
        return 0 if drawn < 2 else 1 << (drawn - 2)

    def return_in_time(self, s: int, tier: int, times: int) -> None:
        """Let a tensor return from a tier when so many transfers fit in before it is used, in a
        step as much longer than without waits as the present one is.
        """
        ns: int = times * self.up_ns[tier * self.tensors + self.slot_tensor[s]]
        horizon: int = self.op_start[self.ops]
        if self.cost_ns > horizon:
            ns = (ns * (horizon // max(1, self.cost_ns >> 10))) >> 10
        ns = self.op_start[self.slot_before[s]] - ns
        self.put_return(s, above(self.op_start, 0, self.ops, ns - 1) - 1)

    def exchange(self, s: int, op: int) -> None:
        """A tensor stays, and another one of about its size leaves: where most is held meanwhile,
        or near the stall.
        """
        until = self.slot_before[s]
        if self.of_slot(RETURN, s) != UNSET:
            until = self.of_slot(RETURN, s)
        t = self.slot_tensor[s]
        self.same_slots(s)
        self.drop_own()
        if self.changes:
            if self.below_of(10) < 7:
                op = self.fullest(self.slot_after[s], until)
            self.give(op, t)

    def fullest(self, after: int, before: int) -> int:
        """The op between two that starts when the device tier holds the most in the present run."""
        best = min(max(after + 1, 0), self.ops - 1)
        for i in range(best, min(before, self.ops)):
            if self.op_held[i] > self.op_held[best]:
                best = i
        return best

    def give(self, op: int, instead: int) -> None:
        """A tensor that lies in the device tier unused around an op leaves; ``instead`` of one of
        about its size if that is not -1.
        """
        if self.larges == 0:
            return
        for _ in range(DRAWS):
            t = self.large[self.below_of(self.larges)]
            if self.touched[t]:
                continue
            if instead >= 0 and not (
                self.size[instead] // 2 <= self.size[t] and self.size[t] <= 4 * self.size[instead]
            ):
                continue
            s = self.around(t, op)
            if s >= 0 and not self.of_slot(AWAY, s):
                self.give_all(s)
                return

    def give_all(self, s: int) -> None:
        """Let the tensors in scope be away in a slot of this number, if they have not changed."""
        least = self.below_of(4)
        most = 0 if least == 0 else 307 if least == 1 else 717 if least == 2 else 1024
        ahead = self.below_of(1024) * most >> 10
        times = self.times()
        k = self.below_of(self.below_tiers + 2)
        tier = self.below_tier[0] if k == 0 else self.idle if k == 1 else self.below_tier[k - 2]
        clean = self.below_of(10) < 7
        self.same_slots(s)
        for k in range(self.owns):
            s = self.own[k]
            if self.touched[self.slot_tensor[s]] or self.of_slot(AWAY, s):
                continue
            self.let_go(s, tier, ahead, clean)
            if times and self.of_slot(RETURN, s) != UNSET:
                self.return_in_time(s, self.tier_in(self.slot_tensor[s], s), times)

    def let_go(self, s: int, tier: int, ahead: int, clean: bool) -> None:
        """One more absence, whose return is ``ahead`` of 1,024 parts of the gap before its end.

        If ``clean`` a copy below at time 0 saves the store, where it may be there.
        """
        t = self.slot_tensor[s]
        if self.of_tensor(START, t) == STAYS:
            self.begin_choice(t, tier)
        free = self.persistent[t] and self.forced[t] < 0
        first = s == self.first_slot[t]
        written = self.last_write[t] >= 0
        start = self.of_tensor(START, t)
        if free and first and (clean or not written):
            self.put_slot(AWAY, self.first_slot[t + 1] - 1, 0)
            self.put_tensor(START, t, STARTS_BELOW)
        elif free and first:
            self.put_tensor(START, t, AT_HOME)
        elif start == STARTS_BELOW and self.slot_before[s] == self.ops:
            self.put_slot(AWAY, self.first_slot[t], 0)
            self.put_tensor(START, t, WITH_COPY if clean or not written else AT_HOME)
        elif free and start == AT_HOME and self.gap_first[s] and clean:
            self.put_tensor(START, t, WITH_COPY)
        back = UNSET
        if self.gap_returns[s]:
            last = self.slot_before[s] - 1
            span: int = last - self.slot_after[s]
            back = last - (ahead * span >> 10)
        self.put_away(s, back)
        if back != UNSET:
            self.put_return(s, back)
