"""The choices of a search as flat integers, and the one place in which they become moves, one tensor
at a time.

A tensor's life is a row of slots: the time before its first use, between two uses, and after the
last one. What it does there is a cell for each slot and each of :data:`AWAY` to :data:`TIER`; what
it does altogether is a cell for each of :data:`START` to :data:`SAVE_TURN`. They say what
:class:`~hosim.planner.hyperoffload.tensor_choices.choices.TensorChoice` says.

A tensor leaves by a store, if no copy below has its present contents, and a detach, and comes back
by a prefetch. Each goes to the nearest place that is safe on several streams
(:mod:`hosim.analysis.happens_before`); an absence without one is left out. Plans and the table that
local search judges by are both made of these moves.

The files of this folder become one extension (``hatch_build.py``), with the types of
``compiled_search.pxd``; without a compiler they run as they are, with the same results. Each class
stands on the one before.
"""

from __future__ import annotations

from typing import Any

from hosim.engine.cells import Flags, Int, Ints, Longs, made, state

UNSET = -(1 << 30)
"""A cell that leaves it to the rule: no tier of its own, or no return at all."""

AWAY, RETURN, STORE, LEAVE, TURN, STORE_TURN, TIER, FIELDS = 0, 1, 2, 3, 4, 5, 6, 7
"""Cells of a slot: whether the tensor is away, and after which op it returns, is stored and leaves;
its place in the queue of those that return, and that are stored, after the same op; its tier.
"""

START, BELOW_IN, SAVE, SAVE_TURN, WHOLE = 0, 1, 2, 3, 4
"""Cells of a tensor: how it starts, the tier below, after which op what the step has written is
stored for the end, and its place in that queue.
"""

STAYS, AT_HOME, WITH_COPY, STARTS_BELOW = -1, 0, 1, 2
"""How a tensor starts; ``STAYS``: it has no choice."""

IS_STORE, IS_DETACH, IS_PREFETCH = 0, 1, 2
"""The moves of one place in order."""

NO_OP = 1 << 30
"""Later than any op: there is none."""


class LoweredChoices:
    """The cells of a problem's choices, and the moves that follow from them.

    Slots of a tensor stand together, from ``first_slot`` on: between the ops ``slot_after`` and
    ``slot_before``, the use at whose end reads or writes it. A move has the tiers that it leads from
    and to (-1: a detach), the op at whose end it is issued, and its order among all that are issued
    there, of which the remainder by the number of tensors is the tensor.
    """

    ops: Int
    tensors: Int
    streams: Int
    tiers: Int
    device: Int
    slots: Int
    first_slot: Ints
    slot_after: Ints
    slot_before: Ints
    slot_reads: Flags
    slot_writes: Flags
    last_write: Ints
    survives: Flags
    forced: Ints
    home_mask: Ints
    queue_from: Ints
    queue: Ints
    stream_of: Ints
    place: Ints
    clock: Ints

    cells: Ints = state("7*slots+4*tensors", UNSET)
    follow: Ints = made("most_uses+5")
    move_source: Ints = made("most_moves")
    move_target: Ints = made("most_moves")
    move_at: Ints = made("most_moves")
    move_order: Longs = made("most_moves")
    mask: Ints = made("tensors")

    def __init__(self, cells: Any) -> None:
        for name in LoweredChoices.__annotations__:
            setattr(self, name, cells[name])
        self.moves = 0

    def of_slot(self, field: int, s: int) -> int:
        """A cell of a slot."""
        return self.cells[field * self.slots + s]

    def of_tensor(self, field: int, t: int) -> int:
        """A cell of a tensor."""
        return self.cells[FIELDS * self.slots + field * self.tensors + t]

    def list_all(self) -> None:
        """List the moves of all tensors, and note in ``mask`` where they are at time 0."""
        self.moves = 0
        for t in range(self.tensors):
            self.list_moves(t)
            self.mask[t] = self.initial

    def list_moves(self, t: int) -> None:
        """List the moves of a tensor behind those listed, by place.

        ``initial`` is the tiers that have a copy at time 0, a bit each, and ``copied`` how many of
        the moves are copies.
        """
        self.first = self.moves
        self.copied = 0
        self.initial = self.initial_of(t)
        if self.of_tensor(START, t) != STAYS:
            self.walk(t)

    def initial_of(self, t: int) -> int:
        """The tiers that have a copy of a tensor at time 0."""
        start = self.of_tensor(START, t)
        if self.home_mask[t] == 0 or start <= AT_HOME or self.forced[t] >= 0:
            return self.home_mask[t]
        found = 1 << self.of_tensor(BELOW_IN, t)
        if self.last_write[t] < 0:
            for s in range(self.first_slot[t], self.first_slot[t + 1]):
                if self.of_slot(TIER, s) != UNSET:
                    found |= 1 << self.of_slot(TIER, s)
        if start == WITH_COPY:
            found |= 1 << self.device
        return found

    def walk(self, t: int) -> None:
        """List the moves of a tensor from slot to slot: absences, and after the last write the copy
        that is to be valid again at the end of the step.
        """
        first = self.first_slot[t]
        last = self.first_slot[t + 1] - 1
        tier = self.forced[t] if self.forced[t] >= 0 else self.of_tensor(BELOW_IN, t)
        self.here = self.initial >> self.device & 1
        self.returns = self.here
        self.below = self.initial & ~(1 << self.device)
        self.wrote = -1
        self.last = -1
        self.awaits = -1
        self.saved = -1
        self.served = self.ops
        lies_below = self.below >> tier & 1
        starts_below = lies_below and not self.here
        kept_below = lies_below and self.survives[t]
        written = self.last_write[t] if self.last_write[t] >= 0 else self.ops
        if last > first and (starts_below or self.of_slot(AWAY, first)):
            store = min(self.position(STORE, first, -1), self.slot_before[first] - 1)
            if store >= 0 and not self.ended_by(store, self.slot_before[first]):
                store = -1
            self.leave(t, first, store, self.position(LEAVE, first, store), self.tier_in(t, first))
        saved = written
        if self.of_tensor(SAVE, t) != UNSET:
            saved = max(written, self.of_tensor(SAVE, t))
        for s in range(first + 1, last + 1):
            u = self.slot_after[s]
            if self.slot_writes[s - 1]:
                self.wrote = u
                self.here = 1
                self.below = 0
            leaves = self.of_slot(AWAY, s) or (kept_below and starts_below and s == last)
            if not leaves and (not kept_below or u < written):
                continue
            store = self.position(STORE, s, u)
            release = self.position(LEAVE, s, max(u, store))
            if leaves and saved > release and release >= written:
                if saved < self.slot_before[s] and self.of_slot(LEAVE, s) == UNSET:
                    release = saved
                else:
                    saved = release
            if kept_below and written <= u and u <= saved and saved < self.slot_before[s]:
                self.write_back(t, tier, saved)
            if leaves:
                home = tier if kept_below and u >= written else self.tier_in(t, s)
                self.leave(t, s, store, release, home)

    def position(self, field: int, s: int, otherwise: int) -> int:
        """After which op something happens in a slot."""
        return otherwise if self.of_slot(field, s) == UNSET else self.of_slot(field, s)

    def tier_in(self, t: int, s: int) -> int:
        """The tier below that a tensor goes to in a slot."""
        if self.forced[t] >= 0:
            return self.forced[t]
        if self.of_slot(TIER, s) != UNSET:
            return self.of_slot(TIER, s)
        return self.of_tensor(BELOW_IN, t)

    def leave(self, t: int, s: int, store: int, release: int, tier: int) -> None:
        """A store if one is needed, a detach, and a prefetch if it returns; nothing where no place
        for them is safe.
        """
        before = self.slot_before[s]
        read = before < self.ops and self.slot_reads[s]
        needed = read or (before == self.ops and self.survives[t])
        self.last = -1
        if before == self.ops and not needed:
            return  # it dies there by itself
        if self.here and not self.release(t, s, store, release, tier, needed):
            return
        if read or (before == self.ops and self.returns):
            back = self.position(RETURN, s, self.slot_after[s])
            source = tier if self.below >> tier & 1 else self.lowest(self.below)
            at = self.last_before(self.last, min(back, before - 1))
            self.add(IS_PREFETCH, t, s, source, self.device, at)
            self.here = 1
        if read:
            self.awaits = before

    def release(self, t: int, s: int, store: int, wanted: int, tier: int, needed: int) -> int:
        """List a store if one is needed and a detach; whether there are safe places for them."""
        before = self.slot_before[s]
        at = -1
        stores = needed and self.below == 0
        if stores:
            self.follow[0] = self.wrote
            self.follow[1] = self.last
            self.followed = 2
            at = self.first_after(store)
        self.follow_users(t, s)
        release = self.first_after(wanted)
        if at == NO_OP or release >= before:
            return 0
        if stores:
            if not self.ended_by(at, release):
                at = wanted
            self.follow[self.followed] = at
            self.followed += 1
            release = self.first_after(wanted)
        if release >= before or not (needed or self.ended_by(release, before)):
            return 0  # if it is not needed, what overwrites it might come first
        if stores:
            self.add(IS_STORE, t, s, self.device, tier, at)
            self.below = 1 << tier
        self.add(IS_DETACH, t, s, self.device, -1, release)
        self.last = release
        self.here = 0
        return 1

    def follow_users(self, t: int, s: int) -> None:
        """What a tensor leaves after: the last of its users before a slot, on each stream, the move
        before, and the store that saves for the end.
        """
        self.follow[0] = self.last
        self.follow[1] = self.saved
        self.followed = 2
        since = max(self.wrote, self.awaits)
        k = s
        while k > self.first_slot[t] and (k == s or self.streams > 1):
            if self.streams > 1 and self.slot_after[k] < since:
                return
            self.follow[self.followed] = self.slot_after[k]
            self.followed += 1
            k -= 1

    def write_back(self, t: int, tier: int, store: int) -> None:
        """A store after the last write, if the tier has no valid copy."""
        if self.below >> tier & 1 or not (self.here or self.below):
            return
        self.followed = 0
        waited = False
        if self.last_write[t] >= 0:
            self.follow[0] = self.last_write[t]
            self.followed = 1
            waited = self.served < self.ops and self.ended_by(self.served, self.last_write[t])
        if not waited:
            self.follow[self.followed] = self.last
            self.followed += 1
        at = self.first_after(store)
        if at == NO_OP:
            at = self.first_after(-1)
        if at != NO_OP:
            source = self.lowest(self.below) if self.below else self.device
            self.add(IS_STORE, t, -1, source, tier, at)
            self.below |= 1 << tier
            self.saved = at

    def lowest(self, mask: int) -> int:
        """The first tier of a mask, which has one."""
        r = 0
        while r < self.tiers and not mask >> r & 1:
            r += 1
        return r

    def add(self, kind: int, t: int, s: int, source: int, target: int, at: int) -> None:
        """List a move in a slot (-1: what is saved for the end)."""
        if kind == IS_PREFETCH:
            turn = self.position(TURN, s, 2 * self.slot_before[s])
        elif s < 0:
            turn = self.of_tensor(SAVE_TURN, t)
            turn = 2 * at if turn == UNSET else turn
        else:
            turn = 2 * max(self.slot_after[s], at)
            if kind == IS_STORE:
                turn = self.position(STORE_TURN, s, turn)
        order: int = (2 * kind + 1) * (4 * self.ops + 8) + turn
        order = order * self.tensors + t
        k = self.moves
        while k > self.first and (
            self.move_at[k - 1] > at
            or (self.move_at[k - 1] == at and self.move_order[k - 1] > order)
        ):
            self.move_source[k] = self.move_source[k - 1]
            self.move_target[k] = self.move_target[k - 1]
            self.move_at[k] = self.move_at[k - 1]
            self.move_order[k] = self.move_order[k - 1]
            k -= 1
        self.move_source[k] = source
        self.move_target[k] = target
        self.move_at[k] = at
        self.move_order[k] = order
        self.moves += 1
        self.last = at
        self.served = self.ops if s < 0 else self.slot_before[s]
        self.copied += target >= 0

    # -- what has surely ended when an op has (hosim.analysis.happens_before)
    # ----------------------------------------------------------------------------------------------

    def ended_by(self, earlier: int, op: int) -> bool:
        """Whether an op has surely ended when another has; -1 precedes all."""
        if earlier < 0 or earlier == op:
            return True
        if op < 0:
            return False
        if self.streams == 1:
            return earlier < op
        return self.clock[op * self.streams + self.stream_of[earlier]] > self.place[earlier]

    def first_after(self, wanted: int) -> int:
        """The first op listed at ``wanted`` or later by whose end all of ``follow`` have surely
        ended.
        """
        best = wanted
        known = True
        for f in range(self.followed):
            if self.streams == 1:
                best = max(best, self.follow[f])
            elif not self.ended_by(self.follow[f], wanted):
                known = False
        if known:
            return best
        best = NO_OP
        for q in range(self.streams):
            k = self.first_known(q, -1, wanted, self.queue_from[q])
            for f in range(self.followed):
                if self.follow[f] >= 0:
                    k = self.first_known(q, self.follow[f], 0, k)
            if k < self.queue_from[q + 1] and self.queue[k] < best:
                best = self.queue[k]
        return best

    def first_known(self, q: int, op: int, wanted: int, low: int) -> int:
        """The first place in a stream's queue, from ``low`` on, of an op by whose end ``op`` has
        surely ended; for -1 of one that is listed at ``wanted`` or later.
        """
        high = self.queue_from[q + 1]
        while low < high:
            middle = (low + high) // 2
            if op < 0:
                early = self.queue[middle] < wanted
            else:
                early = not self.ended_by(op, self.queue[middle])
            if early:
                low = middle + 1
            else:
                high = middle
        return low

    def last_before(self, op: int, wanted: int) -> int:
        """The last op listed at ``wanted`` or earlier by whose end ``op`` has surely ended; ``op``
        itself if there is none.
        """
        if op < 0 or self.streams == 1:
            return max(op, wanted)
        best = op
        for q in range(self.streams):
            first = self.first_known(q, op, 0, self.queue_from[q])
            last = self.first_known(q, -1, wanted + 1, self.queue_from[q]) - 1
            if first <= last:
                best = max(best, self.queue[last])
        return best
