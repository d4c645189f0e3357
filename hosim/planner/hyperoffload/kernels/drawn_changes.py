"""Small changes of choices, drawn at random: what a search may try next.

A change concerns a tensor or two: a prefetch issued elsewhere in its gap; a store issued earlier or
later; either of them elsewhere among those that are issued after the same op; an absence dropped,
or a gap used that was not; another start, or another tier below, for one absence or for all.
"""

from __future__ import annotations

from hosim.planner.hyperoffload.kernels.judged_choices import JudgedChoices
from hosim.planner.hyperoffload.kernels.lowered_choices import (
    AT_HOME,
    AWAY,
    BELOW_IN,
    FIELDS,
    LEAVE,
    RETURN,
    SAVE,
    SAVE_TURN,
    START,
    STARTS_BELOW,
    STAYS,
    STORE,
    STORE_TURN,
    TIER,
    TURN,
    UNSET,
    WITH_COPY,
)

SEED = 0
"""The place in the record of a search of what it draws from."""

OF_RETURN, OF_STORE, OF_SAVE = 0, 1, 2
"""What is issued somewhere: a return, a store before an absence, and one that saves for the end."""

DROPPED, AWAY_AGAIN, BELOW_AT_FIRST, HOME_AT_FIRST, COPY_AT_BOTH, HOME_AT_BOTH, STARTED, CLEARED, MOVED = (
    0, 1, 2, 3, 4, 5, 6, 7, 8,
)  # fmt: skip
"""Other decisions about a tensor."""


class DrawnChanges(JudgedChoices):
    """Draws changes, and makes them in the cells.

    ``options`` are what one is drawn from: each three numbers, a cell's or a decision's, and the
    value or the slot and the op after which it returns.
    """

    # -- what is drawn (xorshift, Marsaglia 2003)
    # ----------------------------------------------------------------------------------------------

    def bits(self) -> int:
        """The next 32 random bits."""
        x: int = self.search[SEED]
        x ^= (x << 13) & 0xFFFFFFFF
        x ^= x >> 17
        x ^= (x << 5) & 0xFFFFFFFF
        self.search[SEED] = x
        return x

    def below_of(self, count: int) -> int:
        """A random number below a count."""
        x: int = self.bits() * count
        return x >> 32

    def below_sum(self, total: int) -> int:
        """A random number below one of up to 62 bits."""
        x: int = self.bits() >> 1
        x = (x << 31) | (self.bits() >> 1)
        return x % total

    def step_aside(self) -> int:
        """A few ops earlier or later."""
        by = self.below_of(3) + 1
        return by if self.below_of(2) else -by

    # -- changes of one decision
    # ----------------------------------------------------------------------------------------------

    def starts_in(self, s: int) -> bool:
        """Whether a slot is the first one of a tensor that starts below: no store comes before."""
        t = self.slot_tensor[s]
        return s == self.first_slot[t] and self.of_tensor(START, t) == STARTS_BELOW

    def stored_at(self, s: int) -> int:
        """After which op a tensor is stored before it is away in a slot."""
        return self.position(STORE, s, self.slot_after[s])

    def saved_at(self, t: int) -> int:
        """After which op what the step has written of a tensor is stored where it is to be at the
        end; -1: it need not.
        """
        if self.last_write[t] < 0 or not self.survives[t]:
            return -1
        if self.forced[t] < 0 and self.of_tensor(START, t) == AT_HOME:
            return -1
        saved = self.of_tensor(SAVE, t)
        return self.last_write[t] if saved == UNSET else saved

    def put_return(self, s: int, position: int) -> None:
        """Let a return be issued after the op of its gap that is nearest to ``position``."""
        self.put_slot(RETURN, s, max(self.slot_after[s], min(self.slot_before[s] - 1, position)))

    def put_store(self, s: int, position: int) -> None:
        """Let a store be issued after the op that is nearest to ``position``, of those after which
        it may be.
        """
        self.put_slot(STORE, s, max(self.gap_written[s], min(self.slot_before[s] - 1, position)))

    def decide(self, s: int, other: int) -> None:
        """Change one decision of the tensor of a slot, most of all there; in one of ten it changes
        places with that of ``other`` (-1: with none).
        """
        what = self.below_of(100)
        t = self.slot_tensor[s]
        away = self.of_slot(AWAY, s)
        if what < 10 and other >= 0:
            self.change_places(s, other)
            return
        if away and self.below_of(100) < 15:
            self.options = 0
            self.list_elsewhere(t, s)
            if self.options:
                k = 3 * self.below_of(self.options)
                self.put(t, self.option[k], self.option[k + 1])
                return
        if away and what < 70:
            back = self.of_slot(RETURN, s)
            if back != UNSET and what < 50:
                if self.below_of(2):
                    self.put_return(s, back + self.step_aside())
                else:
                    span = self.slot_before[s] - self.slot_after[s]
                    self.put_return(s, self.slot_after[s] + self.below_of(span))
                return
            if not self.starts_in(s):
                if self.below_of(2):
                    self.put_store(s, self.stored_at(s) + self.step_aside())
                else:
                    span = self.slot_before[s] - self.gap_written[s]
                    self.put_store(s, self.gap_written[s] + self.below_of(span))
                return
        self.options = 0
        if self.below_of(2):
            self.list_decisions(t, s)
        else:
            for again in range(self.first_slot[t], self.first_slot[t + 1]):
                if self.gap[again]:
                    self.list_decisions(t, again)
        self.list_starts(t)
        if self.options:
            k = 3 * self.below_of(self.options)
            self.take_decision(t, self.option[k], self.option[k + 1], self.option[k + 2])

    def offer(self, kind: int, where: int, value: int) -> None:
        """List something to be drawn."""
        k = 3 * self.options
        self.option[k] = kind
        self.option[k + 1] = where
        self.option[k + 2] = value
        self.options += 1

    def offer_around(self, cell: int, at: int, first: int, last: int) -> None:
        """List the ops around one, from a first to a last one."""
        for op in range(max(first, at - 1), min(last, at + 2) + 1):
            if op != at:
                self.offer(cell, op, 0)

    def list_elsewhere(self, t: int, s: int) -> None:
        """List the return or the store of an absence elsewhere among those that are issued after
        the same op; a later op after which it leaves, on several streams; the absence in another
        tier; and what is saved for the end elsewhere.
        """
        if self.of_slot(RETURN, s) != UNSET:
            own = self.position(TURN, s, 2 * self.slot_before[s])
            self.list_turns(t, TURN * self.slots + s, own, self.of_slot(RETURN, s), True)
        if not self.starts_in(s):
            own = self.position(STORE_TURN, s, 2 * self.slot_after[s])
            self.list_turns(t, STORE_TURN * self.slots + s, own, self.stored_at(s), False)
            if self.streams > 1:
                after = self.slot_after[s]
                now = self.position(LEAVE, s, after)
                cell = LEAVE * self.slots + s
                if now != after:
                    self.offer(cell, UNSET, 0)
                self.offer_around(cell, now, after + 1, self.slot_before[s] - 1)
                if now != self.slot_before[s] - 1:
                    self.offer(cell, self.slot_before[s] - 1, 0)
        if self.forced[t] < 0 and self.absences(t) > 1:
            tier = self.tier_in(t, s)
            for k in range(self.below_tiers):
                r = self.below_tier[k]
                if r != tier:
                    self.offer(
                        TIER * self.slots + s, UNSET if r == self.of_tensor(BELOW_IN, t) else r, 0
                    )
        at = self.saved_at(t)
        if at >= 0:
            cell = FIELDS * self.slots + SAVE * self.tensors + t
            first = self.last_write[t]
            last = self.ops - 1
            self.offer_around(cell, at, first, last)
            if at != first:
                self.offer(cell, first, 0)
            if at != last:
                self.offer(cell, last, 0)
                self.offer(cell, (at + last + 1) // 2, 0)
            own = self.of_tensor(SAVE_TURN, t)
            own = 2 * at if own == UNSET else own
            self.list_turns(t, FIELDS * self.slots + SAVE_TURN * self.tensors + t, own, at, False)

    def list_turns(self, t: int, cell: int, own: int, at: int, returns: bool) -> None:
        """List turns before each of those ahead in the queue after an op, and behind each of the
        others; of a long queue those that come first.
        """
        for k in range(self.issue_from[at + 1], self.issue_from[at + 2]):
            other = self.slot_tensor[self.issue_slot[k]]
            kind = self.issue_kind[k]
            if other == t or (kind == OF_RETURN) != returns or self.options >= 12:
                continue
            s = self.issue_slot[k]
            if kind == OF_RETURN:
                turn = self.position(TURN, s, 2 * self.slot_before[s])
            elif kind == OF_STORE:
                turn = self.position(STORE_TURN, s, 2 * self.slot_after[s])
            else:
                turn = self.of_tensor(SAVE_TURN, other)
                turn = 2 * at if turn == UNSET else turn
            turn += -1 if turn < own or (turn == own and other < t) else 1
            if turn != own:
                self.offer(cell, turn, 0)

    def change_places(self, one: int, other: int) -> None:
        """Of two slots the one in which its tensor is away is not used any more, and the other one
        is.
        """
        if self.of_tensor(START, self.slot_tensor[one]) == STAYS:
            self.change_from(other, one)
        else:
            self.change_from(one, other)

    def change_from(self, one: int, other: int) -> None:
        """The tensor of a slot is there, and that of another slot is away."""
        t = self.slot_tensor[one]
        u = self.slot_tensor[other]
        if t == u or self.forced[t] >= 0 or self.of_tensor(START, t) == STAYS:
            return
        begins = other == self.first_slot[u] and self.persistent[u]
        back = UNSET
        if self.gap_returns[other]:
            span = self.slot_before[other] - self.slot_after[other]
            back = self.slot_after[other] + self.below_of(span)
        if self.of_tensor(START, u) == STAYS:
            self.begin_choice(u, self.of_tensor(BELOW_IN, t))
            self.put_tensor(START, u, STARTS_BELOW if begins else AT_HOME)
            self.put_away(other, back)
        elif not self.of_slot(AWAY, other) and not (
            begins
            or (self.of_tensor(START, u) == STARTS_BELOW and self.slot_before[other] == self.ops)
        ):
            self.put_away(other, back)
        if self.of_slot(AWAY, one) and self.absences(t) > 1 and one != self.first_slot[t]:
            self.put_slot(AWAY, one, 0)
        else:
            self.clear(t)

    def begin_choice(self, t: int, tier: int) -> None:
        """Let a tensor that has no choice have one."""
        self.put_tensor(START, t, AT_HOME)
        self.put_tensor(BELOW_IN, t, self.forced[t] if self.forced[t] >= 0 else tier)

    def put_away(self, s: int, back: int) -> None:
        """Let a tensor be away in a slot, and return."""
        self.put_slot(AWAY, s, 1)
        self.put_slot(RETURN, s, back)

    def list_decisions(self, t: int, s: int) -> None:
        """List other decisions about a slot."""
        start = self.of_tensor(START, t)
        first = s == self.first_slot[t]
        if self.forced[t] < 0 and self.below_tiers == 0:
            return
        if self.of_slot(AWAY, s):
            if self.forced[t] < 0 or not first:
                self.offer(DROPPED, s, 0)
        elif first and self.forced[t] < 0:
            if self.persistent[t]:
                self.list_returns(BELOW_AT_FIRST, s)
            if not self.persistent[t] or self.last_write[t] >= 0:
                self.list_returns(HOME_AT_FIRST, s)
        elif start == STARTS_BELOW and self.slot_before[s] == self.ops:
            self.list_returns(COPY_AT_BOTH, s)
            if self.last_write[t] >= 0:
                self.list_returns(HOME_AT_BOTH, s)
        else:
            self.list_returns(AWAY_AGAIN, s)

    def list_returns(self, kind: int, s: int) -> None:
        """List a new absence with the positions at which it might return: late, in the middle, at
        once.
        """
        if not self.gap_returns[s]:
            self.offer(kind, s, UNSET)
            return
        after = self.slot_after[s]
        last = self.slot_before[s] - 1
        self.offer(kind, s, last)
        if last - 1 > after:
            self.offer(kind, s, last - 1)
        if last - 2 > after:
            self.offer(kind, s, last - 2)
        if (after + last + 1) // 2 > after and (after + last + 1) // 2 < last - 2:
            self.offer(kind, s, (after + last + 1) // 2)
        if after < last:
            self.offer(kind, s, after)

    def list_starts(self, t: int) -> None:
        """List other starts and tiers of a tensor."""
        start = self.of_tensor(START, t)
        if start == STAYS or self.forced[t] >= 0:
            return
        if self.persistent[t] and self.home_mask[t]:
            if start != AT_HOME:
                self.offer(STARTED, AT_HOME, 0)
            if start != WITH_COPY:
                self.offer(STARTED, WITH_COPY, 0)
        if start == STARTS_BELOW:
            self.offer(CLEARED, 0, 0)
        for k in range(self.below_tiers):
            if self.below_tier[k] != self.of_tensor(BELOW_IN, t):
                self.offer(MOVED, self.below_tier[k], 0)

    def take_decision(self, t: int, kind: int, where: int, back: int) -> None:
        """Make a decision of those listed."""
        first = self.first_slot[t]
        last = self.first_slot[t + 1] - 1
        if kind == CLEARED:
            self.clear(t)
            return
        if kind == MOVED:
            self.put_below(t, where)
            return
        if kind == STARTED:
            self.put_tensor(START, t, where)
            return
        if kind == DROPPED:
            self.put_slot(AWAY, where, 0)
            if where == first:
                self.put_tensor(START, t, AT_HOME)
            return
        if self.of_tensor(START, t) == STAYS:
            self.begin_choice(t, self.below_tier[0])
        if kind == BELOW_AT_FIRST:
            self.put_slot(AWAY, last, 0)
            self.put_tensor(START, t, STARTS_BELOW)
        elif kind == HOME_AT_FIRST:
            self.put_tensor(START, t, AT_HOME)
        elif kind != AWAY_AGAIN:
            self.put_slot(AWAY, first, 0)
            self.put_tensor(START, t, WITH_COPY if kind == COPY_AT_BOTH else AT_HOME)
        self.put_away(where, back)
