"""The event loop: snapshots of a run, and changes of its plan."""

from __future__ import annotations

from hosim.engine.loop_cells import FREE, NOWHERE, WRITES
from hosim.engine.loop_ops import LoopOps


class Loop(LoopOps):
    """The loop as it is used: it runs, is kept between two instants and put back, and takes other
    plans.
    """

    def note(self) -> int:
        """List what is issued and not over, between two instants; how many numbers these are.

        Transfers in order of issue, then the cache ops of each of their tensors, a count before
        each list.
        """
        count = 0
        for z in range(self.engines):
            if self.slot_phase[z] != FREE:
                count = self.note_transfer(count, self.slot_move[z])
        for c in range(self.channels):
            k = self.queue_head[c]
            while k >= 0:
                count = self.note_transfer(count, k)
                k = self.queue_next[k]
        self.links[0] = count
        end = count + 1
        for j in range(1, count + 1):
            k = self.pending_head[self.move_tensor[self.links[j]]]
            first = k
            while self.move_channel[first] < 0:
                first = self.pending_next[first]
            if first == self.links[j]:
                begin = end
                end += 1
                while k >= 0:
                    self.links[end] = k
                    end += 1
                    k = self.pending_next[k]
                self.links[begin] = end - begin - 1
        self.links[end] = 0
        return end + 1

    def note_transfer(self, count: int, k: int) -> int:
        """Put a transfer in its place among those listed."""
        j = count
        while j > 0 and self.sequence[self.links[j]] > self.sequence[k]:
            self.links[j + 1] = self.links[j]
            j -= 1
        self.links[j + 1] = k
        return count + 1

    def forget(self) -> None:
        """Nothing is issued any more: another state is to be put back."""
        for z in range(self.engines):
            if self.slot_phase[z] != FREE:
                self.pending_head[self.move_tensor[self.slot_move[z]]] = -1
        for c in range(self.channels):
            while self.queue_head[c] >= 0:
                self.pending_head[self.move_tensor[self.queue_head[c]]] = -1
                self.queue_head[c] = self.queue_next[self.queue_head[c]]
        self.queued = 0

    def recall(self) -> None:
        """Issue what :meth:`note` has listed, after :meth:`forget`, where the state is that of
        then.
        """
        count = self.links[0]
        end = count + 1
        while self.links[end] > 0:
            for j in range(end + 1, end + self.links[end] + 1):
                self.append_pending(self.move_tensor[self.links[j]], self.links[j])
            end += self.links[end] + 1
        for j in range(1, count + 1):
            k = self.links[j]
            self.sequence[k] = self.scalars[2] - count + j - 1
            if not self.moving[self.move_tensor[k]] or self.pending_head[self.move_tensor[k]] != k:
                self.append_queue(k)

    def mark(self) -> int:
        """Write down, between two instants, what the rest of the run depends on beside which copies
        are where, with times from now on.

        How many numbers these are; -1 where a tensor of ``changed`` moves.
        """
        noted = self.note()
        for j in range(1, self.links[0] + 1):
            if self.changed[self.move_tensor[self.links[j]]]:
                return -1
        m = self.mark_memory(0)
        for s in range(self.streams):
            m = self.mark_op(m, s)
        for z in range(self.slots):
            m = self.mark_transfer(m, z)
        for j in range(noted):
            m = self.note_number(m, self.links[j])
        return m

    def plan(self, count: int) -> None:
        """Take a whole plan, whose moves stand tensor by tensor in order of issue: when each is
        issued, and what each use waits for.
        """
        for k in range(count):
            self.links[self.move_order[k]] = k
        for j in range(count - 1, -1, -1):
            k = self.links[j]
            self.issue_next[k] = self.issue_head[self.move_after[k] + 1]
            self.issue_head[self.move_after[k] + 1] = k
        for t in range(self.tensors):
            if self.move_from[t] < self.move_from[t + 1]:
                self.await_moves(t)

    def await_moves(self, t: int) -> None:
        """Rule 1: what the uses of a tensor wait for, of its moves: all since the write before, if
        they write; else the last to arrive.
        """
        for r in range(self.tiers):
            self.latest[r] = -1
        passed = self.move_from[t]
        written = passed
        for v in range(self.user_from[t], self.user_from[t + 1]):
            u = self.user[v]
            i = self.use_op[u]
            while passed < self.move_from[t + 1] and self.move_after[passed] < i:
                if self.move_arrives[passed] >= 0:
                    self.latest[self.move_arrives[passed]] = passed
                passed += 1
            self.need_from[u] = 0
            self.need_to[u] = 0
            if self.use_flags[u] & WRITES:
                self.need_from[u] = written
                self.need_to[u] = passed
                written = passed
            elif self.latest[self.where[i]] >= 0:
                self.need_from[u] = self.latest[self.where[i]]
                self.need_to[u] = self.latest[self.where[i]] + 1

    def put(
        self,
        k: int,
        t: int,
        source: int,
        target: int,
        channel: int,
        after: int,
        order: int,
        f: int,
        high: int,
        low: int,
    ) -> None:
        """Put a move in a place, in order; one that is issued after ``NOWHERE`` is none. What was
        there goes.
        """
        if self.move_after[k] != NOWHERE:
            self.unlink(k, self.move_after[k] + 1)
        self.move_after[k] = after
        self.copies[k] = channel >= 0
        if after == NOWHERE:
            return  # its tensor stays: the last run may have it under way
        self.move_tensor[k] = t
        self.move_source[k] = source
        self.move_target[k] = target
        self.move_channel[k] = channel
        self.move_order[k] = order
        self.move_class[k] = f
        self.move_high[k] = high
        self.move_low[k] = low
        self.link(k, after + 1)

    def link(self, k: int, at: int) -> None:
        """Let a place issue a move, in order."""
        order = self.move_order[k]
        before = -1
        after = self.issue_head[at]
        while after >= 0 and self.move_order[after] < order:
            before = after
            after = self.issue_next[after]
        self.issue_next[k] = after
        if before < 0:
            self.issue_head[at] = k
        else:
            self.issue_next[before] = k

    def unlink(self, k: int, at: int) -> None:
        """Let a place no longer issue a move."""
        before = self.issue_head[at]
        if before == k:
            self.issue_head[at] = self.issue_next[k]
            return
        while self.issue_next[before] != k:
            before = self.issue_next[before]
        self.issue_next[before] = self.issue_next[k]
