"""Cache ops of one device from their issue on: queues, engines, chunks, detaches (docs/contract.md, rules 3, 5, 6, 7, 14)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction

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
    """A part of a move on one of its hops, a whole tensor where a channel joins the tiers; ``sequence`` is its place in the order of issue.

    ``staged_ns`` is since when it lies in the tier that the hop leaves, if that is one in between. Times are in nanoseconds; ``alone_ns``
    is what it would take alone.
    """

    move: Issued
    hop: int
    size: int
    sequence: float
    issue_ns: int
    staged_ns: int
    start_ns: int = -1
    end_ns: int = -1
    alone_ns: int = -1

    @property
    def channel(self) -> Channel:
        """What it crosses."""
        return self.move.hops[self.hop]

    @property
    def arrives(self) -> bool:
        """Whether this is the last hop."""
        return self.hop + 1 == len(self.move.hops)

    @property
    def tensor(self) -> int:
        """What moves."""
        return self.move.cache_op.tensor

    @property
    def cache_op(self) -> int:
        """The place in the plan of the cache op that moves it."""
        return self.move.k

    @property
    def order(self) -> tuple[float, int, int]:
        """The order of issue; of what goes ahead of the same cache op (rule 7), the one that came there first is first."""
        return self.sequence, self.issue_ns, self.move.k


class Lane:
    """One channel of one device: its queue, its engines, its figures. ``alone`` is what a transfer that shares nothing gets."""

    def __init__(self, channel: Channel, links: tuple[Link, ...], alone: int) -> None:
        self.channel = channel
        self.links = links
        self.alone = alone
        self.running = 0
        self.queue: deque[Piece] = deque()
        self.busy_since = 0
        self.transfers = self.bytes = self.busy_ns = self.queue_ns = self.contention_ns = self.exposed_ns = 0


class Transfers:
    """The cache ops of one device. ``pending`` are those of a tensor that have not taken effect, in order of issue.

    ``passed`` are the chunks that have crossed a hop at this instant, ``arrivals`` those among them with which a move arrived. ``dead``
    are tensors whose last user has ended. ``order`` numbers transfers as they are issued, ``wake`` says that something has ended, and
    ``factor`` is jitter's on a tensor's next transfer (rule 15).
    """

    def __init__(
        self,
        env: Nanoseconds,
        hardware: Hardware,
        storage: Storage,
        fluid: Fluid,
        device: int,
        order: Iterator[int],
        wake: Callable[[int], None],
        factor: Callable[[int], float] | None,
    ) -> None:
        self.env, self.hardware, self.storage, self.fluid = env, hardware, storage, fluid
        self.device, self.order, self.wake, self.factor = device, order, wake, factor
        self.lanes = {c.name: self._lane(c) for c in hardware.channels}
        self.pending: dict[int, deque[Issued]] = {}
        self.done: set[int] = set()
        self.dead: set[int] = set()
        self.passed: list[Piece] = []
        self.arrivals: list[Piece] = []
        self.crossed: list[Piece] = []
        self.last_end = 0

    def _lane(self, channel: Channel) -> Lane:
        fabrics = [f.bandwidth_bytes_per_s for f in self.hardware.fabrics if channel.name in f.channels]
        return Lane(channel, self.fluid.links(channel, self.device), min([channel.bandwidth_bytes_per_s, *fabrics]))

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
            self._join(Piece(move, 0, part, next(self.order), self.env.now, self.env.now))

    def _join(self, chunk: Piece) -> None:
        """Into the queue of its hop: behind all, but on its way ahead of what waits for an earlier cache op of its tensor."""
        queue = self.lanes[chunk.channel.name].queue
        for place, other in enumerate(queue if chunk.hop else ()):
            if not other.hop and self.pending[other.tensor][0] is not other.move:
                chunk.sequence = other.sequence - 0.5
                queue.insert(place, chunk)
                return
        queue.append(chunk)

    def detach_due(self, t: int, detach: Callable[[Issued], None]) -> None:
        """Detaches of a tensor that nothing of it is before any more take effect."""
        waiting = self.pending[t]
        while waiting and waiting[0].cache_op.op == DETACH:
            detach(waiting[0])
            waiting.popleft()

    def waiting(self) -> list[Lane]:
        """The channels in whose queues something waits for an engine that is free."""
        return [lane for lane in self.lanes.values() if lane.queue and lane.running < lane.channel.engines]

    # -- start and end (rules 3, 4 and 6) ------------------------------------------------------------------------

    def begin(self, lane: Lane) -> bool:
        """Begin the first of a queue if it can: an engine, its turn, a valid source, room at the destination."""
        chunk, channel, storage = lane.queue[0], lane.channel, self.storage
        move, t, pinning = chunk.move, chunk.tensor, 0
        if lane.running == channel.engines or chunk.hop in move.under_way:
            return False
        if not chunk.hop and (self.pending[t][0] is not move or storage.copies[t].get(channel.source) != VALID):
            return False
        if chunk.arrives:
            pins = storage.bring(t, channel.destination)
            if pins is None:
                return False
            pinning = pins
        elif not storage.stage(t, channel.destination, chunk.size):
            return False
        lane.queue.popleft()
        move.begun = True
        move.under_way.add(chunk.hop)
        if not lane.running:
            lane.busy_since = self.env.now
        lane.running += 1
        self.env.going += 1
        self.env.process(self._transfer(lane, chunk, pinning))
        return True

    def _transfer(self, lane: Lane, chunk: Piece, pinning: int) -> Steps:
        channel, tensor, volume = lane.channel, self.storage.tensors[chunk.tensor], chunk.size * NS_PER_S
        if self.factor is not None:
            volume = round(volume * chunk.move.factor)
        most = channel.ceiling(chunk.size, is_pageable(self.hardware, channel, tensor.kind))
        waits, at_most = pinning + channel.latency_ns, lane.alone if most is None else min(Fraction(lane.alone), most)
        chunk.start_ns, chunk.alone_ns = self.env.now, waits - int(-volume // at_most)
        lane.transfers += 1
        lane.bytes += chunk.size
        lane.queue_ns += chunk.start_ns - chunk.issue_ns
        if waits:
            yield self.env.timeout(waits)
        yield from self.fluid.flow(Flow(self.env, volume, self.device, lane.links, most, channel))
        chunk.end_ns = self.last_end = self.env.now
        lane.contention_ns += chunk.end_ns - chunk.start_ns - chunk.alone_ns
        lane.running -= 1
        if not lane.running:
            lane.busy_ns += chunk.end_ns - lane.busy_since
        self.passed.append(chunk)
        self.env.going -= 1
        self.wake(self.device)

    def end(self) -> list[int]:
        """What has crossed a hop at this instant: the tensors of which a move has arrived. The others go on after all detaches."""
        passed, self.passed, arrived = sorted(self.passed, key=lambda x: x.order), [], []
        for chunk in passed:
            move, t, channel = chunk.move, chunk.tensor, chunk.channel
            move.under_way.discard(chunk.hop)
            if self.storage.recorder is not None:
                self.storage.recorder.transfer(chunk)
            if chunk.hop:
                self.storage.unstage(t, channel.source, chunk.size, chunk.staged_ns)
            if not chunk.arrives:
                self.crossed.append(chunk)
                continue
            move.left -= 1
            if not move.left:
                self.storage.copies[t][channel.destination] = VALID
                self.done.add(move.k)
                self.pending[t].popleft()
                self.arrivals.append(chunk)
                arrived.append(t)
        return arrived

    def go_on(self) -> None:
        """Chunks that have crossed a hop join the queues of their next ones."""
        crossed, self.crossed = self.crossed, []
        for chunk in crossed:
            now = self.env.now
            self._join(Piece(chunk.move, chunk.hop + 1, chunk.size, next(self.order), now, chunk.start_ns))

    def is_under_way(self, t: int) -> bool:
        """Whether a transfer of a tensor has begun and not ended, or a runtime policy has decided on one."""
        return any([move.hops and (move.begun or move.k < 0) for move in self.pending[t]])
