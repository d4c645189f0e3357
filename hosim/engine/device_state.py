"""The state of one device's tiers: which copies are where, what room there is, which cache ops are issued and have not taken effect.

:mod:`hosim.engine.device_memory` and :mod:`hosim.engine.multi_hop` change it. The rules in comments are those of docs/contract.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from hosim.engine.arenas import Arena
from hosim.engine.channels import ChannelQueue, IssuedTransfer, Route
from hosim.engine.clock import Clock
from hosim.engine.compiled_plan import ABSENT, PENDING, VALID, CompiledPlan, Hop
from hosim.engine.ledger import Ledger, SharedLedger
from hosim.engine.recorder import TimelineRecorder
from hosim.engine.transfer_overheads import TransferOverheads
from hosim.graph import Graph


class DeviceState:
    """Copies, bytes and issued cache ops. ``ledgers`` and ``copies`` are indexed by tier position; ``tier`` is the device tier's.

    ``position`` is the device's among those of the clock. What it holds of a tier that it shares with others is in its own ledger and in
    the tier's one of ``pools`` (``None`` where nothing is shared). ``asks`` says of which tiers a transfer has to ask for more than bytes.

    ``copies[tier][t]`` is the state of a tracked tensor, ``resident`` is that of the device tier; of the others only their ops' amounts are
    known. ``pending[t]`` are the issued cache ops of a tensor that have not taken effect, in order (a transfer, a route, or a detach's
    hop); ``transferring[t]`` is the one under way, ``waiting`` are the channels on which transfers wait. ``sequence`` numbers transfers
    in the order of issue. ``overheads`` is there if some channel has any, and ``jitter``, if there is some, has the factor on a tensor's
    next transfer.
    """

    __slots__ = (  # more attributes than a shared dictionary takes: without, each access would be slower
        "arena",
        "asks",
        "channels",
        "clock",
        "compositions",
        "copies",
        "copies_below",
        "graph",
        "jitter",
        "ledgers",
        "overheads",
        "pending",
        "pools",
        "position",
        "program",
        "recorder",
        "resident",
        "sequence",
        "sizes",
        "tier",
        "transferring",
        "unsettled",
        "waiting",
    )

    def __init__(
        self,
        clock: Clock,
        graph: Graph,
        program: CompiledPlan,
        position: int,
        ledgers: Sequence[Ledger],
        pools: Sequence[SharedLedger | None],
        device_tier: int,
        channels: Sequence[ChannelQueue],
        sequence: Iterator[int],
        recorder: TimelineRecorder | None,
        arena: Arena | None,
        overheads: TransferOverheads | None = None,
        jitter: Callable[[int], float] | None = None,
    ) -> None:
        self.clock = clock
        self.position = position
        self.unsettled = clock.unsettled
        self.graph = graph
        self.program = program
        self.overheads = overheads
        self.jitter = jitter
        self.sizes = program.graph.sizes
        self.compositions = program.graph.compositions
        self.ledgers = ledgers
        self.pools = pools
        self.tier = device_tier
        self.channels = channels
        self.recorder = recorder
        self.arena = arena
        self.copies = [bytearray(valid) for valid in program.initial_copies]
        self.resident = self.copies[device_tier]
        self.copies_below = bytearray(program.initial_below)
        self.pending: dict[int, list[IssuedTransfer | Route | Hop]] = {}
        self.transferring: dict[int, IssuedTransfer | Route] = {}
        self.sequence = sequence
        self.waiting: list[ChannelQueue] = []
        self.asks = [pool is not None or (tier == device_tier and arena is not None) for tier, pool in enumerate(pools)]
        self._place_initial()

    def _place_initial(self) -> None:
        self.ledgers[self.tier].allocate(self.program.initial_bytes, self.program.initial_composition, 0)
        for where, tensors in self.program.initial.items():
            size, composition = sum(map(self.sizes.__getitem__, tensors)), sum(map(self.compositions.__getitem__, tensors))
            for tier in where:
                self.ledgers[tier].allocate(size, composition, 0)
                pool = self.pools[tier]
                if pool is not None:
                    pool.allocate(size, composition, 0)
                if self.overheads is not None:
                    self.overheads.place(tensors, tier)
                if self.recorder is not None:
                    for t in tensors:
                        self.recorder.hold(t, tier, 0)

    def place_residents(self) -> bool:
        """Place what is in the device tier at time 0, in the graph's order; says whether all of it found a place."""
        return self.arena is None or all([self.arena.take(t) for t, state in enumerate(self.resident) if state])

    def has_valid(self, t: int, tier: int) -> bool:
        """Whether the tensor has a valid copy in the tier."""
        return self.copies[tier][t] == VALID

    def enqueue(self, channel: ChannelQueue) -> None:
        """Say that a transfer is about to wait on a channel."""
        if not channel.queue:
            self.waiting.append(channel)

    def dequeued(self, channel: ChannelQueue) -> None:
        """Say that a transfer has begun that waited on a channel."""
        if not channel.queue:
            self.waiting.remove(channel)

    def release(self, t: int, tier: int) -> None:
        """Give a tensor's bytes in a tier back."""
        self.copies[tier][t] = ABSENT
        ledger = self.ledgers[tier]
        ledger.held -= self.sizes[t]
        ledger.composition -= self.compositions[t]
        if tier == self.tier:
            if self.arena is not None:
                self.arena.drop(t)
        else:
            self.copies_below[t] -= 1
            self.release_shared(tier, self.sizes[t], self.compositions[t])
            if self.overheads is not None:
                self.overheads.unpin(t, tier)
        if self.recorder is not None:
            self.recorder.release(t, tier, self.clock.time)

    def release_shared(self, tier: int, size: int, composition: int) -> None:
        """Bytes of a tier are free again for the devices that share it, if any do: those that wait for room are looked at again."""
        pool = self.pools[tier]
        if pool is not None:
            pool.release(size, composition)
            self.unsettled |= pool.waiting
            pool.waiting.clear()

    def drop_below(self, t: int) -> None:
        """Rule 5: a write makes the copies on other tiers stale."""
        for tier, copies in enumerate(self.copies):
            if copies[t] and tier != self.tier:
                self.release(t, tier)

    def reserve(self, t: int, destination: int, now: int) -> int:
        """Take a tensor's bytes where a transfer brings it, if it has none there yet: nanoseconds to pin them, -1 if there is no room."""
        copies = self.copies[destination]
        if copies[t] != ABSENT:
            return 0
        ledger = self.ledgers[destination]
        held = ledger.held + self.sizes[t]
        if held > ledger.capacity or (self.asks[destination] and not self._granted(t, destination, now)):
            return -1
        if destination != self.tier:
            self.copies_below[t] += 1
        ledger.held = held
        ledger.composition += self.compositions[t]
        if held > ledger.peak:
            ledger.mark_peak(now)
        copies[t] = PENDING
        if self.recorder is not None:
            self.recorder.hold(t, destination, now)
        return self.overheads.pin(t, destination) if self.overheads is not None else 0

    def _granted(self, t: int, destination: int, now: int) -> bool:
        """Whether the devices that share a tier leave room for a tensor, and the arena a place: then it has them."""
        pool = self.pools[destination]
        if pool is not None and not pool.has_room(self.sizes[t], self.position):
            return False
        if destination == self.tier and self.arena is not None and not self.arena.take(t):
            return False
        if pool is not None:
            pool.allocate(self.sizes[t], self.compositions[t], now)
        return True
