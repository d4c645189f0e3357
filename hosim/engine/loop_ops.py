"""The event loop: ops, and the order of instants (docs/contract.md, rules 0, 1, 8, 16, 19, 20
and 23).
"""

from __future__ import annotations

from hosim.engine.loop_cells import (
    ABSENT,
    ASYMMETRIC,
    CAPACITY,
    DECIDES,
    DEPENDENCY,
    ENDED,
    INSPECTS,
    LATE,
    LOW,
    NEVER,
    OUTPUT,
    PENDING,
    RATES,
    READS,
    ROOM,
    RUNNING,
    RUNTIME,
    STOPPED,
    STUCK,
    TRANSFER,
    VALID,
    WRITES,
)
from hosim.engine.loop_transfers import LoopTransfers


class LoopOps(LoopTransfers):
    """The host's calls of ops and cache ops one by one, in the order of the program; ops, from their
    start to their end; and a run through all instants.

    ``host_at`` is the number of the call that the host makes or waits after, even for the cache ops
    of a place and odd for an op, and how many places have their cache ops called. ``host_over`` is
    when a call is over that has begun (-1: none has).
    """

    def make_calls(self) -> None:
        """Make calls until one takes time or the host has to wait; collect what is issued by it."""
        now = self.scalars[0]
        while self.host_at[0] < 2 * self.hosted + 1:
            number = self.host_at[0]
            place = (number + 1) // 2
            by_op = number % 2
            if self.host_over[0] < 0:
                if by_op and not self.may_call(place - 1):
                    return
                self.host_over[0] = now + (
                    self.host_ns[place - 1] if by_op else self.host_copies[place]
                )
            if now < self.host_over[0]:
                return
            if by_op:
                if self.called_at[place - 1] < 0:
                    self.called_at[place - 1] = self.host_over[0]
                if self.host_blocks[place - 1] and not self.has_ended(place - 1):
                    return
            else:
                if self.host_at[1] <= place:
                    self.host_at[1] = place + 1
                    if place == 0 or self.has_ended(place - 1):
                        self.collect(place)
                if not self.copied(place):
                    return
            self.host_at[0] = number + 1
            self.host_over[0] = -1

    def has_ended(self, i: int) -> bool:
        """Whether an op has ended."""
        found: bool = self.place[i] < self.done[self.stream_of[i]]
        return found

    def may_call(self, i: int) -> bool:
        """Whether all ops have ended that the call of one awaits."""
        for j in range(self.host_await_from[i], self.host_await_from[i + 1]):  # noqa: SIM110
            if not self.has_ended(self.host_await[j]):
                return False
        return True

    def copied(self, place: int) -> bool:
        """Whether the copies of a place have ended that the host waits for; one of a tensor that
        was released before it was issued does nothing.
        """
        for j in range(self.host_wait_from[place], self.host_wait_from[place + 1]):
            k = self.host_wait[j]
            if not self.ended[k] and (not self.released[self.move_tensor[k]] or self.is_pending(k)):
                return False
        return True

    def is_pending(self, k: int) -> bool:
        """Whether a cache op is issued and not over."""
        j = self.pending_head[self.move_tensor[k]]
        while j >= 0 and j != k:
            j = self.pending_next[j]
        found: bool = j == k
        return found

    def try_op(self, s: int) -> None:
        """Start the next op of a stream, if it can; a runtime policy inspects it first, and decides
        once its producers have ended.
        """
        now = self.scalars[0]
        i = self.queue[self.queue_from[s] + self.done[s]]
        if self.deciding:
            if self.inspected_at[s] < 0 and self.inspect_ns[0] >= 0:
                self.inspected_at[s] = now + self.inspect_ns[0]
            elif self.inspected_at[s] < 0:
                self.ask(INSPECTS, s)
            if self.inspected_at[s] < 0 or self.inspected_at[s] > now:
                return
        if self.hosted and self.called_at[i] < 0:
            return
        if self.dependency_met[s] < 0:
            for j in range(self.wait_from[i], self.wait_from[i + 1]):
                if self.done[self.wait_stream[j]] < self.wait_count[j]:
                    return
            self.dependency_met[s] = now
            if self.deciding:
                self.ask(DECIDES, s)
                return
        self.try_to_start(s, i, now)

    def ask(self, status: int, s: int) -> None:
        """Stop and ask about the next op of a stream."""
        self.status = status
        self.wanted = s

    def try_to_start(self, s: int, i: int, now: int) -> None:
        """Start an op if it waits for no transfer and there is room."""
        wanted = self.wants(i)
        if wanted < 0:
            self.residency_met[s] = -1
            return
        if self.residency_met[s] < 0:
            self.residency_met[s] = now
            if now > self.dependency_met[s] and now > self.free_since[s]:
                self.blamed[s] = self.blame(i)
        r = self.where[i]
        wanted += self.held[r]
        if wanted > self.capacity[r]:
            return
        if wanted > self.part[r]:
            self.status = ASYMMETRIC
            return
        self.start_op(s, i, now)
        if now + self.rest[i] > self.limit:
            self.status = LATE

    def wants(self, i: int) -> int:
        """The bytes that an op takes when it starts; -1 while it waits for a transfer.

        Rule 1: what it reads is there and valid, and the transfers of what it writes that are
        before it have ended.
        """
        wanted: int = self.workspace[i]
        first = self.where[i] * self.tensors
        for u in range(self.use_from[i], self.use_from[i + 1]):
            t = self.use_tensor[u]
            if self.use_flags[u] & READS and self.here[first + t] != VALID:
                return -1
            if self.use_flags[u] & WRITES and (
                self.moving[t] or (self.deciding and self.decided_on(t))
            ):
                return -1
            for k in range(self.need_from[u], self.need_to[u]):
                if self.copies[k] and not self.ended[k]:
                    return -1
            if self.use_flags[u] & OUTPUT and self.here[first + t] == ABSENT:
                wanted += self.size[t]
        return wanted

    def decided_on(self, t: int) -> bool:
        """Whether a runtime policy has issued a copy of a tensor that has not ended."""
        k = self.pending_head[t]
        while k >= 0:
            if k >= self.planned and self.move_channel[k] >= 0:
                return True
            k = self.pending_next[k]
        return False

    def blame(self, i: int) -> int:
        """Rule 8: the transfer that an op waited for and that ended last; all those of this instant
        did, and the last issued counts.
        """
        found = -1
        for j in range(self.recent_count):
            k = self.recent[j]
            for u in range(self.use_from[i], self.use_from[i + 1]):
                if self.use_tensor[u] != self.move_tensor[k]:
                    continue
                waited_for = self.use_flags[u] & WRITES or self.move_target[k] == self.where[i]
                if waited_for and (found < 0 or self.is_before(found, k)):
                    found = k
        return found

    def start_op(self, s: int, i: int, now: int) -> None:
        """An op takes its room, makes other copies of what it writes stale, and runs."""
        there = self.where[i]
        self.held[there] += self.workspace[i]
        if self.detailed:
            self.by_kind[there * self.kinds + self.kinds - 1] += self.workspace[i]
        for u in range(self.use_from[i], self.use_from[i + 1]):
            if self.use_flags[u] & WRITES:
                self.write(there, self.use_tensor[u])
        self.mark_peak(there)
        if self.recording or self.detailed:
            self.divide(s, i, now)
        self.running[s] = i
        self.began[s] = now
        self.op_end[s] = NEVER
        pace = self.pace_of[i]
        if self.send_class[i] >= 0:
            self.flow(
                self.engines + s, self.send_class[i], self.send_high[i], self.send_low[i], now
            )
            return
        if pace < 0:
            self.op_end[s] = now + self.duration[i]
            return
        self.paced[s] = -1
        self.dirty = 1
        self.work_since[s] = now + self.launch[pace]
        self.put_work(
            s,
            (self.duration[i] - self.launch[pace])
            * self.two(self.whole_high[pace], self.whole_low[pace]),
        )

    def write(self, there: int, t: int) -> None:
        """An op writes a tensor in a tier: its copies elsewhere are stale, and pinned memory takes
        no time.
        """
        if self.here[there * self.tensors + t] == ABSENT:
            self.hold(there, t)
            if self.pin[there * self.kinds + self.kind[t]]:
                self.pinned[there] += self.size[t]
                self.most_pinned[there] = max(self.most_pinned[there], self.pinned[there])
        self.here[there * self.tensors + t] = PENDING
        for r in range(self.tiers):
            if r != there and self.here[r * self.tensors + t] != ABSENT:
                self.give_back(r, t)
                self.unsettled |= self.elsewhere

    def divide(self, s: int, i: int, now: int) -> None:
        """Rule 8: divide the idle time before an op, which starts now."""
        begin = self.free_since[s]
        if self.recording:
            self.op_idle[i] = now - begin
            self.op_held[i] = self.held[self.where[i]]
        if now == begin:
            return
        inspected = max(self.inspected_at[s], begin)
        if self.hosted:
            inspected = max(self.called_at[i], inspected)
        dependency = max(self.dependency_met[s], inspected)
        residency = max(self.residency_met[s], dependency)
        self.stalls[4 * s + RUNTIME] += inspected - begin
        self.stalls[4 * s + DEPENDENCY] += dependency - inspected
        self.stalls[4 * s + TRANSFER] += residency - dependency
        self.stalls[4 * s + CAPACITY] += now - residency
        if s == self.main and self.blamed[s] >= 0:
            self.channel_figures[8 * self.move_channel[self.blamed[s]]] += residency - dependency
        if self.recording:
            if now > residency:
                self.op_cause[i] = -1
            elif residency > dependency and self.blamed[s] >= 0:
                self.op_cause[i] = self.move_tensor[self.blamed[s]]
            else:
                self.op_cause[i] = -2

    def end_ops(self, now: int) -> None:
        """Ops end: what they held for themselves, what nobody uses any more, what they issue."""
        for s in range(self.streams):
            if self.op_end[s] != now or self.running[s] < 0:
                continue
            i = self.running[s]
            self.running[s] = -1
            self.op_end[s] = NEVER
            self.free_since[s] = now
            self.inspected_at[s] = -1
            self.dependency_met[s] = -1
            self.residency_met[s] = -1
            self.blamed[s] = -1
            self.done[s] += 1
            self.scalars[1] += 1
            if self.detailed:
                self.op_begun[i], self.op_over[i] = self.began[s], now
            self.slowed[s] += now - self.began[s] - self.duration[i]
            there = self.where[i]
            self.held[there] -= self.workspace[i]
            if self.detailed:
                self.by_kind[there * self.kinds + self.kinds - 1] -= self.workspace[i]
            for u in range(self.use_from[i], self.use_from[i + 1]):
                t = self.use_tensor[u]
                if self.use_flags[u] & WRITES:
                    self.here[there * self.tensors + t] = VALID
                self.users_left[t] -= 1
                if self.users_left[t] == 0 and not self.survives[t]:
                    self.die(t)
            if not self.hosted or self.host_at[1] > i + 1:
                self.collect(i + 1)
            self.unsettled = 1

    def begin(self) -> None:
        """Time 0: whatever is issued before any op is."""
        self.due_count = 0
        self.recent_count = 0
        self.crossed_count = 0
        self.issue_count = 0
        self.status = RUNNING
        if not self.hosted:
            self.collect(0)
        self.unsettled = 1
        self.dirty = 0
        self.decided = 0

    def go_on(self) -> None:
        """A snapshot has been put back, which lies between two instants."""
        self.due_count = 0
        self.recent_count = 0
        self.issue_count = 0
        self.status = RUNNING
        self.unsettled = 0
        self.dirty = 0
        self.at = self.streams + 1

    def settle(self) -> None:
        """All has ended that ends now: detaches that were behind it, calls of the host, and issues;
        ops and transfers are to start.
        """
        self.unsettled = 0
        if self.due_count:
            self.detach_due()
        if self.crossed_count:
            self.chunks_go_on()
        if self.hosted:
            self.make_calls()
        if self.issue_count:
            self.issue_all()
        self.at = 0

    def start(self) -> None:
        """Ops start, stream by stream, again where a policy's decisions may have set another one
        free; then transfers.
        """
        while self.at < self.streams:
            if (
                self.running[self.at] < 0
                and self.done[self.at] < self.queue_from[self.at + 1] - self.queue_from[self.at]
            ):
                self.try_op(self.at)
                if self.status != RUNNING:
                    return
            self.at += 1
            if self.at == self.streams and self.decided:
                self.decided = 0
                self.at = 0
        self.at = self.streams + 1
        if self.queued:
            self.start_transfers()
        if self.deciding and self.status == RUNNING and self.idle():
            self.ask(ROOM, 0)

    def idle(self) -> bool:
        """Whether nothing is under way."""
        if self.hosted and self.host_over[0] > self.scalars[0]:
            return False
        for s in range(self.streams):
            if self.running[s] >= 0 or self.inspected_at[s] > self.scalars[0]:
                return False
        busy = 0
        for c in range(self.channels):
            busy += self.busy[c]
        return busy == 0

    def again(self) -> None:
        """A policy has made room: all is looked at again."""
        self.unsettled = 1

    def next_instant(self) -> int:
        """When the next op, phase of a transfer, inspection or call of the host ends."""
        at = self.next_end()
        if self.hosted and self.scalars[0] < self.host_over[0] < at:
            at = self.host_over[0]
        if self.deciding:
            for s in range(self.streams):
                if self.scalars[0] < self.inspected_at[s] < at:
                    at = self.inspected_at[s]
        for s in range(self.streams):
            if self.op_end[s] < at:
                at = self.op_end[s]
        return at

    def mark_op(self, m: int, s: int) -> int:
        """Write down the op that a stream runs: when it ends, and what is left of one that copies
        slow down.
        """
        i = self.running[s]
        m = self.note_number(m, i)
        if i < 0:
            return m
        now = self.scalars[0]
        m = self.note_number(m, self.op_end[s] - now)
        pace = self.pace_of[i]
        if pace < 0:
            return m
        work = self.two(self.work_high[s], self.work_low[s])
        speed = self.two(
            self.speed_high[self.paced[s] * self.paces + pace],
            self.speed_low[self.paced[s] * self.paces + pace],
        )
        if now > self.work_since[s]:
            work -= (now - self.work_since[s]) * speed
        m = self.note_number(m, max(0, self.work_since[s] - now))
        m = self.note_number(m, self.paced[s])
        m = self.note_number(m, work >> 62)
        return self.note_number(m, work & LOW)

    def outcome(self) -> int:
        """Nothing is under way: whether all has ended."""
        if self.scalars[1] < self.ops:
            return STUCK
        for c in range(self.channels):
            if self.queue_head[c] >= 0:
                return STUCK
        return ENDED

    def run(self, limit: int, stop: int) -> int:
        """Go on until all has ended, or no event is left, or ``stop`` ops have ended, or time
        passes ``limit``, or it asks; says which.
        """
        self.limit = limit
        if self.status >= RATES:
            self.status = RUNNING
        while True:
            if self.unsettled:
                self.settle()
            if self.at <= self.streams and self.status == RUNNING:
                self.start()
            if self.status != RUNNING:
                return self.status
            if self.unsettled:
                continue
            if self.dirty:
                self.status = self.set_rates()
                if self.status != RUNNING:
                    return self.status
            at = self.next_instant()
            if at > self.scalars[0]:
                if at == NEVER:
                    return self.outcome()
                if self.scalars[1] >= stop:
                    return STOPPED
                if at > limit:
                    return LATE
                self.scalars[0] = at
                self.recent_count = 0
            self.instants += 1
            self.end_transfers(at)
            self.end_ops(at)
            if self.hosted and self.host_over[0] == at:
                self.unsettled = 1
            if self.deciding:
                self.end_inspections(at)

    def end_inspections(self, now: int) -> None:
        """Inspections end."""
        for s in range(self.streams):
            if self.inspected_at[s] == now:
                self.unsettled = 1
