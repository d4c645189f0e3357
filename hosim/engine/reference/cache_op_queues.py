"""The cache ops of one device after their issue: queues, engines, chunks, detaches
(docs/contract.md, rules 3, 5, 6, 7, 14).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction

from hosim.analysis.costmodel.transfers import (
    NS_PER_S,
    ceiling,
    channel_bandwidth,
    chunks_of,
    route,
)
from hosim.cache_plan import DETACH, CacheOp
from hosim.engine.reference.fluid import Fluid, Nanoseconds, Steps
from hosim.engine.reference.storage import VALID, Storage
from hosim.engine.result_figures import ChannelCounts
from hosim.hardware import Channel, Hardware


@dataclass(eq=False, slots=True)
class Issued:
    """An issued cache op; ``k`` is its position in the plan, or -1 if a runtime policy issued it.

    ``left`` is the number of chunks that have not arrived. ``behind`` is set if an earlier cache op
    of the tensor was pending at the issue.
    """

    k: int
    cache_op: CacheOp
    behind: bool
    hops: tuple[Lane, ...] = ()
    left: int = 0
    factor: float = 1.0
    under_way: set[int] = field(default_factory=set)
    begun: bool = False


@dataclass(eq=False, slots=True)
class Piece:
    """A chunk on one hop of a move, or the whole tensor if one channel joins the tiers.

    ``sequence`` is its place in the order of issue. ``arrives`` is set on the last hop.
    ``staged_ns`` is when the chunk began to occupy the intermediate tier that this hop leaves.
    Times are in nanoseconds; ``alone_ns`` is the duration without contention.
    """

    move: Issued
    tensor: int
    hop: int
    lane: Lane
    arrives: bool
    size: int
    sequence: float
    issue_ns: int
    staged_ns: int
    start_ns: int = -1
    end_ns: int = -1
    alone_ns: int = -1

    @property
    def channel(self) -> Channel:
        """The channel that it crosses."""
        return self.lane.channel

    @property
    def cache_op(self) -> int:
        """The position in the plan of the cache op that moves it."""
        return self.move.k

    @property
    def order(self) -> tuple[float, int, int]:
        """The key of the order of issue.

        Of chunks that overtake the same cache op (rule 7), the first to join comes first.
        """
        return self.sequence, self.issue_ns, self.move.k


class WaitingLine:
    """A queue of one device and its engines, of which ``taken`` are busy.

    One channel has it, or several share it (rule 24).
    """

    def __init__(self, engines: int) -> None:
        self.engines, self.taken = engines, 0
        self.pieces: deque[Piece] = deque()

    @property
    def is_ready(self) -> bool:
        """Return whether a chunk waits and an engine is free."""
        return bool(self.pieces) and self.taken < self.engines


class Lane(ChannelCounts):
    """One channel of one device: its queue and its figures.

    ``terms`` caches the results of :meth:`Transfers._terms`.
    """

    def __init__(
        self, channel: Channel, hardware: Hardware, storage: Storage, queue: WaitingLine
    ) -> None:
        super().__init__()
        self.channel = channel
        self.queue = queue
        self.source, self.destination = (
            storage.rooms[channel.source],
            storage.rooms[channel.destination],
        )
        self.alone = channel_bandwidth(hardware, channel.name)
        self.terms: dict[tuple[int, str], tuple[int, int | Fraction]] = {}
        self.running = 0
        self.busy_since = 0


class Transfers:
    """The cache ops of one device.

    ``pending`` has each tensor's cache ops that have not taken effect, in order of issue.
    ``passed`` are the chunks that crossed a hop at this instant, ``arrivals`` those of them that
    completed a move. ``dead`` are tensors whose last user has ended. ``order`` numbers transfers as
    they are issued, ``wake`` reports that one has ended, and ``factor`` gives the jitter of a
    tensor's next transfer (rule 15).
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
        self.tensors = storage.device.graph.tensors
        self.recorder = storage.device.recorder
        first = hardware.queue_of
        queues = {
            c.name: WaitingLine(c.engines) for c in hardware.channels if first[c.name] == c.name
        }
        self.queues = tuple(queues.values())
        self.lanes = {
            c.name: Lane(c, hardware, storage, queues[first[c.name]]) for c in hardware.channels
        }
        self.ways: dict[tuple[str, str | None, int], tuple[tuple[Lane, ...], list[int]]] = {}
        self.pending: dict[int, list[Issued]] = {}
        self.done: set[int] = set()
        self.dead: set[int] = set()
        self.passed: list[Piece] = []
        self.arrivals: list[Piece] = []
        self.crossed: list[Piece] = []
        self.last_end = 0

    # -- issue (rules 3 and 7)
    # -----------------------------------------------------------------------------------

    def issue(self, k: int, cache_op: CacheOp, detach: Callable[[Issued], None]) -> None:
        """Issue a cache op; it does nothing if its tensor is dead."""
        t = cache_op.tensor
        if t in self.dead:
            return
        waiting = self.pending.setdefault(t, [])
        move = Issued(k, cache_op, bool(waiting))
        waiting.append(move)
        if cache_op.op == DETACH:
            self.detach_due(t, detach)
            return
        move.hops, parts = self._way(
            cache_op.source, cache_op.destination, self.tensors[t].size_bytes
        )
        if self.factor is not None:
            move.factor = self.factor(t)
        move.left = len(parts)
        for part in parts:
            self._join(move, 0, part, self.env.now)

    def _way(
        self, source: str, destination: str | None, size: int
    ) -> tuple[tuple[Lane, ...], list[int]]:
        """Return the channels of a move, and the bytes of each of its chunks (rule 7)."""
        key = source, destination, size
        if key not in self.ways:
            assert destination is not None
            hops = route(self.hardware, source, destination, size)
            self.ways[key] = (
                tuple([self.lanes[c.name] for c in hops]),
                chunks_of(self.hardware, size) if len(hops) > 1 else [size],
            )
        return self.ways[key]

    def _join(self, move: Issued, hop: int, size: int, staged_ns: int) -> None:
        """Add a chunk to the queue of a hop.

        It joins at the end; on a later hop it overtakes first-hop chunks that still wait for an
        earlier cache op of their tensor.
        """
        lane = move.hops[hop]
        pieces = lane.queue.pieces
        chunk = Piece(
            move,
            move.cache_op.tensor,
            hop,
            lane,
            hop + 1 == len(move.hops),
            size,
            next(self.order),
            self.env.now,
            staged_ns,
        )
        for place, other in enumerate(pieces if hop else ()):
            if not other.hop and self.pending[other.tensor][0] is not other.move:
                chunk.sequence = other.sequence - 0.5
                pieces.insert(place, chunk)
                return
        pieces.append(chunk)

    def detach_due(self, t: int, detach: Callable[[Issued], None]) -> None:
        """Carry out the detaches of a tensor that are at the front of its pending cache ops."""
        waiting = self.pending[t]
        while waiting and waiting[0].cache_op.op == DETACH:
            detach(waiting[0])
            del waiting[0]
        if not waiting:
            del self.pending[t]

    # -- start and end (rules 3, 4 and 6)
    # ------------------------------------------------------------------------

    def begin(self, queue: WaitingLine) -> bool:
        """Begin the first chunk of a queue if it can start, and return whether it did.

        It needs an engine, its turn, a valid source and room at the destination.
        """
        chunk = queue.pieces[0]
        lane, move, t, pinning = chunk.lane, chunk.move, chunk.tensor, 0
        if not queue.is_ready or chunk.hop in move.under_way:
            return False
        if not chunk.hop and (self.pending[t][0] is not move or lane.source.copies.get(t) != VALID):
            return False
        if chunk.arrives:
            pins = lane.destination.bring(t)
            if pins is None:
                return False
            pinning = pins
        elif not lane.destination.stage(t, chunk.size):
            return False
        queue.pieces.popleft()
        queue.taken += 1
        move.begun = True
        move.under_way.add(chunk.hop)
        if not lane.running:
            lane.busy_since = self.env.now
        lane.running += 1
        self.env.going += 1
        self.env.process(self._transfer(lane, chunk, pinning))
        return True

    def _transfer(self, lane: Lane, chunk: Piece, pinning: int) -> Steps:
        env, size, volume = self.env, chunk.size, chunk.size * NS_PER_S
        if self.factor is not None:
            volume = round(volume * chunk.move.factor)
        waits = pinning + lane.channel.latency_ns
        crossing, at_most = self._terms(lane, size, self.tensors[chunk.tensor].kind)
        chunk.start_ns, chunk.alone_ns = env.now, waits - int(-volume // at_most)
        lane.transfers += 1
        lane.bytes += size
        lane.queue_ns += env.now - chunk.issue_ns
        if waits:
            yield env.timeout(waits)
        yield from self.fluid.flow(volume, crossing, self.device)
        chunk.end_ns = self.last_end = now = env.now
        lane.contention_ns += now - chunk.start_ns - chunk.alone_ns
        lane.running -= 1
        lane.queue.taken -= 1
        if not lane.running:
            lane.busy_ns += now - lane.busy_since
        self.passed.append(chunk)
        env.going -= 1
        self.wake(self.device)

    def _terms(self, lane: Lane, size: int, kind: str) -> tuple[int, int | Fraction]:
        """Return the crossing of a transfer of this size and kind, and the bytes a second that it
        gets alone (rules 6 and 14).
        """
        if (size, kind) not in lane.terms:
            most = ceiling(self.hardware, lane.channel, size, kind)
            lane.terms[size, kind] = (
                self.fluid.crossing(lane.channel, most),
                lane.alone if most is None else min(Fraction(lane.alone), most),
            )
        return lane.terms[size, kind]

    def end(self) -> list[int]:
        """End the chunks that crossed a hop at this instant, and return the tensors that arrived.

        Chunks that have hops left go on after all detaches.
        """
        passed, self.passed, arrived = sorted(self.passed, key=lambda x: x.order), [], []
        for chunk in passed:
            move, t, lane = chunk.move, chunk.tensor, chunk.lane
            move.under_way.discard(chunk.hop)
            if self.recorder is not None:
                self.recorder.transfer(chunk)
            if chunk.hop:
                lane.source.unstage(t, chunk.size, chunk.staged_ns)
            if not chunk.arrives:
                self.crossed.append(chunk)
                continue
            move.left -= 1
            if not move.left:
                lane.destination.copies[t] = VALID
                self.done.add(move.k)
                del self.pending[t][0]
                self.arrivals.append(chunk)
                arrived.append(t)
        return arrived

    def go_on(self) -> None:
        """Move chunks that crossed a hop to the queues of their next hops."""
        crossed, self.crossed = self.crossed, []
        for chunk in crossed:
            self._join(chunk.move, chunk.hop + 1, chunk.size, chunk.start_ns)

    def is_under_way(self, t: int) -> bool:
        """Return whether a transfer of a tensor is running, or a runtime policy has issued one."""
        return any([move.hops and (move.begun or move.k < 0) for move in self.pending.get(t, ())])

    def is_over(self, k: int, t: int) -> bool:
        """Return whether the plan's cache op ``k`` of tensor ``t`` has ended.

        A cache op that finds its tensor dead counts as ended.
        """
        return k in self.done or (
            t in self.dead and all([move.k != k for move in self.pending.get(t, ())])
        )
