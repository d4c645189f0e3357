"""What the plan's cache ops do on one device: their issue, the start and the end of transfers, detaches, the death of tensors.

The rules in comments are those of docs/contract.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import cast

from hosim.cache_plan import PREFETCH
from hosim.engine import broken_rules
from hosim.engine.arenas import Arena
from hosim.engine.channels import ChannelQueue, Chunk, IssuedTransfer, Route
from hosim.engine.clock import Clock
from hosim.engine.compiled_plan import SEVERAL, VALID, CompiledPlan, Hop, IssuedOp
from hosim.engine.device_state import DeviceState
from hosim.engine.ledger import Ledger, SharedLedger
from hosim.engine.link_groups import LinkGroup
from hosim.engine.multi_hop import Routes
from hosim.engine.recorder import TimelineRecorder
from hosim.engine.stream import Stream
from hosim.engine.transfer_overheads import TransferOverheads
from hosim.graph import Graph
from hosim.hardware import Hardware


class DeviceMemory(DeviceState):
    """The tiers of one device as the plan's cache ops see them.

    ``due`` are the tensors whose next cache op, a detach perhaps, a transfer's end has set free. ``just_ended`` are the transfers that last
    ended while something waited. ``routes`` has what goes over several channels. ``stuck`` says whether, when an instant was last settled,
    something was left waiting that the end of any op or transfer might set free. ``tier_name`` is the device tier's, and ``users_ended``
    counts the first users of a tensor that are known to have ended.
    """

    __slots__ = (
        "due",
        "ended_cache_ops",
        "groups",
        "just_ended",
        "last_end",
        "released",
        "routes",
        "streams",
        "stuck",
        "tier_name",
        "tracked_ops",
        "users_ended",
        "users_left",
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
        streams: Sequence[Stream],
        sequence: Iterator[int],
        recorder: TimelineRecorder | None,
        arena: Arena | None,
        hardware: Hardware,
        overheads: TransferOverheads | None = None,
        jitter: Callable[[int], float] | None = None,
    ) -> None:
        super().__init__(
            clock, graph, program, position, ledgers, pools, device_tier, channels, sequence, recorder, arena, overheads, jitter
        )
        self.tracked_ops = program.tracked_ops
        self.streams = streams
        self.groups: Sequence[LinkGroup] = ()
        self.routes = Routes(self, hardware)
        self.tier_name = hardware.device_tier
        self.users_ended: dict[int, int] = {}
        self.users_left = program.graph.users_left.copy()
        self.released = bytearray(len(graph.tensors))
        self.ended_cache_ops = bytearray(len(program.cache_ops) + 1)  # the last one stands for all that a runtime policy decides
        self.just_ended: list[IssuedTransfer] = []
        self.due: list[int] = []
        self.stuck = False
        self.last_end = 0

    # -- cache ops (rules 3 and 5) -----------------------------------------------------------------------------

    def issue(self, cache_ops: Iterable[IssuedOp], now: int) -> None:
        """Issue cache ops in the order given. One of a tensor whose last user has ended does nothing: there is nothing to move."""
        pending, released = self.pending, self.released
        for k, t, hop in cache_ops:
            if released[t]:
                continue
            c = hop[3]
            if c < 0:
                if c == SEVERAL:
                    entry: IssuedTransfer | Route | Hop = self.routes.set_out(k, t, hop, now)
                elif t not in pending:
                    self._detach(t, hop[1])
                    continue
                else:
                    entry = hop
            else:
                channel = self.channels[c]
                if not channel.queue:
                    self.waiting.append(channel)
                entry = IssuedTransfer(next(self.sequence), k, t, hop, channel, self.sizes[t], now)
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
        due, self.due = self.due, []
        for t in due:
            waiting = self.pending.get(t)
            while waiting and isinstance(waiting[0], Hop):
                if self.copies[waiting[0].source][t]:
                    self._detach(t, waiting[0].source)
                del waiting[0]
            if waiting is not None and not waiting:
                del self.pending[t]
                if self.released[t]:
                    self.die(t)

    def _detach(self, t: int, tier: int) -> None:
        copies = self.copies
        if not copies[tier][t]:
            raise broken_rules.holds_nothing(self.graph, t, self.clock.time)
        user = self._next_user(t)
        if user is not None and (tier == self.tier or self.graph.elsewhere):
            for stream in self.streams:
                tracked = self.tracked_ops.get(stream.running)
                if tracked is not None and tracked.tier == tier and (t in tracked.reads or t in tracked.writes):
                    raise broken_rules.in_use(self.graph, t, self.clock.time, stream.running)
        for other, copy in enumerate(copies):
            if copy[t] == VALID and other != tier:
                break
        else:
            if self._still_needed(t, user):
                raise broken_rules.last_copy(self.graph, t, self.clock.time)
        # a runtime policy may still bring it back
        if user is not None and tier == self.tracked_ops[user].tier and not self.program.decides and self._awaits(user, t):
            raise broken_rules.awaited(self.graph, t, self.clock.time, user)
        self.release(t, tier)

    def _next_user(self, t: int) -> int | None:
        """The first op in listed order that uses the tensor and has not ended."""
        compact, stream_of, streams = self.graph.compact_users, self.program.graph.stream_of, self.streams
        last = compact.last[t]
        if last < 0 or ((len(streams) == 1 or compact.first[t] == last) and streams[stream_of[last]].has_ended(last)):
            return None  # so it is with most of what is detached
        users = compact[t]
        ended = self.users_ended.get(t, 0)
        while ended < len(users) and streams[stream_of[users[ended]]].has_ended(users[ended]):
            ended += 1
        self.users_ended[t] = ended
        return users[ended] if ended < len(users) else None

    def _still_needed(self, t: int, user: int | None) -> bool:
        """Whether the tensor's contents are: they are not if the next user writes it anew."""
        return t in self.graph.ops[user].reads if user is not None else self.graph.tensors[t].survives

    def _awaits(self, user: int, t: int) -> bool:
        """Whether an op reads a tensor, and no prefetch of it that the op waits for is still to end."""
        if t not in self.graph.ops[user].reads:
            return False
        there = self.graph.ops[user].processor
        for k in self.tracked_ops[user].awaited:
            c = self.program.cache_ops[k]
            if c.tensor != t or self.ended_cache_ops[k]:
                continue
            if c.destination == (there or self.tier_name) and (there or c.op == PREFETCH):
                return False
        return True

    def decided_to_move(self, t: int) -> bool:
        """Whether a copy of the tensor that a runtime policy has decided on is issued and has not ended."""
        return any([not isinstance(entry, Hop) and entry.cache_op < 0 for entry in self.pending[t]])

    # -- transfers (rules 3 and 4) -----------------------------------------------------------------------------

    def start_transfers(self, now: int, stuck: bool) -> None:
        """In order of issue; one that cannot start holds back those behind it on its channel only. Then rates are set.

        ``stuck`` says whether an op is left waiting for something else than its producers.
        """
        self.stuck = stuck
        if len(self.waiting) == 1:
            channel = self.waiting[0]
            while channel.running < channel.engines and channel.queue:
                if not self.begin(channel, now):
                    self.stuck = True
                    break
        elif self.waiting:
            free = [channel for channel in self.waiting if channel.running < channel.engines]
            while free:
                channel = min(free, key=lambda c: c.queue[0].sequence)
                if self.begin(channel, now):
                    if channel.queue and channel.running < channel.engines:
                        continue
                else:
                    self.stuck = True
                free.remove(channel)
        for group in self.groups:
            if group.dirty:
                group.settle(now)

    def begin(self, channel: ChannelQueue, now: int) -> bool:
        """Begin the head of a channel's queue if it can: its turn among its tensor's cache ops, source valid, room for its bytes."""
        transfer = channel.queue[0]
        if transfer.route is not None:
            return self.routes.begin(cast("Chunk", transfer), now)
        t = transfer.tensor
        _, source, destination, _ = transfer.hop
        if self.pending[t][0] is not transfer or self.copies[source][t] != VALID:
            return False
        pinned = self.reserve(t, destination, now)
        if pinned < 0:
            return False
        self.transferring[t] = transfer
        if channel.has_overheads and self.overheads is not None:
            channel.begin(now, self.overheads.ceiling(transfer), pinned)
        else:
            channel.begin(now)
        if not channel.queue:
            self.waiting.remove(channel)
        return True

    def end_transfer(self, transfer: IssuedTransfer) -> None:
        """The bytes are through: the copy is valid, and the tensor's next cache ops may take effect."""
        channel, t = transfer.channel, transfer.tensor
        now = self.last_end = self.clock.time
        transfer.end_ns = now
        channel.running -= 1
        if not channel.running:
            channel.busy_ns += now - channel.busy_since
        if transfer.route is not None and not self.routes.passed(cast("Chunk", transfer)):
            return
        del self.transferring[t]
        self.copies[transfer.hop[2]][t] = VALID
        self.ended_cache_ops[transfer.cache_op] = 1
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
            if self.program.closing and (transfer.route is not None or transfer.start_ns < now):  # a route's hops begin one by one
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

    def die(self, t: int) -> None:
        """The last user of a tensor has ended: release it on all tiers, once the cache ops of it that are issued have taken effect."""
        self.released[t] = 1
        if t in self.pending:
            return
        if self.resident[t]:
            self.release(t, self.tier)
        if self.copies_below[t]:
            self.drop_below(t)

    # -- the end of the step (rule 2) --------------------------------------------------------------------------

    def check_persistence(self, tier_names: Sequence[str]) -> None:
        """Raise :class:`PlanError` if a tensor that survives the step is not valid again where it was at time 0."""
        missing = []
        for where, tensors in self.program.initial.items():
            for tier in where:
                copies = self.copies[tier]
                missing += [(t, tier) for t in tensors if copies[t] != VALID and self.graph.tensors[t].survives]
        if missing:
            raise broken_rules.not_restored(self.graph, missing, tier_names)


def start_together(memories: Sequence[DeviceMemory], now: int) -> None:
    """Start the transfers of several devices: what they share goes to the transfers in order of issue, whosever they are."""
    heads: list[tuple[float, DeviceMemory, ChannelQueue]] = []
    for memory in memories:
        free = [channel for channel in memory.waiting if channel.running < channel.engines]
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
