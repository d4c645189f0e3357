"""The tiers of one device as the plan's cache ops see them: which copies are where, what is issued, what moves.

The rules in comments are those of docs/contract.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import cast

from hosim.engine.arenas import Arena
from hosim.engine.channels import Channel, LinkGroup, Transfer
from hosim.engine.clock import Clock
from hosim.engine.ledger import Ledger, Pool
from hosim.engine.multi_hop import Chunk, Route, Routes
from hosim.engine.program import SEVERAL, IssuedOp, Program, Way
from hosim.engine.recorder import Recorder
from hosim.engine.stream import Stream
from hosim.engine.transfer_overheads import Uneven
from hosim.errors import PlanError
from hosim.graph import Graph
from hosim.hardware import Hardware

ABSENT, PENDING, VALID = 0, 1, 2
"""State of a tracked tensor's copy in a tier: no bytes held; bytes held but being written; valid."""


class Memory:
    """State and moves of tracked tensors. ``ledgers`` and ``copies`` are indexed by tier position; ``tier`` is the device tier's.

    ``position`` is the device's among those of the clock. What it holds of a tier that it shares with others is in its own ledger and in
    the tier's one of ``pools`` (``None`` where nothing is shared).

    ``copies[tier][t]`` is the state of a tracked tensor, ``resident`` is that of the device tier; of the others only their ops' amounts are
    known. ``pending[t]`` are the issued cache ops of a tensor that have not taken effect, in order (a transfer, a route, or a detach's
    way); ``transferring[t]`` is the one under way, ``queued`` counts the transfers that wait on a channel, and ``due`` are the tensors
    whose next one, a detach perhaps, a transfer's end has set free. ``just_ended`` are the transfers that last ended while something
    waited. ``routes`` has what goes over several channels.
    ``stuck`` says whether, when an instant was last settled, something was left waiting that the end of any op or transfer might
    set free. ``uneven`` is there if some channel is uneven, and ``jitter``, if there is some, has the factor on a tensor's next transfer.
    """

    __slots__ = (  # more attributes than a shared dictionary takes: without, each access would be slower
        "arena",
        "channels",
        "clock",
        "copies",
        "copies_below",
        "due",
        "ended_cache_ops",
        "graph",
        "groups",
        "jitter",
        "just_ended",
        "last_end",
        "ledgers",
        "mixes",
        "pending",
        "pools",
        "position",
        "program",
        "queued",
        "recorder",
        "released",
        "resident",
        "routes",
        "sequence",
        "sizes",
        "streams",
        "stuck",
        "tier",
        "tracked_ops",
        "transferring",
        "uneven",
        "unsettled",
        "users_left",
    )

    def __init__(
        self,
        clock: Clock,
        graph: Graph,
        program: Program,
        position: int,
        ledgers: Sequence[Ledger],
        pools: Sequence[Pool | None],
        device_tier: int,
        channels: Sequence[Channel],
        streams: Sequence[Stream],
        sequence: Iterator[int],
        recorder: Recorder | None,
        arena: Arena | None,
        hardware: Hardware,
        uneven: Uneven | None = None,
        jitter: Callable[[int], float] | None = None,
    ) -> None:
        self.clock = clock
        self.position = position
        self.unsettled = clock.unsettled
        self.graph = graph
        self.program = program
        self.uneven = uneven
        self.jitter = jitter
        self.tracked_ops = program.tracked_ops
        self.sizes = program.graph.sizes
        self.mixes = program.graph.mixes
        self.ledgers = ledgers
        self.pools = pools
        self.tier = device_tier
        self.channels = channels
        self.groups: Sequence[LinkGroup] = ()
        self.streams = streams
        self.recorder = recorder
        self.arena = arena
        self.routes = Routes(self, hardware)
        tensors = len(graph.tensors)
        self.copies = [bytearray(tensors) for _ in ledgers]
        self.resident = self.copies[device_tier]
        self.copies_below = bytearray(tensors)
        self.users_left = program.graph.users_left.copy()
        self.released = bytearray(tensors)
        self.ended_cache_ops: set[int] = set()
        self.pending: dict[int, list[Transfer | Route | Way]] = {}
        self.transferring: dict[int, Transfer | Route] = {}
        self.just_ended: list[Transfer] = []
        self.due: list[int] = []
        self.sequence = sequence
        self.queued = 0
        self.stuck = False
        self.last_end = 0
        self._place_initial()

    def _place_initial(self) -> None:
        self.ledgers[self.tier].allocate(self.program.initial_bytes, self.program.initial_mix, 0)
        for where, tensors in self.program.initial.items():
            size, mix = sum([self.sizes[t] for t in tensors]), sum([self.mixes[t] for t in tensors])
            for tier in where:
                self.ledgers[tier].allocate(size, mix, 0)
                pool = self.pools[tier]
                if pool is not None:
                    pool.allocate(size, mix, 0)
                if self.uneven is not None:
                    self.uneven.place(tensors, tier)
                copies, below = self.copies[tier], tier != self.tier
                for t in tensors:
                    copies[t] = VALID
                    self.copies_below[t] += below
                    if self.recorder is not None:
                        self.recorder.hold(t, tier, 0)

    def place_residents(self) -> bool:
        """Place what is in the device tier at time 0, in the graph's order; says whether all of it found a place."""
        return self.arena is None or all([self.arena.take(t) for t, state in enumerate(self.resident) if state])

    # -- residency ---------------------------------------------------------------------------------------------

    def has_valid(self, t: int, tier: int) -> bool:
        """Whether the tensor has a valid copy in the tier."""
        return self.copies[tier][t] == VALID

    def release(self, t: int, tier: int) -> None:
        """Give a tensor's bytes in a tier back."""
        self.copies[tier][t] = ABSENT
        ledger = self.ledgers[tier]
        ledger.held -= self.sizes[t]
        ledger.mix -= self.mixes[t]
        if tier == self.tier:
            if self.arena is not None:
                self.arena.drop(t)
        else:
            self.copies_below[t] -= 1
            self.release_shared(tier, self.sizes[t], self.mixes[t])
            if self.uneven is not None:
                self.uneven.unpin(t, tier)
        if self.recorder is not None:
            self.recorder.release(t, tier, self.clock.time)

    def release_shared(self, tier: int, size: int, mix: int) -> None:
        """Bytes of a tier are free again for the devices that share it, if any do: those that wait for room are looked at again."""
        pool = self.pools[tier]
        if pool is not None:
            pool.release(size, mix)
            self.unsettled |= pool.waiting
            pool.waiting.clear()

    def drop_below(self, t: int) -> None:
        """Rule 5: a write makes the copies on other tiers stale."""
        for tier, copies in enumerate(self.copies):
            if copies[t] and tier != self.tier:
                self.release(t, tier)

    def die(self, t: int) -> None:
        """The last user of a tensor has ended: release it on all tiers, and forget cache ops that have not begun.

        Bytes that flow at this moment cannot be released under the transfer: they go when it ends, on a route when its last chunk has.
        """
        self.released[t] = 1
        waiting = self.pending.pop(t, None)
        if waiting:
            flowing = self.transferring.get(t)
            for entry in waiting:
                if entry is flowing:
                    continue
                if isinstance(entry, Transfer):
                    entry.channel.queue.remove(entry)
                    self.queued -= 1
                elif isinstance(entry, Route):
                    self.routes.forget(entry)
            if flowing is not None:
                self.pending[t] = [flowing]
                return
        if self.resident[t]:
            self.release(t, self.tier)
        if self.copies_below[t]:
            self.drop_below(t)

    # -- cache ops (rules 3 and 5) -----------------------------------------------------------------------------

    def issue(self, cache_ops: Iterable[IssuedOp], now: int) -> None:
        """Issue cache ops in the order given. Those of a tensor whose last user has ended are forgotten: there is nothing to move."""
        pending, released = self.pending, self.released
        for k, t, way in cache_ops:
            if released[t]:
                continue
            c = way[3]
            if c < 0:
                if c == SEVERAL:
                    entry: Transfer | Route | Way = self.routes.set_out(k, t, way, now)
                elif t not in pending:
                    self._detach(t, way[1])
                    continue
                else:
                    entry = way
            else:
                self.queued += 1
                channel = self.channels[c]
                entry = Transfer(next(self.sequence), k, t, way, channel, self.sizes[t], now)
                if self.jitter is not None:
                    entry.volume = round(entry.volume * self.jitter(t))
                channel.queue.append(entry)
            if t in pending:
                pending[t].append(entry)
            else:
                pending[t] = [entry]

    def detach_due(self) -> None:
        """Let detaches take effect that stood behind transfers which have ended.

        A copy that was there at the issue may have become stale since (rule 5); then there is nothing left to release.
        """
        due = self.due.copy()
        self.due.clear()
        for t in due:
            waiting = self.pending.get(t)
            while waiting and isinstance(waiting[0], Way):
                if self.copies[waiting[0].source][t]:
                    self._detach(t, waiting[0].source)
                del waiting[0]
            if waiting is not None and not waiting:
                del self.pending[t]

    def _detach(self, t: int, tier: int) -> None:
        copies = self.copies
        if not copies[tier][t]:
            raise PlanError(f"{self._detach_of(t)}: it holds no bytes there")
        if tier == self.tier:
            for stream in self.streams:
                tracked = self.tracked_ops.get(stream.running)
                if tracked is not None and (t in tracked.reads or t in tracked.writes):
                    raise PlanError(f"{self._detach_of(t)}: op {self.graph.ops[stream.running].name!r} is using it")
        for other, copy in enumerate(copies):
            if copy[t] == VALID and other != tier:
                break
        else:
            if self._still_needed(t):
                raise PlanError(f"{self._detach_of(t)} would drop its last valid copy")
        self.release(t, tier)

    def _detach_of(self, t: int) -> str:
        return f"detach of tensor {self.graph.tensors[t].name!r} at {self.clock.time} ns"

    def _still_needed(self, t: int) -> bool:
        """Whether the tensor's contents are: they are not if the next user writes it anew."""
        for user in self.graph.users[t]:
            if not self.streams[self.program.graph.stream_of[user]].has_ended(user):
                return t in self.graph.ops[user].reads
        return self.graph.survives[t]

    # -- transfers (rules 3 and 4) -----------------------------------------------------------------------------

    def start_transfers(self, now: int, stuck: bool) -> None:
        """In order of issue; one that cannot start holds back those behind it on its channel only. Then rates are set.

        ``stuck`` says whether an op is left waiting for something else than its producers.
        """
        self.stuck = stuck
        if self.queued:
            free = []
            for channel in self.channels:
                if channel.queue and channel.running < channel.engines:
                    free.append(channel)  # noqa: PERF401 (a loop in this frame takes less than a comprehension in its own)
            while free:
                channel = free[0] if len(free) == 1 else min(free, key=lambda c: c.queue[0].sequence)
                if self.begin(channel, now):
                    if channel.queue and channel.running < channel.engines:
                        continue
                else:
                    self.stuck = True
                free.remove(channel)
        for group in self.groups:
            if group.dirty:
                group.settle(now)

    def begin(self, channel: Channel, now: int) -> bool:
        """Begin the head of a channel's queue if it can: its turn among its tensor's cache ops, source valid, room for its bytes."""
        transfer = channel.queue[0]
        if transfer.route is not None:
            return self.routes.begin(cast("Chunk", transfer), now)
        t = transfer.tensor
        _, source, destination, _ = transfer.way
        if self.pending[t][0] is not transfer or self.copies[source][t] != VALID:
            return False
        pinned = self.reserve(t, destination, now)
        if pinned < 0:
            return False
        self.transferring[t] = transfer
        self.queued -= 1
        if channel.uneven and self.uneven is not None:
            channel.begin(now, self.uneven.ceiling(transfer), pinned)
        else:
            channel.begin(now)
        return True

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
            pool.allocate(size, self.mixes[t], now)
        ledger.held = held
        ledger.mix += self.mixes[t]
        if held > ledger.peak:
            ledger.mark_peak(now)
        if self.recorder is not None:
            self.recorder.hold(t, destination, now)
        copies[t] = PENDING
        return self.uneven.pin(t, destination) if self.uneven is not None else 0

    def end_transfer(self, transfer: Transfer) -> None:
        """The bytes are through: the copy is valid, and the tensor's next cache ops may take effect."""
        channel, t = transfer.channel, transfer.tensor
        now = self.last_end = self.clock.time
        channel.end(transfer, now)
        if transfer.route is not None and not self.routes.passed(cast("Chunk", transfer)):
            return
        del self.transferring[t]
        self.copies[transfer.way[2]][t] = VALID
        self.ended_cache_ops.add(transfer.cache_op)
        if self.recorder is not None:
            self.recorder.transfer(transfer)
        pending = self.pending
        if len(pending[t]) == 1:
            del pending[t]
        else:
            del pending[t][0]
            self.due.append(t)
            self.unsettled.add(self.position)
        if self.released[t]:
            self.die(t)
            self.unsettled.add(self.position)
        if self.stuck:
            self.unsettled.add(self.position)
            if self.just_ended and self.just_ended[0].end_ns < now:
                self.just_ended.clear()
            self.just_ended.append(transfer)
            if (transfer.route or transfer).start_ns < now:
                self._interrupted(t)
        elif channel.queue:
            self.unsettled.add(self.position)

    def _interrupted(self, t: int) -> None:
        """While a transfer read ``t``, an op that writes it was not free to start, even if it had been before."""
        for stream in self.streams:
            if stream.running < 0 and stream.residency_met >= 0:
                tracked = self.tracked_ops.get(stream.queue[stream.done])
                if tracked is not None and t in tracked.writes:
                    stream.residency_met = -1

    # -- the end of the step (rule 2) --------------------------------------------------------------------------

    def check_persistence(self, tier_names: Sequence[str]) -> None:
        """Raise :class:`PlanError` if a tensor that survives the step is not valid again where it was at time 0."""
        for where, tensors in self.program.initial.items():
            for tier in where:
                copies = self.copies[tier]
                missing = [t for t in tensors if copies[t] != VALID and self.graph.survives[t]]
                if missing:
                    raise PlanError(
                        f"tensor {self.graph.tensors[missing[0]].name!r} has no valid copy in {tier_names[tier]} at the end of the step, "
                        "where it was at its start: store it back, or change the plan's initial residency"
                    )


def start_together(memories: Sequence[Memory], now: int) -> None:
    """:meth:`Memory.start_transfers` of several devices: what they share goes to the transfers in order of issue, whosever they are."""
    heads: list[tuple[float, Memory, Channel]] = []
    for memory in memories:
        if memory.queued:
            free = [channel for channel in memory.channels if channel.queue and channel.running < channel.engines]
            heads.extend([(channel.queue[0].sequence, memory, channel) for channel in free])
    heapify(heads)
    while heads:
        _, memory, channel = heappop(heads)
        if not memory.begin(channel, now):
            memory.stuck = True
        elif channel.queue and channel.running < channel.engines:
            heappush(heads, (channel.queue[0].sequence, memory, channel))
    for memory in memories:
        for group in memory.groups:
            if group.dirty:
                group.settle(now)
