"""The event loop: what is held where, and what cache ops do to it (docs/contract.md, rules 3, 5, 9
and 20).
"""

from __future__ import annotations

from hosim.engine.loop_cells import ABSENT, ILLEGAL, PENDING, READS, VALID, LoopCells


class LoopMemory(LoopCells):
    """Bytes and copies, and the cache ops that are issued."""

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
            self.sequence[k] = self.scalars[2]
            self.scalars[2] += 1
            self.issued_at[k] = self.scalars[0]
            if self.next_volume[t] > 0:
                self.volume[k] = self.next_volume[t] - 1
                self.next_volume[t] += 1
            self.append_queue(k)
        self.append_pending(t, k)

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
