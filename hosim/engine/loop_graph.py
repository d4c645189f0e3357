"""What ops use and what they wait for on other streams (docs/contract.md, rule 1), from one flat
list of what they name.
"""

from __future__ import annotations

from typing import Any

from hosim.engine.cells import Flags, Int, Ints, made
from hosim.engine.loop_cells import OUTPUT, READS, WRITES


class LoopGraph:
    """Arrays of a graph made from others; compiled with the loop.

    ``listed`` has what op ``i`` names: its inputs from ``listed_from[4 * i]`` on, then its outputs,
    what it mutates and the ops that it waits for, and ``listed_from[4 * i + 4]`` is the end. So
    does all that has a ``_from``, one list an op. Uses and waits get room for as many as there may
    be. ``last`` and what follows it are for the computation alone.
    """

    ops: Int
    tensors: Int
    streams: Int
    listed_from: Ints
    listed: Ints
    stream_of: Ints

    queue_from: Ints = made("streams+1")
    queue: Ints = made("ops")
    place: Ints = made("ops")
    user_from: Ints = made("tensors+1")
    use_from: Ints = made("ops+1")
    wait_from: Ints = made("ops+1")
    use_op: Ints = made("named")
    use_tensor: Ints = made("named")
    use_flags: Flags = made("named")
    user: Ints = made("named")
    wait_stream: Ints = made("awaited")
    wait_count: Ints = made("awaited")

    last: Ints = made("tensors", -1)
    read: Ints = made("tensors*clocks")
    clock: Ints = made("ops*clocks")
    known: Ints = made("streams")
    missing: Ints = made("streams")

    def __init__(self, cells: Any) -> None:
        self.take(cells)
        self.uses = 0
        self.waits = 0

    def take(self, cells: Any) -> None:
        """Let the arrays be those of ``cells``."""
        for name in LoopGraph.__annotations__:
            setattr(self, name, cells[name])

    def derive(self) -> None:
        """Fill the arrays; ``uses`` and ``waits`` are how many there are."""
        self.list_queues()
        for i in range(self.ops):
            for k in range(self.listed_from[4 * i], self.listed_from[4 * i + 1]):
                self.use(i, self.listed[k], READS)
            for k in range(self.listed_from[4 * i + 1], self.listed_from[4 * i + 2]):
                self.use(i, self.listed[k], WRITES | OUTPUT)
            for k in range(self.listed_from[4 * i + 2], self.listed_from[4 * i + 3]):
                self.use(i, self.listed[k], READS | WRITES)
            self.use_from[i + 1] = self.uses
        self.list_users()
        if self.streams > 1:
            for t in range(self.tensors):
                self.last[t] = -1
            for i in range(self.ops):
                self.list_waits(i)

    def list_queues(self) -> None:
        """The ops of each stream, and each op's place among them."""
        for i in range(self.ops):
            self.place[i] = self.queue_from[self.stream_of[i] + 1]
            self.queue_from[self.stream_of[i] + 1] += 1
        for s in range(self.streams):
            self.queue_from[s + 1] += self.queue_from[s]
        for i in range(self.ops):
            self.queue[self.queue_from[self.stream_of[i]] + self.place[i]] = i

    def use(self, i: int, t: int, flags: int) -> None:
        """An op uses a tensor: ``last`` is the last use of each."""
        u = self.last[t]
        if u >= 0 and self.use_op[u] == i:
            self.use_flags[u] |= flags
            return
        u = self.uses
        self.uses += 1
        self.last[t] = u
        self.use_op[u] = i
        self.use_tensor[u] = t
        self.use_flags[u] = flags
        self.user_from[t + 1] += 1

    def list_users(self) -> None:
        """The uses of each tensor, ascending; ``last`` is where the next one of a tensor stands."""
        for t in range(self.tensors):
            self.last[t] = self.user_from[t]
            self.user_from[t + 1] += self.user_from[t]
        for u in range(self.uses):
            t = self.use_tensor[u]
            self.user[self.last[t]] = u
            self.last[t] += 1

    def list_waits(self, i: int) -> None:
        """Streams, and how many of their ops must have ended: those whose end the op before on the
        same stream does not imply.

        ``clock`` is how many ops of each stream have surely ended when an op has. ``last`` is who
        wrote a tensor last, ``read`` how many ops of each stream must have ended so that all have
        which read it since then.
        """
        s = self.stream_of[i]
        for r in range(self.streams):
            self.missing[r] = 0
            self.known[r] = (
                self.clock[self.queue[self.queue_from[s] + self.place[i] - 1] * self.streams + r]
                if self.place[i]
                else 0
            )
        for k in range(self.listed_from[4 * i + 3], self.listed_from[4 * i + 4]):
            self.need(self.stream_of[self.listed[k]], self.place[self.listed[k]] + 1)
        for u in range(self.use_from[i], self.use_from[i + 1]):
            t = self.use_tensor[u]
            if self.last[t] >= 0:
                self.need(self.stream_of[self.last[t]], self.place[self.last[t]] + 1)
            if self.use_flags[u] & WRITES:
                self.last[t] = i
                for r in range(self.streams):
                    self.need(r, self.read[t * self.streams + r])
                    self.read[t * self.streams + r] = 0
            else:
                self.read[t * self.streams + s] = self.place[i] + 1
        for r in range(self.streams):
            self.clock[i * self.streams + r] = self.known[r]
        self.clock[i * self.streams + s] = self.place[i] + 1
        for r in range(self.streams):
            if self.missing[r]:
                self.wait_stream[self.waits] = r
                self.wait_count[self.waits] = self.missing[r]
                self.waits += 1
                self.pass_on(self.queue[self.queue_from[r] + self.missing[r] - 1], i)
        self.wait_from[i + 1] = self.waits

    def need(self, s: int, count: int) -> None:
        """So many ops of a stream must have ended."""
        if count > self.known[s] and count > self.missing[s]:
            self.missing[s] = count

    def pass_on(self, p: int, i: int) -> None:
        """What has ended when one op has, has when the other has."""
        for r in range(self.streams):
            if self.clock[p * self.streams + r] > self.clock[i * self.streams + r]:
                self.clock[i * self.streams + r] = self.clock[p * self.streams + r]
