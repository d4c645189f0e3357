"""Cache ops of one device from their issue on: queues, engines, chunks, detaches (docs/contract.md, rules 3, 5, 6, 7, 14)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction

import simpy

from hosim.cache_plan import DETACH, CacheOp
from hosim.costmodel.transfers import NS_PER_S, Link, chunks_of, is_pageable, route
from hosim.engine.reference.fluid import Flow, Fluid, Nanoseconds, Steps
from hosim.engine.reference.storage import VALID, Storage
from hosim.hardware import Channel, Hardware


@dataclass(eq=False)
class Issued:
    """An issued cache op; ``k`` is its place in the plan, -1 if a runtime policy decided on it. ``left`` chunks have not arrived."""

    k: int
    cache_op: CacheOp
    behind: bool
    hops: tuple[Channel, ...] = ()
    left: int = 0
    factor: float = 1.0
    under_way: set[int] = field(default_factory=set)
    begun: bool = False


@dataclass(eq=False)
class Piece:
    """A part of a move on one of its hops, a whole tensor where a channel joins the tiers; ``order`` is its place in the order of issue."""

    move: Issued
    hop: int
    size: int
    order: float
    issued: int
    begun: int = -1
    ended: int = -1


class Lane:
    """One channel of one device: its queue, its engines, its figures. ``alone`` is what a transfer that shares nothing gets."""

    def __init__(self, env: Nanoseconds, channel: Channel, links: tuple[Link, ...], alone: int) -> None:
        self.channel = channel
        self.links = links
        self.alone = alone
        self.engines = simpy.Resource(env, channel.engines)
        self.queue: deque[Piece] = deque()
        self.busy_since = 0
        self.transfers = self.bytes = self.busy_ns = self.queue_ns = self.contention_ns = self.exposed_ns = 0


class Transfers:
    """The cache ops of one device. ``pending`` are those of a tensor that have not taken effect, in order of issue.

    ``passed`` are the chunks that have crossed a hop at this instant, ``arrivals`` those among them with which a move arrived. ``dead``
    are tensors whose last user has ended. ``pause`` waits, ``changed`` says that something has ended.
    """

    def __init__(
        self,
        env: Nanoseconds,
        hardware: Hardware,
        storage: Storage,
        fluid: Fluid,
        device: int,
        order: Iterator[int],
        pause: Callable[[int], Steps],
        factor: Callable[[int], float] | None,
    ) -> None:
        self.env, self.hardware, self.storage, self.fluid = env, hardware, storage, fluid
        self.device, self.order, self.pause, self.factor = device, order, pause, factor
        self.lines = {c.name: self._line(c) for c in hardware.channels}
        self.pending: dict[int, deque[Issued]] = {}
        self.done: set[int] = set()
        self.dead: set[int] = set()
        self.passed: list[Piece] = []
        self.arrivals: list[Piece] = []
        self.crossed: list[Piece] = []
        self.last_end = 0

    def _line(self, channel: Channel) -> Lane:
        fabrics = [f.bandwidth_bytes_per_s for f in self.hardware.fabrics if channel.name in f.channels]
        return Lane(self.env, channel, self.fluid.links(channel, self.device), min([channel.bandwidth_bytes_per_s, *fabrics]))

    # -- issue (rules 3 and 7) -----------------------------------------------------------------------------------

    def issue(self, k: int, cache_op: CacheOp, detach: Callable[[Issued], None]) -> None:
        """Issue a cache op; one of a tensor that has been released does nothing."""
        t = cache_op.tensor
        if t in self.dead:
            return
        waiting = self.pending.setdefault(t, deque())
        move = Issued(k, cache_op, bool(waiting))
        waiting.append(move)
        if cache_op.destination is None:
            self.detach_due(t, detach)
            return
        size = self.storage.tensors[t].size_bytes
        move.hops = route(self.hardware, cache_op.source, cache_op.destination, size)
        if self.factor is not None:
            move.factor = self.factor(t)
        parts = chunks_of(self.hardware, size) if len(move.hops) > 1 else [size]
        move.left = len(parts)
        for part in parts:
            self._join(Piece(move, 0, part, next(self.order), self.env.now))

    def _join(self, chunk: Piece) -> None:
        """Into the queue of its hop: behind all, but on its way ahead of what waits for an earlier cache op of its tensor."""
        queue, chunk.issued = self.lines[chunk.move.hops[chunk.hop].name].queue, self.env.now
        for place, other in enumerate(queue if chunk.hop else ()):
            if not other.hop and self.pending[other.move.cache_op.tensor][0] is not other.move:
                chunk.order = other.order - 0.5
                queue.insert(place, chunk)
                return
        queue.append(chunk)

    def detach_due(self, t: int, detach: Callable[[Issued], None]) -> None:
        """Detaches of a tensor that nothing of it is before any more take effect."""
        waiting = self.pending[t]
        while waiting and waiting[0].cache_op.op == DETACH:
            detach(waiting[0])
            waiting.popleft()

    # -- start and end (rules 3, 4 and 6) ------------------------------------------------------------------------

    def begin(self, line: Lane) -> bool:
        """Begin the first of a queue if it can: an engine, its turn, a valid source, room at the destination."""
        chunk = line.queue[0]
        move, t, last = chunk.move, chunk.move.cache_op.tensor, chunk.hop + 1 == len(chunk.move.hops)
        storage, channel, pinning = self.storage, line.channel, 0
        if line.engines.count == line.engines.capacity or chunk.hop in move.under_way:
            return False
        if not chunk.hop and (self.pending[t][0] is not move or storage.copies.get((t, channel.source)) != VALID):
            return False
        if not last:
            if not storage.fits(channel.destination, chunk.size):
                return False
            storage.take(channel.destination, storage.tensors[t].kind, chunk.size)
        elif (t, channel.destination) not in storage.copies:
            if not storage.fits(channel.destination, storage.tensors[t].size_bytes):
                return False
            pinning = storage.bring(t, channel.destination)
        line.queue.popleft()
        move.begun = True
        move.under_way.add(chunk.hop)
        if not line.engines.count:
            line.busy_since = self.env.now
        self.env.process(self._transfer(line, chunk, line.engines.request(), pinning))
        return True

    def _transfer(self, line: Lane, chunk: Piece, engine: simpy.resources.resource.Request, pinning: int) -> Steps:
        channel, tensor = line.channel, self.storage.tensors[chunk.move.cache_op.tensor]
        volume = round(chunk.size * NS_PER_S * chunk.move.factor)
        most = channel.ceiling(chunk.size, is_pageable(self.hardware, channel, tensor.kind))
        chunk.begun = self.env.now
        line.transfers += 1
        line.bytes += chunk.size
        line.queue_ns += chunk.begun - chunk.issued
        yield from self.pause(pinning + channel.latency_ns)
        yield from self.fluid.run(Flow(self.env, volume, self.device, line.links, most, channel))
        line.engines.release(engine)
        chunk.ended = self.last_end = self.env.now
        alone = pinning + channel.latency_ns - (-volume // min(Fraction(line.alone), most or Fraction(line.alone)))
        line.contention_ns += chunk.ended - chunk.begun - alone
        if not line.engines.count:
            line.busy_ns += chunk.ended - line.busy_since
        self.passed.append(chunk)
        self.fluid.changed()

    def end(self) -> set[int]:
        """What has crossed a hop at this instant: the tensors of which a move has arrived. The others go on after all detaches."""
        passed, self.passed, arrived = sorted(self.passed, key=lambda x: x.order), [], set()
        for chunk in passed:
            move, t = chunk.move, chunk.move.cache_op.tensor
            channel = move.hops[chunk.hop]
            move.under_way.discard(chunk.hop)
            if chunk.hop:
                self.storage.free(channel.source, self.storage.tensors[t].kind, chunk.size)
            if chunk.hop + 1 < len(move.hops):
                self.crossed.append(chunk)
                continue
            move.left -= 1
            if not move.left:
                self.storage.copies[t, channel.destination] = VALID
                self.done.add(move.k)
                self.pending[t].popleft()
                self.arrivals.append(chunk)
                arrived.add(t)
        return arrived

    def go_on(self) -> None:
        """Chunks that have crossed a hop join the queues of their next ones."""
        crossed, self.crossed = self.crossed, []
        for chunk in crossed:
            self._join(Piece(chunk.move, chunk.hop + 1, chunk.size, next(self.order), self.env.now))

    def is_under_way(self, t: int) -> bool:
        """Whether a transfer of a tensor has begun and not ended, or a runtime policy has decided on one."""
        return any([move.hops and (move.begun or move.k < 0) for move in self.pending.get(t, ())])
