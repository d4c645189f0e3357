"""One device replaying the plan: what its streams wait for, and what the start and the end of an op do.

The rules in comments are those of docs/contract.md. :mod:`hosim.engine.replay` decides when an instant is over and calls
:meth:`DeviceReplay.start_ops` then; a stream's process may start its own next op at once where nothing else can happen at the
instant (:meth:`DeviceReplay.run_stream`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hosim.engine.channels import IssuedTransfer
from hosim.engine.clock import NEVER, Alarm, Clock, Process
from hosim.engine.compiled_plan import PENDING, VALID, CompiledPlan, IssuedOp, TrackedOp
from hosim.engine.device_memory import DeviceMemory
from hosim.engine.memory_contention import MemoryContention
from hosim.engine.recorder import TimelineRecorder
from hosim.engine.runtime import Runtime
from hosim.engine.stream import Stream
from hosim.graph import Graph


class DeviceReplay:
    """The streams of one device over its :class:`~hosim.engine.device_memory.DeviceMemory`.

    ``issued`` are the cache ops that the ends of ops at this instant issue, ``decided`` whether a runtime policy has issued some.
    ``crossing`` stands for the links that collectives cross.
    ``sleeper`` is the one stream whose next op waits for transfers, if no other waits for more than its producers.
    """

    def __init__(
        self,
        clock: Clock,
        graph: Graph,
        program: CompiledPlan,
        streams: Sequence[Stream],
        memory: DeviceMemory,
        recorder: TimelineRecorder | None,
        runtime: Runtime | None,
        contention: MemoryContention | None = None,
    ) -> None:
        self.clock = clock
        self.graph = graph
        self.program = program
        self.streams = streams
        self.memory = memory
        self.ledger = memory.ledgers[memory.tier]
        self.launch = program.launch
        self.tracked_ops, self.durations = program.tracked_ops, program.durations
        self.recorder = recorder
        self.arena = memory.arena
        self.closing = program.closing if self.arena is None else range(len(graph.ops))
        self.runtime = runtime
        self.contention = contention
        self.issued: list[IssuedOp] = []
        self.decided = False
        self.direct = not graph.elsewhere and runtime is None and recorder is None and self.arena is None
        self.sleeper: Stream | None = None
        self.executed = {"prefetch": 0, "store": 0, "detach": 0}
        queue = contention.collectives.queue if contention is not None and contention.collectives is not None else None
        self.crossing = () if queue is None else (queue,)
        self.main = next((stream for stream in streams if stream.name == graph.main_stream), None)
        for stream in streams:
            stream.alarm = Alarm(clock, self.run_stream(stream))

    def contention_of(self, stream: Stream) -> MemoryContention | None:
        """What copies take of the memory that the ops of a stream use."""
        return self.contention

    # -- the process of a stream -------------------------------------------------------------------------------

    def run_stream(self, stream: Stream) -> Process:
        """The process of a stream: wakes at the end of its op (or of a runtime's inspection).

        Where nothing else ends at this instant, and no other stream or channel waits for anything that this end may bring, the
        instant is this stream's alone. Then its parts follow here, if the next op writes nothing tracked; otherwise the instant is
        left to be settled. Both come to the same, and this is what most ops of most plans take.
        """
        clock, ledger, memory, issued, streams = self.clock, self.ledger, self.memory, self.issued, self.streams
        unsettled, position, contention = clock.unsettled, memory.position, self.contention_of(stream)
        launch, tracked_ops, durations, steps = self.launch, self.tracked_ops, self.durations, self.program.steps
        finish, after, closing = self.program.finish, self.program.after, self.closing
        queue, length, capacity, schedule = stream.queue, stream.length, ledger.capacity, clock.to_come
        direct = self.direct
        skipped = False
        while True:
            if not skipped:
                yield
            skipped = False
            i = stream.running
            now = clock.time
            if i < 0:  # an inspection is over
                unsettled.add(position)
                continue
            if contention is not None and stream.ends > now:  # slowed down since its alarm was set
                stream.alarm.ring_at(stream.ends)
                continue
            alone = direct and not (unsettled or memory.stuck or (schedule and schedule[0][0] == now))
            if alone and steps[i] is not None:
                i = self._run_on(stream, i, now)
                if i < 0:
                    continue
                now = clock.time
            size, composition, shared = finish[i]
            if size:
                ledger.held -= size
                ledger.composition -= composition
            if shared:
                self._end_shared(shared)
            if i in closing:
                self._finish_tracked(i)
            stream.done = done = stream.done + 1
            issues = after.get(i)
            if not alone:
                if issues is not None:
                    issued += issues
                stream.rest(now)
                unsettled.add(position)
                continue
            if issues is not None:
                stream.running = stream.began = -1
                memory.issue(issues, now)
                if unsettled:  # another device waits for what a detach has left
                    stream.rest(now)
                    unsettled.add(position)
                    continue
            awaited, waiting = done >= stream.awaited, done == length
            if not waiting:
                i = queue[done]
                size, composition, waits = launch[i]
                for s, count in waits:
                    if streams[s].done < count:
                        stream.wait_for(streams[s], count)
                        waiting = True
                        break
            if awaited or waiting:
                stream.rest(now)
                stuck = awaited and self.start_ops(now)
                if unsettled:
                    unsettled.add(position)
                elif stuck or issues is not None:
                    memory.start_transfers(now, stuck)
                continue
            tracked = tracked_ops.get(i)
            if ledger.held + size > capacity or (tracked is not None and tracked.writes):
                stream.rest(now)
                unsettled.add(position)
                continue
            if tracked is not None and not self._resident(tracked):
                stream.rest(now)
                stream.dependency_met = now
                self.sleeper = stream
                memory.start_transfers(now, True)
                continue
            if size:
                ledger.held = held = ledger.held + size
                ledger.composition += composition
                if held > ledger.peak:
                    ledger.mark_peak(now)
            stream.running = i
            if issues is not None:
                memory.start_transfers(now, False)
            end = now + durations[i] if contention is None else contention.begin(stream, i, now, durations[i])
            if end is None:  # others say when
                continue
            if schedule and schedule[0][0] <= end:
                stream.alarm.ring_at(end)
            else:  # nothing else happens until this op ends: its end need not go through the schedule
                clock.time = end
                skipped = True

    def _run_on(self, stream: Stream, i: int, now: int) -> int:
        """Run the ops that follow one that ends now, as far as each end only starts the next one and nothing else happens before it.

        Gives the op that ends where that is over, at the clock's time then; -1 if its end is in the schedule.
        """
        clock, ledger, steps, durations, queue = self.clock, self.ledger, self.program.steps, self.durations, stream.queue
        held, total, peak, capacity = ledger.held, ledger.composition, ledger.peak, ledger.capacity
        done, last, schedule = stream.done, stream.awaited - 1, clock.to_come
        event = schedule[0][0] if schedule else NEVER
        contention, slowed = self.contention, 0
        speeds = contention.speeds if contention is not None and contention.speeds.copying else None
        while True:
            step = steps[i]
            if step is None or done >= last or held + step[0] > capacity:
                clock.time = now
                break
            held += step[0]
            total += step[1]
            if held > peak:
                peak = held
                ledger.peak, ledger.peak_at, ledger.peak_composition = held, now, total
            done += 1
            i = queue[done]
            duration = taken = durations[i]
            if speeds is not None and contention is not None and (use := contention.uses.get(i)) is not None:
                taken = speeds.duration(use, duration)
            if event <= now + taken:
                if contention is None:
                    stream.alarm.ring_at(now + taken)
                else:
                    contention.start(stream, i, now, duration)
                stream.running, i = i, -1
                break
            now += taken
            slowed += taken - duration
        if slowed and contention is not None:
            contention.slow(stream, slowed)
        ledger.held, ledger.composition, stream.done = held, total, done
        if i >= 0:
            stream.running = i
        return i

    # -- transfers ---------------------------------------------------------------------------------------------

    def end_transfer(self, transfer: IssuedTransfer) -> None:
        """A transfer has ended.

        Where the next op of one stream waited for it, and nothing else ends at this instant, the op starts here; otherwise the instant
        is left to be settled. Both come to the same.
        """
        clock, memory, stream = self.clock, self.memory, self.sleeper
        unsettled, schedule, now = clock.unsettled, clock.to_come, clock.time
        alone = stream is not None and not unsettled and not (schedule and schedule[0][0] == now)
        memory.end_transfer(transfer)
        if not alone or stream is None or memory.due or transfer.route is not None or len(unsettled) != 1:
            return
        i = stream.queue[stream.done]
        size, composition, _ = self.launch[i]
        tracked, ledger = self.tracked_ops[i], self.ledger
        held = ledger.held + size
        if tracked.writes or held > ledger.capacity or not self._resident(tracked):
            return
        self.sleeper = None
        unsettled.clear()
        if size:
            ledger.held = held
            ledger.composition += composition
            if held > ledger.peak:
                ledger.mark_peak(now)
        if stream.dependency_met == stream.free_since:  # all of the wait is this transfer's, in most of them
            stream.stalls["transfer"] += now - stream.free_since
            stream.exposed_ns[transfer.channel.index] += now - stream.free_since
        elif now > stream.free_since:
            stream.residency_met = now
            stream.waited_for = transfer if now > stream.dependency_met else None
            stream.divide(i, now)
        stream.running = i
        if self.contention is None:
            stream.alarm.ring_at(now + self.durations[i])
        else:
            self.contention.start(stream, i, now, self.durations[i])
        memory.start_transfers(now, False)

    # -- ops (rule 1) ------------------------------------------------------------------------------------------

    def start_ops(self, now: int) -> bool:
        """Start every op that can start now, streams in the order of their first op.

        Says whether one waits for something else than its producers.
        """
        stuck = False
        self.sleeper = None
        for stream in self.streams:
            if stream.running >= 0 or stream.done == stream.length:
                continue
            producer = stream.producer
            if producer is not None and producer.done < stream.needed:
                stream.wait_for(producer, stream.needed)
            elif not self._try_op(stream, now) and stream.dependency_met >= 0:
                self.sleeper = stream if self.direct and not stuck and stream.residency_met < 0 else None
                stuck = True
        return stuck

    def _try_op(self, stream: Stream, now: int) -> bool:
        i = stream.queue[stream.done]
        runtime = self.runtime
        if runtime is not None and not stream.inspect(now, runtime.inspection_ns(i)):
            return False
        size, composition, waits = self.launch[i]
        if stream.dependency_met < 0:
            for s, count in waits:
                producer = self.streams[s]
                if producer.done < count:
                    stream.wait_for(producer, count)
                    return False
            stream.dependency_met = now
            if runtime is not None and self.issue_decided(runtime.before_op(i)):
                self.decided = True
        tracked = self.tracked_ops.get(i)
        if tracked is None:
            stream.residency_met = stream.dependency_met
        else:
            if not self._resident(tracked):
                stream.residency_met = -1
                return False
            if stream.residency_met < 0:
                stream.residency_met = now
                if stream.transfer_wait > 0:
                    stream.waited_for = self._blamed(tracked)
            memory = self.memory
            for t in tracked.outputs:
                if not memory.resident[t]:
                    size += memory.sizes[t]
                    composition += memory.compositions[t]
        ledger = self.ledger
        held = ledger.held + size
        if held > ledger.capacity or (self.arena is not None and not self._place(i)):
            return False
        if tracked is not None and tracked.writes:
            self._begin_writes(tracked, now)
        if size:
            ledger.held = held
            ledger.composition += composition
            if held > ledger.peak:
                ledger.mark_peak(now)
        duration, recorder = self.durations[i], self.recorder
        if recorder is not None:
            recorder.op(i, now, duration)
        if now > stream.free_since:
            if stream.dependency_met == now and runtime is None and recorder is None:  # all of the wait, in most of them
                stream.stalls["dependency"] += now - stream.free_since
            else:
                stream.divide(i, now)
        stream.inspected_at = -1
        stream.running = i
        if self.contention is None:
            stream.alarm.ring_at(now + duration)
        else:
            self.contention.start(stream, i, now, duration)
        return True

    def _place(self, i: int) -> bool:
        """Whether the arena has a place for what op ``i`` allocates, which then is its own."""
        assert self.arena is not None
        resident = self.memory.resident
        return self.arena.begin_op(i, [t for t in self.tracked_ops[i].outputs if not resident[t]])

    def _resident(self, tracked: TrackedOp) -> bool:
        """Rule 1: what is read has come and is valid, and the transfers of what is written that are before the op have ended."""
        awaited, reads, writes, _, _, _, _ = tracked
        memory = self.memory
        for k in awaited:
            if not memory.ended_cache_ops[k]:
                return False
        resident = memory.resident
        for t in reads:
            if resident[t] != VALID:
                return False
        if not writes:
            return True
        pending = memory.pending
        return not any([t in pending and (t in memory.transferring or memory.decided_to_move(t)) for t in writes])

    def _blamed(self, tracked: TrackedOp) -> IssuedTransfer:
        """Rule 8: the transfer that ended last before the op's residency was met, of those that it waits for.

        These are transfers into the device tier of what it reads, and any transfer of what it writes. The last one has ended at
        this instant; of several that have, it is the one issued last.
        """
        memory = self.memory
        if len(memory.just_ended) == 1:
            return memory.just_ended[0]
        reads, writes, tier = tracked.reads, tracked.writes, tracked.tier
        waited = [x for x in memory.just_ended if x.tensor in writes or (x.tensor in reads and x.hop.destination == tier)]
        return max(waited, key=lambda x: x.sequence)

    def _begin_writes(self, tracked: TrackedOp, now: int) -> None:
        """What the op writes is invalid until it ends, and stale elsewhere (rule 5)."""
        memory = self.memory
        if self.recorder is not None:
            for t in tracked.outputs:
                if not memory.resident[t]:
                    self.recorder.hold(t, memory.tier, now)
        for t in tracked.writes:
            memory.resident[t] = PENDING
            if memory.copies_below[t]:
                memory.drop_below(t)

    def _finish_tracked(self, i: int) -> None:
        """What the op wrote is valid, and what nobody uses any more is released."""
        memory, tracked = self.memory, self.tracked_ops[i]
        if self.arena is not None:
            self.arena.end_op(i)
        for t in tracked.writes:
            memory.resident[t] = VALID
        for t in tracked.dying:
            memory.die(t)
        for t in tracked.shared:
            memory.users_left[t] -= 1
            if not memory.users_left[t]:
                memory.die(t)

    def _end_shared(self, shared: tuple[int, ...]) -> None:
        """Untracked tensors with users on several streams: the last user's end releases them."""
        memory = self.memory
        for t in shared:
            memory.users_left[t] -= 1
            if not memory.users_left[t]:
                self.ledger.release(memory.sizes[t], memory.compositions[t])

    # -- runtime policies --------------------------------------------------------------------------------------

    def issue_ended(self, now: int) -> None:
        """Issue the cache ops that the ends of ops at this instant issue."""
        self.issued.sort()  # by place in the plan
        self.memory.issue(self.issued, now)
        self.issued.clear()

    def issue_decided(self, cache_ops: Iterable[IssuedOp]) -> bool:
        """Issue cache ops that a runtime policy has decided on; says whether there were any."""
        decided = False
        for cache_op in cache_ops:
            _, t, hop = cache_op
            self.executed[hop.op] += not self.memory.released[t]
            self.memory.issue([cache_op], self.clock.time)
            decided = True
        return decided

    def make_room(self) -> None:
        """If nothing is under way, let the runtime policy make room for what waits."""
        if self.runtime is None or self.memory.transferring:
            return
        if any([stream.running >= 0 or stream.inspected_at > self.clock.time for stream in self.streams]):
            return
        for stream in self.streams:
            if stream.done < stream.length and stream.dependency_met >= 0:
                i = stream.queue[stream.done]
                if self.issue_decided(self.runtime.make_room(i, self._wanted(i))):
                    self.clock.unsettled.add(self.memory.position)
                    return

    def _wanted(self, i: int) -> int:
        """Bytes of the device tier that op ``i`` still needs: its workspace, and of what it uses whatever is not there."""
        memory, tracked = self.memory, self.tracked_ops.get(i)
        absent = {t for t in (*tracked.reads, *tracked.writes) if not memory.resident[t]} if tracked is not None else ()
        return self.launch[i][0] + sum(memory.sizes[t] for t in absent)
