"""The event loop: what is held where, what cache ops do to it, transfers, and the rates at which
they and ops go (docs/contract.md, rules 3, 4, 5, 6, 9, 13, 14 and 20).
"""

from __future__ import annotations

from hosim.engine.loop_cells import (
    ABSENT,
    ASYMMETRIC,
    FLOWING,
    FREE,
    ILLEGAL,
    LATENT,
    LOW,
    NEVER,
    PENDING,
    RATES,
    READS,
    RUNNING,
    SPEED,
    VALID,
    WRITES,
    LoopCells,
)


class LoopTransfers(LoopCells):
    """Bytes and copies, the cache ops that are issued, and transfers from their start to their
    end.
    """

    def hold(self, r: int, t: int) -> None:
        """A tensor takes its bytes in a tier."""
        self.here[r * self.tensors + t] = PENDING
        self.held[r] += self.size[t]
        if self.detailed:
            self.by_kind[r * self.kinds + self.kind[t]] += self.size[t]

    def begin_with(self, r: int, t: int, there: int) -> None:
        """At time 0 a tensor has a valid copy in a tier, or none."""
        change = self.size[t] * (there - (self.here[r * self.tensors + t] == VALID))
        self.here[r * self.tensors + t] = VALID if there else ABSENT
        self.held[r] += change
        self.by_kind[r * self.kinds + self.kind[t]] += change
        if self.pin[r * self.kinds + self.kind[t]]:
            self.pinned[r] += change
            self.most_pinned[r] = self.pinned[r]

    def give_back(self, r: int, t: int) -> None:
        """The bytes of a tensor in a tier are free again."""
        self.here[r * self.tensors + t] = ABSENT
        self.held[r] -= self.size[t]
        if self.detailed:
            self.by_kind[r * self.kinds + self.kind[t]] -= self.size[t]
        if r != self.device and self.pin[r * self.kinds + self.kind[t]]:
            self.pinned[r] -= self.size[t]

    def mark_peak(self, r: int) -> None:
        """Rule 9: what a tier holds now, if that is more than ever."""
        if self.held[r] > self.peak[r]:
            self.peak[r] = self.held[r]
            self.peak_at[r] = self.scalars[0]
            if self.detailed:
                for kind in range(self.kinds):
                    self.peak_by_kind[r * self.kinds + kind] = self.by_kind[r * self.kinds + kind]

    def die(self, t: int) -> None:
        """The last user of a tensor has ended: it is released on all tiers, once its issued cache
        ops have taken effect.
        """
        self.released[t] = 1
        if self.pending_head[t] < 0:
            for r in range(self.tiers):
                if self.here[r * self.tensors + t] != ABSENT:
                    self.give_back(r, t)

    def collect(self, at: int) -> None:
        """What the end of an op issues, in the plan's order among what else is issued at this
        instant.
        """
        k = self.issue_head[at]
        while k >= 0:
            j = self.issue_count
            while j > 0 and self.move_order[self.issues[j - 1]] > self.move_order[k]:
                self.issues[j] = self.issues[j - 1]
                j -= 1
            self.issues[j] = k
            self.issue_count += 1
            k = self.issue_next[k]

    def issue_all(self) -> None:
        """Issue cache ops. One of a tensor that has been released does nothing."""
        for j in range(self.issue_count):
            k = self.issues[j]
            if not self.released[self.move_tensor[k]]:
                self.issue(k)
        self.issue_count = 0

    def issue(self, k: int) -> None:
        """Issue a cache op."""
        t = self.move_tensor[k]
        c = self.move_channel[k]
        if c < 0 and self.pending_head[t] < 0:
            self.detach(t, self.move_source[k])
            self.ended[k] = 1
            return
        if c >= 0:
            if self.next_volume[t] > 0:
                self.volume[k] = self.next_volume[t] - 1
                self.next_volume[t] += 1
            self.join_queues(k)
        self.append_pending(t, k)

    def join_queues(self, k: int) -> None:
        """A transfer is numbered and waits for its channel; of a route of several channels all
        chunks wait for the first one.
        """
        first = self.route[k]
        if first < 0:
            self.number(k)
            self.append_queue(k)
            return
        self.chunks_left[first] = self.onward[first] - first
        for j in range(first, self.onward[first]):
            self.number(self.chunks_from + j)
            self.append_queue(self.chunks_from + j)

    def number(self, k: int) -> None:
        """A transfer is the last one in the order of issue. Numbers are even: an odd one stands
        ahead of the next.
        """
        self.sequence[k] = 2 * self.scalars[2]
        self.scalars[2] += 1
        self.issued_at[k] = self.scalars[0]

    def append_queue(self, k: int) -> None:
        """A transfer waits in the queue of its channel."""
        q = self.queue_of[self.move_channel[k]]
        self.queued += 1
        self.queue_next[k] = -1
        if self.queue_head[q] < 0:
            self.queue_head[q] = k
        else:
            self.queue_next[self.queue_tail[q]] = k
        self.queue_tail[q] = k

    def append_pending(self, t: int, k: int) -> None:
        """A cache op of a tensor is issued behind its others."""
        self.pending_next[k] = -1
        if self.pending_head[t] < 0:
            self.pending_head[t] = k
        else:
            self.pending_next[self.pending_tail[t]] = k
        self.pending_tail[t] = k

    def detach_due(self) -> None:
        """Detaches take effect that stood behind transfers which have ended; a copy that has become
        stale since is no longer there.
        """
        for j in range(self.due_count):
            t = self.due[j]
            k = self.pending_head[t]
            while k >= 0 and self.move_channel[k] < 0:
                if self.here[self.move_source[k] * self.tensors + t] != ABSENT:
                    self.detach(t, self.move_source[k])
                self.ended[k] = 1
                k = self.pending_next[k]
            self.pending_head[t] = k
            if k < 0 and self.released[t]:
                self.die(t)
        self.due_count = 0

    def detach(self, t: int, r: int) -> None:
        """Release a copy, if that is legal."""
        if self.here[r * self.tensors + t] == ABSENT or not self.may_go(t, r):
            self.status = ILLEGAL
            self.culprit = t
        else:
            self.give_back(r, t)

    def may_go(self, t: int, r: int) -> bool:
        """Rule 5: whether the copy of a tensor in a tier, which is there, may be dropped."""
        user = self.next_user(t)
        if self.in_use(r, t):
            return False
        elsewhere = 0
        for other in range(self.tiers):
            if other != r and self.here[other * self.tensors + t] == VALID:
                elsewhere = 1
        reads = self.use_flags[user] & READS if user >= 0 else self.survives[t]
        if not elsewhere and reads:
            return False
        if user < 0 or self.deciding or r != self.where[self.use_op[user]] or not reads:
            return True
        for k in range(self.need_from[user], self.need_to[user]):
            if self.copies[k] and not self.ended[k] and self.move_target[k] == r:
                return True
        return False

    def in_use(self, r: int, t: int) -> bool:
        """Whether an op runs that uses a tensor in a tier."""
        for s in range(self.streams):
            if self.running[s] >= 0 and self.where[self.running[s]] == r:
                for u in range(self.use_from[self.running[s]], self.use_from[self.running[s] + 1]):
                    if self.use_tensor[u] == t:
                        return True
        return False

    def mark_memory(self, m: int) -> int:
        """Write down what the rest of a run depends on: what tiers hold."""
        for r in range(self.tiers):
            m = self.note_number(m, self.held[r])
            m = self.note_number(m, self.pinned[r])
            m = self.note_number(m, self.most_pinned[r])
        return m

    def note_number(self, m: int, number: int) -> int:
        """Write one number down."""
        self.marks[m] = number
        return m + 1

    def next_user(self, t: int) -> int:
        """The use of a tensor by the first op listed that has not ended; -1 if there is none."""
        first = self.user_from[t]
        count = self.user_from[t + 1] - first
        v = self.users_ended[t]
        while v < count:
            u: int = self.user[first + v]
            i = self.use_op[u]
            if self.place[i] >= self.done[self.stream_of[i]]:
                self.users_ended[t] = v
                return u
            v += 1
        self.users_ended[t] = v
        return -1

    def start_transfers(self) -> None:
        """In order of issue; one that cannot start holds back those behind it in its queue. That of
        several channels has the number of the first (rule 24).
        """
        for q in range(self.channels):
            self.blocked[q] = (
                self.queue_head[q] < 0 or self.busy[q] == self.slot_from[q + 1] - self.slot_from[q]
            )
        while True:
            first = -1
            for q in range(self.channels):
                if self.blocked[q]:
                    continue
                if (
                    first < 0
                    or self.sequence[self.queue_head[q]] < self.sequence[self.queue_head[first]]
                ):
                    first = q
            if first < 0:
                return
            q = first
            if not self.start_transfer(q, self.queue_head[q]) or self.queue_head[q] < 0:
                self.blocked[q] = 1
            elif self.busy[q] == self.slot_from[q + 1] - self.slot_from[q]:
                self.blocked[q] = 1

    def start_transfer(self, q: int, k: int) -> bool:
        """Start the transfer at the head of a queue: its turn among its tensor's cache ops, its
        source valid, room for it.
        """
        c = self.move_channel[k]
        t = self.move_tensor[k]
        now = self.scalars[0]
        if not self.may_start(k, t):
            return False
        ns = self.take_room(k, t)
        if ns < 0:
            return False
        begins = now + self.latency[c] + ns
        self.moving[t] = 1
        if k >= self.chunks_from:
            self.crossing[self.first_on_hop[k - self.chunks_from]] = 1
        self.queue_head[q] = self.queue_next[k]
        self.queued -= 1
        z = self.slot_from[q]
        while self.slot_phase[z] != FREE:
            z += 1
        if self.detailed:
            if self.channel_figures[8 * c + 7] == 0:
                self.channel_figures[8 * c + 5] = now
            self.channel_figures[8 * c + 7] += 1
            self.channel_figures[8 * c + 1] += 1
            self.channel_figures[8 * c + 6] += self.bytes_of(k)
            self.channel_figures[8 * c + 3] += now - self.issued_at[k]
        self.move_begun[k] = now
        self.busy[q] += 1
        self.slot_move[z] = k
        self.started[z] = now
        self.flows_from[z] = begins
        if begins > now:
            self.slot_phase[z] = LATENT
            self.until[z] = begins
        else:
            self.flow_move(z, k, now)
        return True

    def may_start(self, k: int, t: int) -> bool:
        """Whether it is the turn of a transfer among its tensor's cache ops and its source is valid;
        of a chunk whether no other one of its cache op is on its hop.
        """
        move = self.chunk_move[k - self.chunks_from] if k >= self.chunks_from else k
        if move != k:
            lead = self.first_on_hop[k - self.chunks_from]
            if self.crossing[lead]:
                return False
            if lead != self.route[move]:
                return True
        found: bool = (
            self.pending_head[t] == move
            and self.here[self.move_source[k] * self.tensors + t] == VALID
        )
        return found

    def take_room(self, k: int, t: int) -> int:
        """A transfer takes its room at the destination, a chunk on its way its own: nanoseconds to
        pin it; -1 if there is too little.
        """
        r = self.move_target[k]
        on_its_way = k >= self.chunks_from and self.onward[k - self.chunks_from] >= 0
        if not on_its_way and self.here[r * self.tensors + t] != ABSENT:
            return 0
        size = self.bytes_of(k) if on_its_way else self.size[t]
        if self.held[r] + size > self.capacity[r]:
            return -1
        if self.held[r] + size > self.part[r]:
            self.status = ASYMMETRIC
            return -1
        if on_its_way:
            self.stage(r, t, size)
        else:
            self.hold(r, t)
        self.mark_peak(r)
        return 0 if on_its_way else self.pinning(r, t)

    def bytes_of(self, k: int) -> int:
        """The bytes of a transfer."""
        size: int = self.size[self.move_tensor[k]]
        if k >= self.chunks_from:
            size = self.chunk_bytes[k - self.chunks_from]
        return size

    def stage(self, r: int, t: int, change: int) -> None:
        """So many bytes of a tensor come to a tier on their way to another one, or go on."""
        self.held[r] += change
        if self.detailed:
            self.by_kind[r * self.kinds + self.kind[t]] += change

    def pinning(self, r: int, t: int) -> int:
        """Rule 14: nanoseconds to pin the bytes of a tensor that comes into a tier."""
        ns: int = self.pin[r * self.kinds + self.kind[t]]
        if r == self.device or ns == 0 or self.size[t] == 0:
            return 0
        self.pinned[r] += self.size[t]
        if self.pooled[r] and self.pinned[r] <= self.most_pinned[r]:
            return 0
        if self.pinned[r] > self.most_pinned[r]:
            self.most_pinned[r] = self.pinned[r]
        return ns

    def flow_move(self, z: int, k: int, now: int) -> None:
        """The bytes of a transfer begin to flow."""
        self.flow(
            z,
            self.move_class[k],
            self.move_high[self.volume[k]],
            self.move_low[self.volume[k]],
            now,
        )

    def flow(self, z: int, f: int, high: int, low: int, now: int) -> None:
        """A volume begins to flow as one of a class, at a rate that is not set yet."""
        self.slot_phase[z] = FLOWING
        self.slot_class[z] = f
        self.left_high[z] = high
        self.left_low[z] = low
        self.rate[z] = 0
        self.flow_since[z] = now
        self.until[z] = NEVER
        self.dirty = 1

    def next_end(self) -> int:
        """When the next phase of a transfer ends."""
        at = NEVER
        for z in range(self.slots):
            if self.until[z] < at:
                at = self.until[z]
        return at

    def end_transfers(self, now: int) -> None:
        """Latencies, transfers and what collectives send end."""
        for z in range(self.slots):
            if self.until[z] != now:
                continue
            k = self.slot_move[z]
            self.dirty = 1
            if self.slot_phase[z] == LATENT:
                self.flow_move(z, k, now)
                continue
            self.slot_phase[z] = FREE
            self.until[z] = NEVER
            if z < self.engines:
                self.end_transfer(z, k, now)
            else:
                self.op_end[z - self.engines] = now

    def end_transfer(self, z: int, k: int, now: int) -> None:
        """A transfer is over: the copy is valid, unless other chunks of it are on their way, and the
        tensor's next cache ops may take effect.
        """
        t = self.move_tensor[k]
        c = self.move_channel[k]
        self.unsettled = 1
        self.scalars[3] = now
        self.scalars[4] = t
        self.busy[self.queue_of[c]] -= 1
        if self.detailed:
            self.channel_figures[8 * c + 7] -= 1
            if self.channel_figures[8 * c + 7] == 0:
                self.channel_figures[8 * c + 2] += now - self.channel_figures[8 * c + 5]
            self.move_over[k] = now
            self.move_shared[k] = now - self.flows_from[z] - self.alone(k)
            self.channel_figures[8 * c + 4] += self.move_shared[k]
        self.ended[k] = 1
        begun = self.started[z]
        move = k
        if k >= self.chunks_from:
            move = self.chunk_move[k - self.chunks_from]
            if self.passes_on(k, t):
                return
            begun = self.move_begun[self.chunks_from + self.route[move]]
        self.here[self.move_target[k] * self.tensors + t] = VALID
        self.ended[move] = 1
        self.moving[t] = 0
        self.recent[self.recent_count] = k
        self.recent_count += 1
        self.pending_head[t] = self.pending_next[move]
        if self.pending_head[t] >= 0:
            self.due[self.due_count] = t
            self.due_count += 1
        elif self.released[t]:
            self.die(t)
        if begun < now:
            self.interrupted(t)

    def passes_on(self, k: int, t: int) -> bool:
        """A chunk has crossed a hop: whether it goes on or another one of its cache op has not
        arrived.
        """
        j = k - self.chunks_from
        first = self.route[self.chunk_move[j]]
        self.crossing[self.first_on_hop[j]] = 0
        if self.first_on_hop[j] != first:
            self.stage(self.move_source[k], t, -self.chunk_bytes[j])
        if self.onward[j] < 0:
            self.chunks_left[first] -= 1
            return self.chunks_left[first] > 0
        place = self.crossed_count
        while place > 0 and self.is_before(k, self.crossed[place - 1]):
            self.crossed[place] = self.crossed[place - 1]
            place -= 1
        self.crossed[place] = k
        self.crossed_count += 1
        return True

    def is_before(self, k: int, other: int) -> bool:
        """Whether a transfer stands before another one in the order of issue; of equal numbers the
        one that came to its queue first does.
        """
        if self.sequence[k] != self.sequence[other]:
            return bool(self.sequence[k] < self.sequence[other])
        if self.issued_at[k] != self.issued_at[other]:
            return bool(self.issued_at[k] < self.issued_at[other])
        return bool(self.move_order[k] < self.move_order[other])

    def chunks_go_on(self) -> None:
        """Chunks that have crossed a hop wait for the next one: behind all, but ahead of what waits
        for an earlier cache op of its tensor.
        """
        for j in range(self.crossed_count):
            k = self.chunks_from + self.onward[self.crossed[j] - self.chunks_from]
            q = self.queue_of[self.move_channel[k]]
            before = -1
            other = self.queue_head[q]
            while other >= 0 and not self.is_behind(other):
                before = other
                other = self.queue_next[other]
            self.number(k)
            if other < 0:
                self.append_queue(k)
                continue
            self.sequence[k] = self.sequence[other] - 1
            self.queued += 1
            self.queue_next[k] = other
            if before < 0:
                self.queue_head[q] = k
            else:
                self.queue_next[before] = k
        self.crossed_count = 0

    def is_behind(self, k: int) -> bool:
        """Whether a transfer waits in a queue for an earlier cache op of its tensor."""
        move = self.chunk_move[k - self.chunks_from] if k >= self.chunks_from else k
        found: bool = self.pending_head[self.move_tensor[k]] != move
        return found

    def alone(self, k: int) -> int:
        """For how many nanoseconds a transfer would flow that shares nothing."""
        volume = self.two(self.move_high[self.volume[k]], self.move_low[self.volume[k]])
        best = self.best[self.move_class[k]]
        ns: int = (volume + best - 1) // best
        return ns

    def interrupted(self, t: int) -> None:
        """While a transfer read a tensor, an op that writes it was not free to start, even if it
        had been before.
        """
        for s in range(self.streams):
            if self.running[s] < 0 and self.residency_met[s] >= 0:
                i = self.queue[self.queue_from[s] + self.done[s]]
                for u in range(self.use_from[i], self.use_from[i + 1]):
                    if self.use_tensor[u] == t and self.use_flags[u] & WRITES:
                        self.residency_met[s] = -1

    def set_rates(self) -> int:
        """Rules 6 and 13: the rates of all that flows, and the ends of ops that copies slow down;
        again, where a rate was wanted.
        """
        combination = 0
        for z in range(self.slots):
            if self.slot_phase[z] == FLOWING:
                after = self.joined[combination * self.classes + self.slot_class[z]]
                if after < 0:
                    self.wanted = combination * self.classes + self.slot_class[z]
                    return RATES
                combination = after
        now = self.scalars[0]
        for z in range(self.slots):
            if self.slot_phase[z] == FLOWING:
                rate = self.rate_of[combination * self.classes + self.slot_class[z]]
                if rate != self.rate[z]:
                    self.set_rate(z, rate, now)
        for s in range(self.streams):
            i = self.running[s]
            if i >= 0 and self.pace_of[i] >= 0 and self.paced[s] != combination:
                if self.speed_high[combination * self.paces + self.pace_of[i]] < 0:
                    self.wanted = combination * self.paces + self.pace_of[i]
                    return SPEED
                self.set_speed(s, self.pace_of[i], combination, now)
        self.dirty = 0
        return RUNNING

    def set_rate(self, z: int, rate: int, now: int) -> None:
        """A transfer flows at another rate from now on."""
        left = self.two(self.left_high[z], self.left_low[z])
        passed = now - self.flow_since[z]
        left -= passed * self.rate[z]
        self.left_high[z] = left >> 62
        self.left_low[z] = left & LOW
        self.rate[z] = rate
        self.flow_since[z] = now
        left = (left + rate - 1) // rate if left > 0 else 0
        self.until[z] = now + left if left < NEVER - now else NEVER

    def put_work(self, s: int, work: int) -> None:
        """Keep what is left of the op that a stream runs."""
        self.work_high[s] = work >> 62
        self.work_low[s] = work & LOW

    def set_speed(self, s: int, pace: int, combination: int, now: int) -> None:
        """The op of a stream goes on at another speed: note what it has done, and when it ends."""
        before = self.paced[s]
        work = self.two(self.work_high[s], self.work_low[s])
        speed = work
        if before >= 0 and now > self.work_since[s]:
            speed = self.two(
                self.speed_high[before * self.paces + pace],
                self.speed_low[before * self.paces + pace],
            )
            work -= (now - self.work_since[s]) * speed
            self.put_work(s, work)
            self.work_since[s] = now
        self.paced[s] = combination
        speed = self.two(
            self.speed_high[combination * self.paces + pace],
            self.speed_low[combination * self.paces + pace],
        )
        if work <= 0:
            self.op_end[s] = now
        elif speed == 0:
            self.op_end[s] = NEVER
        else:
            work = (work + speed - 1) // speed
            self.op_end[s] = (
                self.work_since[s] + work if work < NEVER - self.work_since[s] else NEVER
            )

    def mark_transfer(self, m: int, z: int) -> int:
        """Write down the transfer of a slot: when its phase ends, and what is left of it."""
        m = self.note_number(m, self.slot_phase[z])
        if self.slot_phase[z] == FREE:
            return m
        now = self.scalars[0]
        m = self.note_number(m, self.slot_move[z])
        m = self.note_number(m, self.until[z] - now)
        if self.slot_phase[z] == LATENT:
            return m
        left = self.two(self.left_high[z], self.left_low[z])
        passed = now - self.flow_since[z]
        left -= passed * self.rate[z]
        m = self.note_number(m, left >> 62)
        return self.note_number(m, left & LOW)
