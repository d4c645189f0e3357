"""One device replaying the plan: where its tensors are, what its streams wait for, and what each end sets free.

The rules in comments are those of design.md section 3. :mod:`hosim.engine.replay` decides when an instant is over and then calls, in rule
0's order, :meth:`Device.issue`, :meth:`Device.start_ops` and :meth:`Device.try_transfer`; a stream's process may start its own next op at
once where nothing else can happen at the instant (:meth:`Device.run_stream`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Sequence

import simpy

from hosim.engine.alarm import Alarm
from hosim.engine.channels import Channel, Transfer
from hosim.engine.clock import Clock
from hosim.engine.ledger import Ledger
from hosim.engine.program import Program, TrackedOp, Way
from hosim.engine.recorder import Recorder
from hosim.engine.runtime import Runtime
from hosim.engine.stream import Stream
from hosim.errors import PlanError
from hosim.graph import Graph
from hosim.plan import DETACH, PREFETCH

ABSENT, PENDING, VALID = 0, 1, 2
"""State of a tracked tensor's copy in a tier: no bytes held; bytes held but being written; valid."""

MAIN_STREAM = "compute"
"""The stream whose figures are the result's, where the graph has it; else its first stream is."""


class Device:
    """State and moves of one device. ``ledgers`` and ``copies`` are indexed by tier position; ``tier`` is the device tier's.

    ``copies[tier][t]`` is the state of a tracked tensor; of the others only their ops' amounts are known. ``pending[t]`` are the issued cache
    ops of a tensor that have not taken effect, in order; ``transferring[t]`` is the one whose bytes flow.
    """

    def __init__(
        self,
        clock: Clock,
        graph: Graph,
        program: Program,
        ledgers: Sequence[Ledger],
        device_tier: int,
        channels: Sequence[Channel],
        recorder: Recorder | None,
        runtime: Runtime | None,
    ) -> None:
        self.clock = clock
        self.graph = graph
        self.program = program
        self.sizes = program.graph.sizes
        self.kinds = program.graph.kinds
        self.ledgers = ledgers
        self.tier = device_tier
        self.channels = channels
        self.recorder = recorder
        self.runtime = runtime
        tensors = len(graph.tensors)
        self.copies = [bytearray(tensors) for _ in ledgers]
        self.resident = self.copies[device_tier]
        self.copies_below = bytearray(tensors)
        self.users_left = program.graph.users_left.copy()
        self.released = bytearray(tensors)
        self.cache_op_done = bytearray(len(program.moved))
        self.pending: dict[int, deque[tuple[Way, Transfer | None]]] = {}
        self.transferring: dict[int, Transfer] = {}
        self.last_transfer: dict[int, Transfer] = {}
        self.issued: list[int] = []
        self.queued = 0
        self.transfers_issued = 0
        self.executed = {"prefetches": 0, "stores": 0, "detaches": 0}
        self.decided = False
        self.last_end = 0
        self.streams = [Stream(clock, s, name, program.graph.queues[s], recorder, runtime) for s, name in enumerate(graph.streams)]
        by_name = {stream.name: stream for stream in self.streams}
        self.main = by_name.get(MAIN_STREAM, self.streams[0] if self.streams else None)
        for stream in self.streams:
            clock.process(self.run_stream(stream))
        self._place_initial()

    def _place_initial(self) -> None:
        for kind, size in self.program.initial_amounts:
            self.ledgers[self.tier].allocate(size, kind, 0)
        for t, where in self.program.initial.items():
            for tier in where:
                self._hold(t, tier)
                self.copies[tier][t] = VALID

    # -- ops (rule 1) ------------------------------------------------------------------------------------------

    def run_stream(self, stream: Stream) -> Generator[simpy.Event, None, None]:
        """The process of a stream: wakes at the end of its op (or of a runtime's inspection).

        Where nothing else ends, is issued or waits at this instant, the next op starts here; otherwise the instant is left to be settled.
        """
        clock, program, ledger = self.clock, self.program, self.ledgers[self.tier]
        launch, finish, tracked, after, durations = program.launch, program.finish, program.tracked_ops, program.after, program.durations
        by_kind, queue, length = ledger.by_kind, stream.queue, stream.length
        issued, alone, timeout = self.issued, len(self.streams) == 1 and self.runtime is None and self.recorder is None, clock.timeout
        sleep: simpy.Event = stream.alarm
        while True:
            yield sleep
            now = clock.time
            i = stream.running
            if i < 0:  # an inspection is over
                clock.unsettled = True
                sleep = stream.alarm = Alarm(clock)
                continue
            size, amounts, shared = finish[i]
            if size:
                ledger.held -= size
                for kind, amount in amounts:
                    by_kind[kind] -= amount
            if shared:
                self._end_shared(shared)
            if i in tracked:
                self._finish_tracked(tracked[i])
            if i in after:
                issued.extend(after[i])
            stream.done += 1
            stream.free_since = now
            if alone and stream.position < length and not (issued or self.queued or clock.unsettled) and clock.is_last():
                i = queue[stream.position]
                size, amounts, _ = launch[i]
                if i not in tracked and ledger.held + size <= ledger.capacity:
                    if size:
                        ledger.held += size
                        for kind, amount in amounts:
                            by_kind[kind] += amount
                        if ledger.held > ledger.peak:
                            ledger.mark_peak(now)
                    stream.running = i
                    stream.position += 1
                    stream.busy_ns += durations[i]
                    sleep = timeout(durations[i])
                    continue
            stream.end()
            clock.unsettled = True
            sleep = stream.alarm = Alarm(clock)

    def start_ops(self) -> None:
        """Start every op that can start now, streams in the order of their first op."""
        for stream in self.streams:
            if stream.running < 0 and stream.position < stream.length:
                self._try_op(stream)

    def _try_op(self, stream: Stream) -> None:
        now = self.clock.time
        i = stream.queue[stream.position]
        runtime = self.runtime
        if runtime is not None and not stream.inspect(now):
            return
        size, amounts, waits = self.program.launch[i]
        if stream.dependency_met < 0:
            for s, count in waits:
                if self.streams[s].done < count:
                    return
            stream.dependency_met = now
            if runtime is not None and self.issue_decided(runtime.before_op(i)):
                self.decided = True
        tracked = self.program.tracked_ops.get(i)
        if stream.residency_met < 0:
            if tracked is not None:
                if not self._resident(tracked):
                    return
                stream.residency_met = now
                if stream is self.main and stream.transfer_wait > 0:
                    self._blame(stream.transfer_wait, tracked)
            stream.residency_met = now
        if tracked is not None:
            for t in tracked.outputs:
                if not self.resident[t]:
                    size += self.sizes[t]
        ledger = self.ledgers[self.tier]
        if size and ledger.held + size > ledger.capacity:
            return
        for kind, amount in amounts:
            ledger.by_kind[kind] += amount
            ledger.held += amount
        if tracked is not None:
            self._start_tracked(tracked, ledger, now)
        if ledger.held > ledger.peak:
            ledger.mark_peak(now)
        stream.start(i, self.program.durations[i], now)

    def wanted(self, i: int) -> int:
        """Bytes of the device tier that op ``i`` still needs: its workspace, and of what it uses whatever is not there."""
        tracked = self.program.tracked_ops.get(i)
        absent = {t for t in (*tracked.reads, *tracked.writes) if not self.resident[t]} if tracked is not None else ()
        return self.program.launch[i][0] + sum(self.sizes[t] for t in absent)

    def _resident(self, tracked: TrackedOp) -> bool:
        """Rule 1's residency: the prefetches have ended, what is read is valid, and no transfer reads what is written."""
        for c in tracked.prefetches:
            if not self.cache_op_done[c]:
                return False
        resident = self.resident
        for t in tracked.reads:
            if resident[t] != VALID:
                return False
        if self.transferring:
            for t in tracked.writes:
                if t in self.transferring:
                    return False
        return True

    def _blame(self, wait: int, tracked: TrackedOp) -> None:
        """Rule 8: the wait for residency is blamed on the transfer that ended last before it was met."""
        ended = [self.last_transfer[t] for t in (*tracked.reads, *tracked.writes) if t in self.last_transfer]
        if ended:
            max(ended, key=lambda x: (x.end_ns, x.sequence)).channel.exposed_ns += wait

    def _start_tracked(self, tracked: TrackedOp, ledger: Ledger, now: int) -> None:
        resident = self.resident
        for t in tracked.outputs:
            if not resident[t]:
                ledger.by_kind[self.kinds[t]] += self.sizes[t]
                ledger.held += self.sizes[t]
                if self.recorder is not None:
                    self.recorder.hold(t, self.tier, now)
        for t in tracked.writes:
            resident[t] = PENDING
            if self.copies_below[t]:
                self._drop_below(t)

    def _finish_tracked(self, tracked: TrackedOp) -> None:
        """What the op wrote is valid, and what nobody uses any more is released."""
        for t in tracked.writes:
            self.resident[t] = VALID
        for t in tracked.dying:
            self._die(t)
        for t in tracked.shared:
            self.users_left[t] -= 1
            if not self.users_left[t]:
                self._die(t)

    def _end_shared(self, shared: tuple[int, ...]) -> None:
        """Untracked tensors with users on several streams: the last user's end releases them."""
        for t in shared:
            self.users_left[t] -= 1
            if not self.users_left[t]:
                self.ledgers[self.tier].release(self.sizes[t], self.kinds[t])

    # -- residency of tracked tensors --------------------------------------------------------------------------

    def has_valid(self, t: int, tier: int) -> bool:
        """Whether the tensor has a valid copy in the tier."""
        return self.copies[tier][t] == VALID

    def _hold(self, t: int, tier: int) -> None:
        now = self.clock.time
        self.ledgers[tier].allocate(self.sizes[t], self.kinds[t], now)
        if tier != self.tier:
            self.copies_below[t] += 1
        if self.recorder is not None:
            self.recorder.hold(t, tier, now)

    def _release(self, t: int, tier: int) -> None:
        self.copies[tier][t] = ABSENT
        self.ledgers[tier].release(self.sizes[t], self.kinds[t])
        if tier != self.tier:
            self.copies_below[t] -= 1
        if self.recorder is not None:
            self.recorder.release(t, tier, self.clock.time)

    def _drop_below(self, t: int) -> None:
        """Rule 5: a write makes the copies on other tiers stale."""
        for tier, copies in enumerate(self.copies):
            if copies[t] and tier != self.tier:
                self._release(t, tier)

    def _die(self, t: int) -> None:
        """The last user of a tensor has ended: release it on all tiers, and forget cache ops that have not begun."""
        self.released[t] = 1
        waiting = self.pending.pop(t, None)
        if waiting:
            flowing = self.transferring.get(t)
            for _, transfer in waiting:
                if transfer is not None and transfer is not flowing:
                    transfer.channel.queue.remove(transfer)
                    self.queued -= 1
            if flowing is not None:  # its bytes are being read or written: they go when it ends
                self.pending[t] = deque([waiting[0]])
                return
        if self.resident[t]:
            self._release(t, self.tier)
        if self.copies_below[t]:
            self._drop_below(t)

    # -- cache ops (rules 3 and 5) -----------------------------------------------------------------------------

    def issue(self, cache_ops: Iterable[int]) -> None:
        """Issue cache ops of the plan, in the order given."""
        program = self.program
        for k in cache_ops:
            self._issue(k, program.moved[k], program.ways[k])

    def issue_decided(self, cache_ops: Iterable[tuple[int, Way]]) -> bool:
        """Issue cache ops that a runtime policy has decided on; says whether there were any."""
        decided = False
        for t, way in cache_ops:
            self._issue(-1, t, way)
            decided = True
        return decided

    def _issue(self, k: int, t: int, way: Way) -> None:
        if self.released[t]:
            return
        transfer = None
        op, source, _, c = way
        if c < 0:
            self.executed["detaches"] += 1
            if t not in self.pending:
                self._detach(t, source)
                return
        else:
            self.executed["prefetches" if op == PREFETCH else "stores"] += 1
            channel = self.channels[c]
            self.transfers_issued += 1
            self.queued += 1
            transfer = Transfer(self.transfers_issued, k, t, way, channel, self.sizes[t], self.clock.time)
            channel.queue.append(transfer)
        if t in self.pending:
            self.pending[t].append((way, transfer))
        else:
            self.pending[t] = deque([(way, transfer)])

    def _detach(self, t: int, tier: int) -> None:
        if self.copies[tier][t] == ABSENT:
            raise PlanError(f"detach of tensor {self.graph.tensors[t].name!r} at {self.clock.time} ns: it holds no bytes there")
        if tier == self.tier:
            for stream in self.streams:
                if stream.running >= 0 and t in self.graph.ops[stream.running].uses:
                    op = self.graph.ops[stream.running].name
                    raise PlanError(f"detach of tensor {self.graph.tensors[t].name!r} at {self.clock.time} ns: op {op!r} is using it")
        others = any([copies[t] == VALID for other, copies in enumerate(self.copies) if other != tier])
        if not others and self._still_needed(t):
            raise PlanError(f"detach of tensor {self.graph.tensors[t].name!r} at {self.clock.time} ns would drop its last valid copy")
        self._release(t, tier)

    def _still_needed(self, t: int) -> bool:
        for user in self.graph.users[t]:
            if not self.streams[self.program.graph.stream_of[user]].has_ended(user):
                return t in self.graph.ops[user].reads
        return self.graph.survives[t]

    def try_transfer(self, transfer: Transfer) -> bool:
        """Begin the head of a channel's queue if it can: its turn among its tensor's cache ops, source valid, room for its bytes."""
        t = transfer.tensor
        _, source, destination, _ = transfer.way
        if self.pending[t][0][1] is not transfer or self.copies[source][t] != VALID:
            return False
        copies = self.copies[destination]
        if copies[t] == ABSENT:
            ledger = self.ledgers[destination]
            if ledger.held + transfer.size > ledger.capacity:
                return False
            self._hold(t, destination)
            copies[t] = PENDING
        self.transferring[t] = transfer
        self.queued -= 1
        return True

    def end_transfer(self, transfer: Transfer) -> None:
        """The bytes are through: the copy is valid, and the tensor's next cache ops may take effect."""
        t = transfer.tensor
        del self.transferring[t]
        self.last_transfer[t] = transfer
        self.last_end = transfer.end_ns
        self.copies[transfer.way.destination][t] = VALID
        if transfer.cache_op >= 0:
            self.cache_op_done[transfer.cache_op] = 1
        if self.recorder is not None:
            self.recorder.transfer(transfer)
        pending = self.pending[t]
        pending.popleft()
        while pending and pending[0][1] is None:
            self._detach(t, pending.popleft()[0].source)
        if not pending:
            del self.pending[t]
        if self.released[t]:
            self._die(t)
        self.clock.unsettled = True

    # -- the end of the step (rule 2) --------------------------------------------------------------------------

    def check_persistence(self, tier_names: Sequence[str]) -> None:
        """Raise :class:`PlanError` if a persistent tensor is not valid again where it was at time 0."""
        for t, where in self.program.initial.items():
            if not self.graph.tensors[t].persistent:
                continue
            for tier in where:
                if self.copies[tier][t] != VALID:
                    raise PlanError(
                        f"tensor {self.graph.tensors[t].name!r} has no valid copy in {tier_names[tier]} at the end of the step, "
                        "where it was at its start: store it back, or change the plan's initial residency"
                    )
