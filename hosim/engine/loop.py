"""The event loop: snapshots of a run, and changes of its plan."""

from __future__ import annotations

from hosim.engine.cells import Longs
from hosim.engine.loop_cells import (
    FREE,
    MOVES,
    NEVER,
    NOWHERE,
    RATES,
    ROW,
    SAME,
    STOPPED,
    WRITES,
)
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
            self.sequence[k] = 2 * (self.scalars[2] - count + j - 1)
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
        issued = passed
        for v in range(self.user_from[t], self.user_from[t + 1]):
            u = self.user[v]
            i = self.use_op[u]
            while passed < self.move_from[t + 1] and self.move_after[passed] < i:
                if self.move_after[passed] != NOWHERE:
                    issued = passed + 1
                    if self.move_arrives[passed] >= 0:
                        self.latest[self.move_arrives[passed]] = passed
                passed += 1
            if self.use_flags[u] & WRITES:
                self.need_from[u] = written
                self.need_to[u] = max(written, issued)
                written = passed
                continue
            arrived = self.latest[self.where[i]]
            if self.need_from[u] != max(arrived, 0) or self.need_to[u] != arrived + 1:
                self.need_from[u] = max(arrived, 0)
                self.need_to[u] = arrived + 1
                self.wait_changes(i)

    # -- changes of a plan, beside the snapshots of its run
    # ----------------------------------------------------------------------------------------------

    def exchange(self, t: int, rows: Longs, judged: int) -> None:
        """Let the moves of a tensor be these, by place: each as its place among the tensor's, its
        tiers and channel (-1, -1: a detach), after which op it is issued, its order there, its
        class of flows and, in two limbs, what flows.

        ``first_changed`` and ``last_changed`` are the least and the largest number of snapshots
        that lie before what changes. ``judged``: they are there to be judged.
        """
        j = 0
        last = len(rows) - ROW
        window = -1
        for k in range(self.move_from[t], self.move_from[t + 1]):
            there = j <= last and self.move_from[t] + rows[j] == k
            if there and self.is_row(k, rows, j):
                j += ROW
                continue
            if self.move_after[k] != NOWHERE:
                self.end_changes(self.move_after[k])
                self.unlink(k, self.move_after[k] + 1)
                self.move_after[k] = NOWHERE
                self.copies[k] = 0
            elif not there:
                continue
            if there:
                self.put(k, t, rows, j)
                self.end_changes(self.move_after[k])
                j += ROW
            if self.streams > 1 and (k - self.move_from[t]) // MOVES != window:
                window = (k - self.move_from[t]) // MOVES
                self.write_changes(t, window)
        self.await_moves(t)
        self.changed[t] = judged

    def is_row(self, k: int, rows: Longs, j: int) -> bool:
        """Whether a place has this move."""
        return bool(
            self.move_after[k] == rows[j + 4]
            and self.move_order[k] == rows[j + 5]
            and self.move_source[k] == rows[j + 1]
            and self.move_target[k] == rows[j + 2]
            and self.move_channel[k] == rows[j + 3]
        )

    def put(self, k: int, t: int, rows: Longs, j: int) -> None:
        """Put a move in a place that has none, in order."""
        self.move_tensor[k] = t
        self.move_source[k] = rows[j + 1]
        self.move_target[k] = rows[j + 2]
        self.move_channel[k] = rows[j + 3]
        self.move_after[k] = rows[j + 4]
        self.move_order[k] = rows[j + 5]
        self.move_class[k] = rows[j + 6]
        self.move_high[k] = rows[j + 7]
        self.move_low[k] = rows[j + 8]
        self.copies[k] = rows[j + 3] >= 0
        self.move_arrives[k] = rows[j + 2]
        self.link(k, self.move_after[k] + 1)

    def write_changes(self, t: int, window: int) -> None:
        """What the next write of a tensor waits for changes, from one of its uses on."""
        for v in range(self.user_from[t] + window, self.user_from[t + 1]):
            if self.use_flags[self.user[v]] & WRITES:
                self.wait_changes(self.use_op[self.user[v]])
                return

    def wait_changes(self, i: int) -> None:
        """What an op waits for changes. On several streams it begins to wait when the op before it
        on its stream ends.
        """
        if self.streams > 1:
            s = self.stream_of[i]
            self.end_changes(
                self.queue[self.queue_from[s] + self.place[i] - 1] if self.place[i] else -1
            )

    def end_changes(self, i: int) -> None:
        """What follows the end of an op, or time 0, changes."""
        passed = 0
        above = self.snapshots if i >= 0 else 0
        while passed < above:
            middle = (passed + above) // 2
            if self.kept_done[middle * self.streams + self.stream_of[i]] <= self.place[i]:
                passed = middle + 1
            else:
                above = middle
        self.first_changed = min(self.first_changed, passed)
        self.last_changed = max(self.last_changed, passed)

    def keep(self) -> None:
        """Note which ops have ended at a snapshot, and its time."""
        j = self.snapshots
        for s in range(self.streams):
            self.kept_done[j * self.streams + s] = self.done[s]
        self.kept_total[j] = self.scalars[1]
        self.kept_time[j] = self.scalars[0]
        self.snapshots += 1

    def follow(self, limit: int) -> int:
        """Run until the end, or until it goes on as the run that is kept does from snapshot
        ``met`` on (``SAME``), from the next one on or what is asked for.

        The snapshots looked at lie further and further apart.
        """
        while self.met < self.snapshots:
            j = self.met
            if self.status >= RATES or self.kept_total[j] > self.scalars[1]:
                status = self.run(limit, self.kept_total[j])
                if status != STOPPED:
                    return status
                if self.is_kept(j):
                    return SAME
            self.met += self.further
            self.further *= 2
        return self.run(limit, NEVER)

    def is_kept(self, j: int) -> bool:
        """Whether all that the rest of the run depends on is as at a snapshot, and moves of no
        tensor that changes are under way.
        """
        if self.scalars[1] != self.kept_total[j]:
            return False
        for s in range(self.streams):
            if self.done[s] != self.kept_done[j * self.streams + s]:
                return False
        marks = self.kept_marks[j]
        if self.mark() != len(marks):
            return False
        m = 0
        while m < len(marks) and self.marks[m] == marks[m]:
            m += 1
        if m < len(marks):
            return False
        here = self.kept_here[j]
        k = 0
        while k < self.tiers * self.tensors and self.here[k] == here[k]:
            k += 1
        return k == self.tiers * self.tensors

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
