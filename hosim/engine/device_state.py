"""The state of one device's tiers: which copies are where, what room there is, which cache ops are issued and have not taken effect.

:mod:`hosim.engine.device_memory` and :mod:`hosim.engine.multi_hop` change it. The rules in comments are those of docs/contract.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from hosim.engine.arenas import Arena
from hosim.engine.channels import ChannelQueue, IssuedTransfer, Route
from hosim.engine.clock import Clock
from hosim.engine.compiled_plan import CompiledPlan, Hop
from hosim.engine.ledger import Ledger, SharedLedger
from hosim.engine.recorder import TimelineRecorder
from hosim.engine.transfer_overheads import TransferOverheads
from hosim.graph import Graph

ABSENT, PENDING, VALID = 0, 1, 2
"""State of a tracked tensor's copy in a tier: no bytes held; bytes held but being written; valid."""


class DeviceState:
    """Copies, bytes and issued cache ops. ``ledgers`` and ``copies`` are indexed by tier position; ``tier`` is the device tier's.

    ``position`` is the device's among those of the clock. What it holds of a tier that it shares with others is in its own ledger and in
    the tier's one of ``pools`` (``None`` where nothing is shared).

    ``copies[tier][t]`` is the state of a tracked tensor, ``resident`` is that of the device tier; of the others only their ops' amounts are
    known. ``pending[t]`` are the issued cache ops of a tensor that have not taken effect, in order (a transfer, a route, or a detach's
    hop); ``transferring[t]`` is the one under way, ``queued`` counts the transfers that wait on a channel. ``sequence`` numbers transfers
    in the order of issue. ``overheads`` is there if some channel has any, and ``jitter``, if there is some, has the factor on a tensor's
    next transfer.
    """

    __slots__ = (  # more attributes than a shared dictionary takes: without, each access would be slower
        "arena",
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
        "queued",
        "recorder",
        "resident",
        "sequence",
        "sizes",
        "tier",
        "transferring",
        "unsettled",
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
        tensors = len(graph.tensors)
        self.copies = [bytearray(tensors) for _ in ledgers]
        self.resident = self.copies[device_tier]
        self.copies_below = bytearray(tensors)
        self.pending: dict[int, list[IssuedTransfer | Route | Hop]] = {}
        self.transferring: dict[int, IssuedTransfer | Route] = {}
        self.sequence = sequence
        self.queued = 0
        self._place_initial()

    def _place_initial(self) -> None:
        self.ledgers[self.tier].allocate(self.program.initial_bytes, self.program.initial_composition, 0)
        for where, tensors in self.program.initial.items():
            size, composition = sum([self.sizes[t] for t in tensors]), sum([self.compositions[t] for t in tensors])
            for tier in where:
                self.ledgers[tier].allocate(size, composition, 0)
                pool = self.pools[tier]
                if pool is not None:
                    pool.allocate(size, composition, 0)
                if self.overheads is not None:
                    self.overheads.place(tensors, tier)
                copies, below = self.copies[tier], tier != self.tier
                for t in tensors:
                    copies[t] = VALID
                    self.copies_below[t] += below
                    if self.recorder is not None:
                        self.recorder.hold(t, tier, 0)

    def place_residents(self) -> bool:
        """Place what is in the device tier at time 0, in the graph's order; says whether all of it found a place."""
        return self.arena is None or all([self.arena.take(t) for t, state in enumerate(self.resident) if state])

    def has_valid(self, t: int, tier: int) -> bool:
        """Whether the tensor has a valid copy in the tier."""
        return self.copies[tier][t] == VALID

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
        ledger, size = self.ledgers[destination], self.sizes[t]
        held = ledger.held + size
        if held > ledger.capacity:
            return -1
        pool = self.pools[destination]
        if pool is not None and not pool.has_room(size, self.position):
            return -1
        if destination != self.tier:
            self.copies_below[t] += 1
        elif self.arena is not None and not self.arena.take(t):
            return -1
        if pool is not None:
            pool.allocate(size, self.compositions[t], now)
        ledger.held = held
        ledger.composition += self.compositions[t]
        if held > ledger.peak:
            ledger.mark_peak(now)
        if self.recorder is not None:
            self.recorder.hold(t, destination, now)
        copies[t] = PENDING
        return self.overheads.pin(t, destination) if self.overheads is not None else 0
