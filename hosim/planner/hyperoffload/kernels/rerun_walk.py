"""Which ops run again if tensors are dropped, and what the device then holds, in one walk over the
arrays of a graph.
"""

from __future__ import annotations

from typing import Any

from hosim.engine.cells import Flags, Int, Ints, Longs, made

READS, WRITES = 1, 2
"""What an op does with a tensor: flags of a use."""


class RerunWalk:
    """Arrays of a graph and of a walk through it; compiled with the other kernels of the planner.

    The tensors that op ``i`` uses stand from ``use_from[i]`` on, each once, with what it does with
    them; the ops that use a tensor from ``user_from[t]`` on. ``pure`` says which ops may run again,
    ``starts`` which tensors are there before any op uses them, ``ends`` which are there after the
    last one. ``drop_tensor`` and ``drop_after`` are the drops, by op.

    After :meth:`walk` the ops have run in ``places`` places: ``ran`` has the op of each, ``held``
    the bytes in the device tier. ``reruns`` of them are no first runs: ``rerun`` has their ops,
    ``rerun_before`` those before which they run. What comes after it in the list is for the
    computation alone.
    """

    ops: Int
    tensors: Int
    use_from: Ints
    use_tensor: Ints
    use_flags: Flags
    user_from: Ints
    user: Ints
    user_flags: Flags
    survives: Flags
    size: Longs
    workspace: Longs
    pure: Flags
    starts: Flags
    ends: Flags
    drop_tensor: Ints = made("uses")
    drop_after: Ints = made("uses")
    ran: Ints = made("ops+uses")
    held: Longs = made("ops+uses+1")
    rerun: Ints = made("uses")
    rerun_before: Ints = made("uses")

    until: Ints = made("ops")
    following: Ints = made("tensors")
    writer: Ints = made("tensors")
    absent: Flags = made("tensors")
    first: Ints = made("tensors")
    last: Ints = made("tensors")
    copied: Ints = made("tensors")
    copy_last: Ints = made("tensors")
    stack: Ints = made("uses+1")
    chain: Ints = made("ops")
    seen: Ints = made("tensors")
    chained: Ints = made("ops")

    def __init__(self, cells: Any) -> None:
        for name in RerunWalk.__annotations__:
            setattr(self, name, cells[name])
        self.places = 0
        self.reruns = 0
        self.stamp = 0
        self.find_until()

    def find_until(self) -> None:
        """``until`` is the last op before which an op would do again what it did: the first that
        writes what it reads; -1 if it may not run again.
        """
        for t in range(self.tensors):
            self.following[t] = self.ops
        for k in range(self.ops):
            i = self.ops - 1 - k
            self.until[i] = self.ops if self.pure[i] else -1
            for u in range(self.use_from[i], self.use_from[i + 1]):
                if self.use_flags[u] & WRITES:
                    self.following[self.use_tensor[u]] = i
            for u in range(self.use_from[i], self.use_from[i + 1]):
                if self.use_flags[u] & READS and self.following[self.use_tensor[u]] < self.until[i]:
                    self.until[i] = self.following[self.use_tensor[u]]

    def walk(self, drops: int) -> None:
        """Run all ops, and those again that make what has been dropped and is read."""
        self.places = 0
        self.reruns = 0
        for t in range(self.tensors):
            self.absent[t] = 0
            self.writer[t] = self.first[t] = self.last[t] = self.copied[t] = -1
        for place in range(self.ops + drops + 1):
            self.held[place] = 0
        d = 0
        for i in range(self.ops):
            for u in range(self.use_from[i], self.use_from[i + 1]):
                if self.use_flags[u] & READS and self.absent[self.use_tensor[u]]:
                    self.make(self.use_tensor[u], i)
            self.run(i)
            while d < drops and self.drop_after[d] == i:
                self.absent[self.drop_tensor[d]] = 1
                d += 1
        for t in range(self.tensors):
            self.end_copy(t)
            if self.starts[t]:
                self.first[t] = 0
            if self.first[t] >= 0:
                self.hold(t, self.first[t], self.places - 1 if self.ends[t] else self.last[t])
        for place in range(1, self.places):
            self.held[place] += self.held[place - 1]
        for place in range(self.places):
            self.held[place] += self.workspace[self.ran[place]]

    def make(self, t: int, at: int) -> None:
        """Make an absent tensor again before an op, and before that what its producer reads and is
        absent: depth first, without recursion, as chains are long.
        """
        self.stack[0] = t
        depth = 1
        while depth:
            t = self.stack[depth - 1]
            f = self.maker(t, at) if self.absent[t] else -1
            missing = 0
            if f >= 0:
                for u in range(self.use_from[f], self.use_from[f + 1]):
                    if self.use_flags[u] & READS and self.absent[self.use_tensor[u]]:
                        self.stack[depth + missing] = self.use_tensor[u]
                        missing += 1
            if missing:
                depth += missing
            else:
                depth -= 1
                if self.absent[t]:
                    self.absent[t] = 0  # what cannot be made again has been kept
                    if f >= 0:
                        self.run_again(f, at)

    def maker(self, t: int, at: int) -> int:
        """The op that can make, before an op, the contents that a tensor has there; -1 if none."""
        f = self.writer[t]
        return f if f >= 0 and at <= self.until[f] and not self.survives[t] else -1

    def run_again(self, f: int, at: int) -> None:
        """Run an op again before another: what it makes takes the place of what it made first,
        unless something else has been written there since.
        """
        place = self.places
        self.places += 1
        self.ran[place] = f
        self.rerun[self.reruns] = f
        self.rerun_before[self.reruns] = at
        self.reruns += 1
        for u in range(self.use_from[f], self.use_from[f + 1]):
            t = self.use_tensor[u]
            if self.use_flags[u] & READS:
                self.touch(t, place)
            elif self.writer[t] != f or self.survives[t]:
                self.hold(t, place, place)
            else:
                self.end_copy(t)
                self.copied[t] = self.copy_last[t] = place
                self.absent[t] = 0

    def run(self, i: int) -> None:
        """Run an op for the first time."""
        place = self.places
        self.places += 1
        self.ran[place] = i
        for u in range(self.use_from[i], self.use_from[i + 1]):
            t = self.use_tensor[u]
            if self.use_flags[u] & WRITES:
                self.writer[t] = i
                self.absent[t] = 0
                if not self.use_flags[u] & READS:
                    self.end_copy(t)
            self.touch(t, place)

    def touch(self, t: int, place: int) -> None:
        """What stands for a tensor is used."""
        if self.copied[t] >= 0:
            self.copy_last[t] = place
            return
        if self.first[t] < 0:
            self.first[t] = place
        self.last[t] = place

    def end_copy(self, t: int) -> None:
        """Nothing that was made again stands for a tensor any more."""
        if self.copied[t] >= 0:
            self.hold(t, self.copied[t], self.copy_last[t])
            self.copied[t] = -1

    def hold(self, t: int, first: int, last: int) -> None:
        """The device holds a tensor from one place to another; ``held`` has the changes so far."""
        self.held[first] += self.size[t]
        self.held[last + 1] -= self.size[t]

    def fill(self, gap: int, at: int, most: int, again: int) -> int:
        """Find the ops that run again so that a dropped tensor is there before an op: ``chain``;
        return how many they are.

        0 if that cannot be, or takes more than ``most`` ops. Inputs that are dead by then are made
        ``again``, too, or kept: ``kept`` are their bytes. The first ``drops`` of ``drop_tensor`` and
        ``drop_after`` are those of inputs that are made again.
        """
        self.stamp += 1
        self.seen[gap] = self.stamp
        self.stack[0] = gap
        count, depth, self.kept, self.drops = 0, 1, 0, 0
        while depth:
            depth -= 1
            t = self.stack[depth]
            k = self.uses_before(t, at)
            f = self.last_maker(t, k, at)
            if f < 0:
                if t == gap:
                    return 0
                self.kept += self.size[t]
                continue
            if t != gap:
                self.drop_tensor[self.drops] = t
                self.drop_after[self.drops] = self.user[k - 1]
                self.drops += 1
            if self.chained[f] == self.stamp:
                continue
            self.chained[f] = self.stamp
            if count == most:
                return 0
            self.chain[count] = f
            count += 1
            for u in range(self.use_from[f], self.use_from[f + 1]):
                t = self.use_tensor[u]
                if self.use_flags[u] & READS and self.seen[t] != self.stamp and self.dead(t, at):
                    self.seen[t] = self.stamp
                    if again:
                        self.stack[depth] = t
                        depth += 1
                    else:
                        self.kept += self.size[t]
        return count

    def dead(self, t: int, at: int) -> bool:
        """Return whether nobody uses a tensor at an op or later, and it does not outlive the step."""
        return not self.survives[t] and self.user[self.user_from[t + 1] - 1] < at

    def uses_before(self, t: int, at: int) -> int:
        """Where in ``user`` the uses of a tensor before an op end."""
        low, high = self.user_from[t], self.user_from[t + 1]
        while low < high:
            k = (low + high) // 2
            if self.user[k] < at:
                low = k + 1
            else:
                high = k
        return low

    def last_maker(self, t: int, end: int, at: int) -> int:
        """The op that can make, before an op, what the uses up to ``end`` leave in a tensor; -1 if
        none.
        """
        k = end - 1
        while k >= self.user_from[t] and not self.user_flags[k] & WRITES:
            k -= 1
        if k < self.user_from[t]:
            return -1
        f = self.user[k]
        return f if at <= self.until[f] and not self.survives[t] else -1
