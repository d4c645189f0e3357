"""Changed choices in the loop's table: judged by a run from the last snapshot before they begin to
matter, and taken or taken back.
"""

from __future__ import annotations

from typing import Any

from hosim.engine import ENDED, LATE, MOVES, NEVER, ROW, SAME, STOPPED, STUCK
from hosim.engine.cells import Flags, Int, Ints, Longs, made, state
from hosim.planner.hyperoffload.kernels.lowered_choices import (
    AWAY,
    BELOW_IN,
    FIELDS,
    START,
    STARTS_BELOW,
    STAYS,
    TIER,
    UNSET,
    WHOLE,
    LoweredChoices,
)

OF_A_JUDGEMENT, OF_A_CHANGE, PUT_BACK = 14, 4, 600
"""The work of a judgement beside its instants, and for each tensor that changes; and the ops whose
state is put back with a unit of work.
"""


class JudgedChoices(LoweredChoices):
    """The present choices, whose run is kept as snapshots, and changes of them.

    ``gap_written`` is the op that wrote what a slot holds (-1: none), where the search may use the
    slot (``gap``). A cost is ops that never start (``left``; 0: it fits), the makespan (``ns``) and the bytes moved;
    ``cost_`` is the present one's and ``found_`` the last judgement's. ``table`` keeps and puts back
    the states of a run of ``loop``, and answers what that asks for.
    """

    # -- of the loop: the state of a run, and what it tells
    # ----------------------------------------------------------------------------------------------
    scalars: Longs
    done: Ints
    free_since: Longs
    held: Longs
    part: Longs
    changed: Flags
    kept_time: Longs
    op_idle: Longs
    op_cause: Ints
    op_held: Longs

    # -- the table of moves
    # ----------------------------------------------------------------------------------------------
    move_from: Ints
    channel_between: Ints
    flow_class: Ints
    flow_high: Longs
    flow_low: Longs
    size: Longs
    rows: Longs = made("36*most_uses+72")

    # -- where a search may change them
    # ----------------------------------------------------------------------------------------------
    slot_tensor: Ints
    gap: Flags
    gap_written: Ints
    gap_returns: Flags
    gap_first: Flags
    persistent: Flags
    up_ns: Longs
    op_start: Longs
    below_tiers: Int
    below_tier: Ints
    candidates: Int
    candidate: Ints
    larges: Int
    large: Ints
    alike: Ints
    alike_from: Ints
    alike_to: Ints
    alike_at: Ints
    shares: Int
    share: Ints

    # -- what is changed, and what it was; what the table has of each tensor
    # ----------------------------------------------------------------------------------------------
    log_cell: Ints = made("14*slots+8*tensors")
    log_value: Ints = made("14*slots+8*tensors")
    touched: Flags = made("tensors")
    touched_tensor: Ints = made("tensors")
    mask_before: Ints = made("tensors")
    copies: Ints = made("tensors")
    lowered: Flags = made("tensors")

    # -- where ops of the present run wait, and what is issued after each op
    # ----------------------------------------------------------------------------------------------
    stall_op: Ints = made("ops+1")
    stall_ns: Longs = made("ops+1")
    stall_cause: Ints = made("ops+1")
    wait: Ints = made("ops+1")
    wait_sum: Longs = made("ops+1")
    issue_from: Ints = made("ops+3")
    issue_slot: Ints = made("2*slots+tensors")
    issue_kind: Flags = made("2*slots+tensors")
    busy: Longs = made("tiers")
    own: Ints = made("tensors")
    option: Ints = made("48*most_uses+4*tiers+96")

    # -- the record of a search: its best choices, and what has paid
    # ----------------------------------------------------------------------------------------------
    best_cells: Ints = state("7*slots+4*tensors", UNSET)
    differs: Flags = state("tensors")
    differing: Ints = state("tensors")
    gained: Longs = state("24")
    spent: Longs = state("24")
    paid: Longs = state("24")
    search: Longs = state("12")

    def __init__(self, cells: Any, loop: Any, table: Any, stride: int) -> None:
        LoweredChoices.__init__(self, cells)
        for name in JudgedChoices.__annotations__:
            setattr(self, name, cells[name])
        self.loop = loop
        self.table = table
        self.stride = stride
        self.start_state = table.kept()
        self.kept_states: list[Any] = []
        self.work = 0
        self.logged = 0
        self.changes = 0
        self.cost_left = self.ops + 1
        self.cost_ns = 0
        self.cost_bytes = 0
        self.mask[:] = self.home_mask

    def cost(self) -> tuple[int, int, int]:
        """The cost of the present choices."""
        return self.cost_left, self.cost_ns, self.cost_bytes

    def found(self) -> tuple[int, int, int]:
        """The cost that was judged last."""
        return self.found_left, self.found_ns, self.found_bytes

    # -- changes
    # ----------------------------------------------------------------------------------------------

    def touch(self, t: int) -> None:
        """A tensor's choice changes."""
        if not self.touched[t]:
            self.touched[t] = 1
            self.touched_tensor[self.changes] = t
            self.changes += 1

    def put(self, t: int, cell: int, value: int) -> None:
        """Let a cell of a tensor have a value."""
        if self.cells[cell] != value and self.logged < 14 * self.slots + 8 * self.tensors:
            self.log_cell[self.logged] = cell
            self.log_value[self.logged] = self.cells[cell]
            self.logged += 1
            self.cells[cell] = value
            self.touch(t)

    def put_slot(self, field: int, s: int, value: int) -> None:
        """Let a cell of a slot have a value."""
        self.put(self.slot_tensor[s], field * self.slots + s, value)

    def put_tensor(self, field: int, t: int, value: int) -> None:
        """Let a cell of a tensor have a value."""
        self.put(t, FIELDS * self.slots + field * self.tensors + t, value)

    def clear(self, t: int) -> None:
        """Let a tensor have no choice."""
        for s in range(self.first_slot[t], self.first_slot[t + 1]):
            self.put_slot(AWAY, s, 0)
            for field in range(AWAY + 1, FIELDS):
                self.put_slot(field, s, UNSET)
        self.put_tensor(START, t, STAYS)
        for field in range(START + 1, WHOLE):
            self.put_tensor(field, t, UNSET)

    def put_below(self, t: int, tier: int) -> None:
        """Let all absences of a tensor be in a tier."""
        self.put_tensor(BELOW_IN, t, tier)
        for s in range(self.first_slot[t], self.first_slot[t + 1]):
            self.put_slot(TIER, s, UNSET)

    def absences(self, t: int) -> int:
        """How many times a tensor is away."""
        count = 0
        for s in range(self.first_slot[t], self.first_slot[t + 1]):
            count += self.of_slot(AWAY, s)
        return count

    def settle(self) -> None:
        """A choice that moves nothing is none."""
        for j in range(self.changes):
            t = self.touched_tensor[j]
            moves = self.forced[t] >= 0 or self.of_tensor(START, t) in (STAYS, STARTS_BELOW)
            if not moves and self.absences(t) == 0:
                self.clear(t)

    def end_changes(self) -> None:
        """What has changed is how it is now."""
        for j in range(self.changes):
            self.touched[self.touched_tensor[j]] = 0
        self.changes = 0
        self.inserted = 0
        self.logged = 0

    # -- judgements
    # ----------------------------------------------------------------------------------------------

    def insert(self, judged: int) -> bool:
        """Put what has changed into the table; whether it has places for it.

        ``judged``: it is there for a while.
        """
        self.loop.first_changed = self.loop.snapshots
        self.loop.last_changed = -1
        self.found_bytes = self.cost_bytes
        self.inserted = 0
        for j in range(self.changes):
            t = self.touched_tensor[j]
            count = self.lower(t)
            if count < 0:
                return False
            self.mask_before[j] = self.mask[t]
            self.found_bytes += (self.copied - self.copies[t]) * self.size[t]
            self.put_rows_in(t, count, judged)
            if self.mask_before[j] != self.initial:
                self.loop.end_changes(-1)
            self.inserted += 1
        return True

    def lower(self, t: int) -> int:
        """Put the rows of a tensor's moves into ``rows``; how many numbers these are, and -1 where
        the table has no place for them.
        """
        self.moves = 0
        self.list_moves(t)
        window = 0
        number = -1
        m = 0
        for k in range(self.moves):
            at = self.move_at[k]
            while (
                self.first_slot[t] + window < self.first_slot[t + 1] - 1
                and self.slot_before[self.first_slot[t] + window] <= at
            ):
                window += 1
                number = -1
            number += 1
            place = MOVES * window + number
            if number == MOVES or self.move_from[t] + place >= self.move_from[t + 1]:
                return -1
            channel = -1
            self.rows[m + 6] = 0
            self.rows[m + 7] = 0
            self.rows[m + 8] = 0
            if self.move_target[k] >= 0:
                channel = self.channel_between[
                    self.move_source[k] * self.tiers + self.move_target[k]
                ]
                if channel < 0:
                    return -1
                self.rows[m + 6] = self.flow_class[channel * self.tensors + t]
                self.rows[m + 7] = self.flow_high[t]
                self.rows[m + 8] = self.flow_low[t]
            self.rows[m] = place
            self.rows[m + 1] = self.move_source[k]
            self.rows[m + 2] = self.move_target[k]
            self.rows[m + 3] = channel
            self.rows[m + 4] = at
            self.rows[m + 5] = self.move_order[k]
            m += ROW
        return m

    def put_rows_in(self, t: int, count: int, judged: int) -> None:
        """Put the rows that were lowered last into the table."""
        self.mask[t] = self.initial
        self.copies[t] = self.copied
        self.lowered[t] = count > 0 or self.initial != self.home_mask[t]
        self.loop.exchange(t, self.rows[:count], judged)

    def take_back(self) -> None:
        """Let all be as it was before the changes."""
        for k in range(self.logged - 1, -1, -1):
            self.cells[self.log_cell[k]] = self.log_value[k]
        for j in range(self.inserted):
            t = self.touched_tensor[j]
            self.put_rows_in(t, self.lower(t), 0)
        self.end_changes()

    def judge(self, limit_ns: int) -> None:
        """Find the cost of the present choices with the changes, which stay in the table; one that
        is no less than ``limit_ns`` (unless it is -1) may be found to be just that.
        """
        self.work += OF_A_JUDGEMENT + OF_A_CHANGE * self.changes + self.ops // PUT_BACK
        self.found_left = self.ops + 1
        self.found_ns = 0
        if not self.insert(1):
            return
        if self.loop.last_changed < 0:
            self.found_left = self.cost_left
            self.found_ns = self.cost_ns
            return
        self.loop.recording = 0
        limit = NEVER if limit_ns < 0 else limit_ns - 1
        if self.restore(self.loop.first_changed):
            self.loop.met = self.loop.last_changed
            self.loop.further = 1
            status = self.loop.follow(limit)
            while self.asks(status):
                status = self.loop.follow(limit)
            self.read_cost(status, limit_ns)
            self.work += self.loop.instants
        self.loop.recording = 1

    def accept(self) -> None:
        """Take the changes, which are in the table, over into the present choices."""
        for j in range(self.changes):
            self.changed[self.touched_tensor[j]] = 0
        if self.loop.last_changed >= 0:
            self.keep(self.loop.first_changed)
        self.end_changes()

    def load(self) -> bool:
        """Make the cells, whatever they are, the present choices; whether the table has places for
        them.
        """
        self.end_changes()
        for t in range(self.tensors):
            if self.lowered[t] or self.of_tensor(START, t) != STAYS:
                self.touch(t)
        known = self.insert(0)
        self.keep(0)
        self.end_changes()
        return known

    def restore(self, passed: int) -> bool:
        """Put back the state after so many snapshots, with the moves as they are now; whether it
        fits.
        """
        self.table.put_back(self.kept_states[passed - 1] if passed else self.start_state)
        self.loop.instants = 0
        if passed:
            return True
        for j in range(self.inserted):
            t = self.touched_tensor[j]
            if self.mask_before[j] != self.mask[t]:
                for r in range(self.tiers):
                    self.loop.begin_with(r, t, self.mask[t] >> r & 1)
        self.loop.begin()
        fits = True
        for r in range(self.tiers):
            fits = fits and self.held[r] <= self.part[r]
        return fits

    def keep(self, passed: int) -> None:
        """Run from the state after so many snapshots on, and keep the run as the present one."""
        fits = self.restore(passed)
        del self.kept_states[passed:]
        self.table.forget(passed)
        self.found_left = self.ops + 1
        self.found_ns = 0
        self.stalls = 0
        if not passed:
            self.start_state = self.table.kept()
        if fits:
            status = STOPPED
            while status == STOPPED:
                stop = self.scalars[1] + self.stride
                status = self.loop.run(NEVER, stop)
                while self.asks(status):
                    status = self.loop.run(NEVER, stop)
                if status == STOPPED:
                    self.kept_states.append(self.table.keep())
            self.work += self.loop.instants
            self.read_cost(status, -1)
            self.list_stalls(status)
        self.cost_left = self.found_left
        self.cost_ns = self.found_ns
        self.cost_bytes = self.found_bytes

    def asks(self, status: int) -> bool:
        """Whether the loop asked for something, and goes on now that it has it."""
        if status in (ENDED, LATE, SAME, STOPPED, STUCK):
            return False
        return bool(self.table.answers(status))

    def read_cost(self, status: int, limit_ns: int) -> None:
        """Note what a run came to."""
        if status == SAME:
            self.found_left = self.cost_left
            if self.cost_ns:
                self.found_ns = self.cost_ns - (self.kept_time[self.loop.met] - self.scalars[0])
            return
        if status == LATE and limit_ns >= 0:
            self.found_left = 0
            self.found_ns = limit_ns
            return
        if status in (ENDED, STUCK):
            self.found_ns = max(self.scalars[3], self.last_op_ns())
            self.found_left = 0
            if status == STUCK:
                self.found_left = self.ops - self.scalars[1] + 1

    def last_op_ns(self) -> int:
        """When the last op has ended."""
        last: int = 0
        for q in range(self.streams):
            last = max(last, self.free_since[q])
        return last

    def list_stalls(self, status: int) -> None:
        """List the waits of ops in the run that is kept; what the step waits for after its last op
        is a wait of the op after it.
        """
        self.stalls = 0
        for i in range(self.ops):
            if self.op_idle[i] and self.place[i] < self.done[self.stream_of[i]]:
                self.list_stall(i, self.op_idle[i], self.op_cause[i])
        if status == ENDED and self.scalars[3] > self.last_op_ns():
            self.list_stall(self.ops, self.scalars[3] - self.last_op_ns(), self.scalars[4])

    def list_stall(self, op: int, ns: int, cause: int) -> None:
        """List one wait."""
        self.stall_op[self.stalls] = op
        self.stall_ns[self.stalls] = ns
        self.stall_cause[self.stalls] = cause
        self.stalls += 1

    # -- moves that are not needed
    # ----------------------------------------------------------------------------------------------

    def drop(self, t: int, nearest: int, least_ns: int, most: int) -> None:
        """Take away the absences of a tensor without which the step takes no longer, and no less
        than ``least_ns``, and let it be in the tier ``nearest`` (-1: no matter) if that costs
        nothing; as long as ``work`` is at most ``most``.
        """
        count = self.absences(t)
        starts_below = self.forced[t] >= 0 or self.of_tensor(START, t) == STARTS_BELOW
        if self.forced[t] < 0 and self.work <= most:
            self.clear(t)
            self.take_if_free(1, least_ns)
        if count > 1:
            for s in range(self.first_slot[t] + starts_below, self.first_slot[t + 1]):
                if self.of_slot(AWAY, s) and self.work <= most:
                    self.put_slot(AWAY, s, 0)
                    self.settle()
                    self.take_if_free(1, least_ns)
        stays = nearest < 0 or self.forced[t] >= 0 or self.of_tensor(START, t) == STAYS
        if not stays and self.work <= most:
            self.put_below(t, nearest)
            self.take_if_free(0, least_ns)

    def take_if_free(self, saved: int, least_ns: int) -> None:
        """Take changes that make the step no longer, take no less than ``least_ns`` and move at
        least so many bytes less; take others back.
        """
        if self.changes == 0:
            return
        self.judge(self.cost_ns + 1)
        if (
            self.found_left <= self.cost_left
            and least_ns <= self.found_ns
            and self.found_ns <= self.cost_ns
            and self.found_bytes <= self.cost_bytes - saved
        ):
            self.accept()
        else:
            self.take_back()
