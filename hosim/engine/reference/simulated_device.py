"""One device of a replay, and the steps that it takes in the rounds of an instant
(docs/contract.md, rules 0, 1, 4, 8, 16, 19, 21).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import count

import simpy

from hosim.analysis import StageExchange
from hosim.analysis.costmodel.transfers import (
    NS_PER_S,
    bytes_per_s_over_links,
    first_of_group,
    meeting_ranks,
)
from hosim.cache_plan import AT_START, CacheOp, RuntimePolicy
from hosim.engine import oom_reports
from hosim.engine.arenas import Arena
from hosim.engine.hops import resolve_hop
from hosim.engine.host_calls import HostThread, host_calls
from hosim.engine.jittered_times import jittered, transfer_factors
from hosim.engine.recorder import TimelineRecorder
from hosim.engine.reference.cache_op_queues import Piece, Transfers
from hosim.engine.reference.fluid import Fluid, Nanoseconds, Steps
from hosim.engine.reference.storage import VALID, Storage
from hosim.engine.reference.streams import NOT_YET, OpStream, PlannedOps, Rules
from hosim.engine.result_figures import Outcome
from hosim.hardware import Hardware
from hosim.jitter import Jitter


class Meeting:
    """The meeting of the devices of a collective, or of the stages of an exchange.

    It ``begins`` when the last member has come, and takes the longest of the members' durations.
    """

    def __init__(self, env: Nanoseconds, members: int) -> None:
        self.env = env
        self.absent = self.not_done = members
        self.longest = 0
        self.begins, self.ends = env.event(), env.event()

    def come(self, duration: int) -> Steps:
        """Wait until all members have come; the steps return the longest duration, in ns."""
        self.absent -= 1
        self.longest = max(self.longest, duration)
        yield from self._wait(self.begins, self.absent)
        return self.longest

    def leave(self) -> Steps:
        """Wait until all members are done."""
        self.not_done -= 1
        yield from self._wait(self.ends, self.not_done)

    def _wait(self, event: simpy.Event, others: int) -> Steps:
        """Wait for the event; it happens at once if ``others``, the missing members, is 0."""
        self.env.going -= 1
        self.env.stirred = True
        if not others:
            event.succeed()
        yield event
        self.env.going += 1


@dataclass(frozen=True)
class Shared:
    """The state that the devices of a replay share.

    ``machine`` is ``hardware`` with the memories whose bandwidth copies share (rule 13). ``wake``
    settles one device at this instant, ``wake_all`` all of them. ``order`` numbers transfers as
    they are issued, ``meetings`` are those of collectives and exchanges. ``policy`` is the runtime
    policy of the first device, if one is given.
    """

    env: Nanoseconds
    hardware: Hardware
    machine: Hardware
    fluid: Fluid
    jitter: Jitter | None
    wake: Callable[[int], None]
    wake_all: Callable[[], None]
    policy: RuntimePolicy | None = None
    order: Iterator[int] = field(default_factory=lambda: count(1))
    meetings: dict[tuple[int, int] | str, Meeting] = field(default_factory=dict)


class SimulatedDevice:
    """One device: its storage, its transfers and its streams.

    ``exchanges`` has the ops that exchange messages with other stages (rule 21).
    """

    def __init__(
        self,
        shared: Shared,
        program: PlannedOps,
        position: int,
        storage: Storage,
        arena: Arena | None,
        recorder: TimelineRecorder | None,
        exchanges: Mapping[int, StageExchange] | None,
    ) -> None:
        plan, graph, hardware, jitter = program.plan, program.graph, shared.hardware, shared.jitter
        self.shared, self.program, self.position = shared, program, position
        self.plan, self.graph = plan, graph
        self.env, self.wake, self.storage = shared.env, shared.wake, storage
        self.arena, self.recorder, self.exchanges = arena, recorder, exchanges or {}
        self.transfers = Transfers(
            self.env,
            shared.machine,
            storage,
            shared.fluid,
            position,
            shared.order,
            shared.wake,
            None if jitter is None else transfer_factors(jitter, position, plan.workload),
        )
        self.lanes = tuple(self.transfers.lanes.values())
        self.rules = Rules(program, storage, self.transfers)
        self.streams = self.rules.streams
        for stream in self.streams:
            self.env.process(self._run(stream))
        self.main = next((s for s in self.streams if s.name == graph.main_stream), None)
        self.meets = meeting_ranks(graph) if hardware.devices > 1 and exchanges is None else {}
        self.durations = (
            program.durations
            if jitter is None
            else jittered(plan, program.durations, jitter, position, self.meets)
        )
        self.dying: list[int] = []
        calls = host_calls(plan, hardware)
        self.host = (
            None
            if calls is None
            else HostThread(calls, self.rules.ended.__contains__, self._is_over)
        )
        self.due = list(program.after.get(AT_START, ())) if self.host is None else []
        given = shared.policy if position == 0 else None
        self.policy = given if given is not None or plan.runtime is None else plan.runtime()
        self.inspected = getattr(self.policy, "inspected", None)
        self.decided = False
        self.issued: Counter[str] = Counter()
        for t, tiers in program.starts.items():
            for at in tiers:
                storage.everywhere[at].hold(t, VALID)
                storage.everywhere[at].note_pinned()

    def place_residents(self) -> bool:
        """Let the allocator place the tensors that start in the device tier, in listed order.

        Returns whether all found a place (rule 17).
        """
        return self.arena is None or all([self.arena.take(t) for t in self.residents()])

    # -- a round
    # ----------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Apply the effects of what ended at this instant.

        Detaches take effect, dead tensors are released, chunks join their next queues, and the
        host goes on.
        """
        touched, self.dying, transfers = self.dying, [], self.transfers
        if transfers.arrivals and transfers.arrivals[0].end_ns < self.env.now:
            transfers.arrivals.clear()
        transfers.dead.update(touched)
        if transfers.passed:
            touched += transfers.end()
        for t in touched:
            if t in transfers.pending:
                transfers.detach_due(t, self.rules.detach)
            if t in transfers.dead and t not in transfers.pending:
                self.storage.release(t)
        if transfers.crossed:
            transfers.go_on()
        if self.host is not None:
            self._call(self.host)

    def issue(self) -> None:
        """Issue the cache ops whose op has ended at this instant, in the plan's order."""
        due, self.due = self.due, []
        for k in sorted(due):
            self.transfers.issue(k, self.plan.cache_ops[k], self.rules.detach)

    def _is_over(self, k: int) -> bool:
        return self.transfers.is_over(k, self.plan.cache_ops[k].tensor)

    def _call(self, host: HostThread) -> None:
        """Let the host go on (rule 23): cache ops that it passes are due if their op has ended."""
        passed = host.passed
        takes = host.go_on(self.env.now)
        for place in range(passed - 1, host.passed - 1):
            if place == AT_START or place in self.rules.ended:
                self.due += self.program.after.get(place, ())
        if takes:
            self.env.going += 1
            self.env.process(self._lapse(takes))

    def start_ops(self) -> None:
        """Start the ops that can start, stream by stream.

        It tries again after a decision of the runtime policy, which may let another stream start.
        """
        while True:
            self.decided = False
            for stream in self.streams:
                self._start(stream)
            if not self.decided:
                return

    def _start(self, stream: OpStream) -> None:
        i, rules, now = stream.head, self.rules, self.env.now
        if i is None or (self.policy is not None and not self._inspect(stream, i)):
            return
        if self.host is not None and i >= len(self.host.called_at):
            return
        if stream.dependency_met < 0:
            if not rules.ended.issuperset(self.graph.producers[i]):
                return
            stream.dependency_met = now
            if self.policy is not None and (self.inspected is None or i in self.inspected):
                self.decided |= self._decide(self.policy.before_op(i, self))
        if not rules.is_resident(i):
            stream.residency_met = NOT_YET
            return
        if stream.residency_met < 0:
            stream.residency_met = now
            stream.blamed = rules.blamed(i) if self.transfers.arrivals else None
        if rules.begin(i):
            if now > stream.free_since:
                self._divide(stream, i)
            stream.running, stream.head = i, None
            self.env.going += 1
            if self.recorder is not None:
                self.recorder.op(i, now, self.durations[i])
            stream.begins.succeed(i)

    def _divide(self, stream: OpStream, i: int) -> None:
        """Divide the idle time before an op by cause (rule 8)."""
        begin = stream.free_since
        called_at = begin if self.host is None else self.host.called_at[i]
        for cause, at in (
            ("runtime", max(stream.inspected_at, called_at)),
            ("dependency", stream.dependency_met),
            ("transfer", stream.residency_met),
            ("capacity", self.env.now),
        ):
            if at <= begin:
                continue
            blamed = stream.blamed if cause == "transfer" else None
            stream.stalls[cause] += at - begin
            if blamed is not None and stream is self.main:
                blamed.lane.exposed_ns += at - begin
            if self.recorder is not None:
                self.recorder.stall(i, cause, begin, at, blamed)
            begin = at

    # -- an op (rules 12, 13, 19, 21)
    # ----------------------------------------------------------------------------------

    def _run(self, stream: OpStream) -> Steps:
        """Run the ops of a stream one after another, each when the settling step starts it."""
        env, recorder, meets, exchanges = self.env, self.recorder, self.meets, self.exchanges
        durations, slowed, sent, after = (
            self.durations,
            self.program.slowed,
            self.program.sent,
            self.program.after,
        )
        while True:
            i = yield stream.begins
            stream.begins = env.event()
            start = begun = env.now
            alone = takes = durations[i]
            meeting = self._meeting(i) if i in meets or i in exchanges else None
            if meeting is not None:
                takes = yield from meeting.come(takes)
                begun = env.now
                if recorder is not None:
                    recorder.op_ended(i, begun + takes)
            if i in slowed or i in sent:
                yield from self._work(i, takes)
            elif takes:
                yield env.timeout(takes)
            if meeting is not None and i in exchanges:
                yield from meeting.leave()
            now = env.now
            if recorder is not None:
                recorder.op_ended(i, now)
            stream.busy_ns += now - start
            stream.peers_ns += begun - start
            stream.slowed_ns += now - begun - alone
            stream.free(now)
            self.dying += self.rules.end(i)
            if i in after and (self.host is None or self.host.passed > i + 1):
                self.due += after[i]
            env.going -= 1
            self.wake(self.position)

    def _work(self, i: int, takes: int) -> Steps:
        """Return the steps of an op that takes ``takes`` ns alone, and longer beside copies.

        Either its bytes cross links, or it computes.
        """
        fluid = self.shared.fluid
        if i in self.program.sent and takes:
            rate = min(
                -(-self.program.sent[i] * NS_PER_S // takes),
                bytes_per_s_over_links(self.shared.hardware) or 1,
            )
            return fluid.flow(rate * takes, fluid.crossing(None, Fraction(rate)), self.position)
        use = None if i in self.exchanges else self.program.slowed.get(i)
        launch = takes if use is None else min(takes, use.launch_ns)
        return fluid.compute(launch, takes - launch, self.program.where[i], self.position, use)

    @property
    def waits_for_room(self) -> bool:
        """Return whether an op waits for room only.

        Such an op may have to wait for a transfer that starts now (rule 1, *Before*).
        """
        return any(
            [stream.residency_met >= 0 and stream.running is None for stream in self.streams]
        )

    def _meeting(self, i: int) -> Meeting:
        """Return the meeting of an op: of devices in a collective (rule 19), of stages in an
        exchange (rule 21).
        """
        key: tuple[int, int] | str
        if i in self.exchanges:
            key, members = self.exchanges[i].message, len(self.exchanges[i].members)
        else:
            devices, ranks = self.shared.hardware.devices, self.meets[i]
            first = first_of_group(ranks, self.position)
            key, members = (
                (i, first),
                1 if self.shared.fluid.folded else min(ranks or devices, devices - first),
            )
        return self.shared.meetings.setdefault(key, Meeting(self.env, members))

    # -- runtime policies (rule 16)
    # ------------------------------------------------------------------------------------

    def _inspect(self, stream: OpStream, i: int) -> bool:
        """Let the policy inspect the next op of a stream, and return whether it is done."""
        if stream.inspected_at < 0:
            ns = (
                self.shared.hardware.inspect_ns
                if self.inspected is None or i in self.inspected
                else 0
            )
            stream.inspected_at = self.env.now + ns
            if ns:
                self.env.going += 1
                self.env.process(self._lapse(ns))
        return stream.inspected_at <= self.env.now

    def _lapse(self, ns: int) -> Steps:
        """Wait for an inspection or a call of the host, then settle the device again."""
        yield self.env.timeout(ns)
        self.env.going -= 1
        self.wake(self.position)

    def _decide(self, decisions: Iterable[CacheOp]) -> bool:
        """Issue the cache ops that the policy decided on, and return whether there are any."""
        made = list(decisions)
        for cache_op in made:
            resolve_hop(
                cache_op.op,
                cache_op.source,
                cache_op.destination,
                self.shared.hardware,
                "runtime policy",
            )
            self.issued[cache_op.op] += cache_op.tensor not in self.transfers.dead
            self.transfers.issue(-1, cache_op, self.rules.detach)
        return bool(made)

    def make_room(self) -> bool:
        """Let the policy make room for a waiting op if no op, transfer or inspection runs.

        Returns whether the policy decided on a cache op.
        """
        if self.policy is None or self.rules.running():
            return False
        if any([move.begun for moves in self.transfers.pending.values() for move in moves]):
            return False
        if any([stream.inspected_at > self.env.now for stream in self.streams]):
            return False
        for stream in self.streams:
            i = stream.head
            if i is not None and stream.dependency_met >= 0:
                absent = [t for t in self.rules.uses[i] if not self.is_resident(t)]
                wanted = self.graph.ops[i].workspace_bytes + sum(
                    [self.graph.tensors[t].size_bytes for t in absent]
                )
                if self._decide(self.policy.make_room(i, wanted, self)):
                    return True
        return False

    # The view that a policy has of the device (:class:`hosim.cache_plan.MemoryView`).

    @property
    def now_ns(self) -> int:
        """The current instant, in ns."""
        return self.env.now

    @property
    def capacity_bytes(self) -> int:
        """The bytes of the device tier that the budget allows."""
        return self.storage.device.ledgers[0].capacity

    @property
    def free_bytes(self) -> int:
        """The bytes of the budget that are free now."""
        return self.capacity_bytes - self.storage.device.ledgers[0].held

    def residents(self) -> list[int]:
        """Return the tensors that hold bytes in the device tier now, ascending."""
        return sorted(self.storage.device.copies)

    def is_resident(self, tensor: int) -> bool:
        """Return whether the tensor holds bytes in the device tier now."""
        return tensor in self.storage.device.copies

    def is_busy(self, tensor: int) -> bool:
        """Return whether a running op uses the tensor or a cache op of it is pending."""
        return tensor in self.transfers.pending or any(
            [tensor in self.rules.uses[i] for i in self.rules.running()]
        )

    def tiers_of(self, tensor: int) -> list[str]:
        """Return the tiers other than the device tier that hold a valid copy."""
        device = self.storage.device
        return [
            tier
            for tier, room in self.storage.rooms.items()
            if room is not device and room.copies.get(tensor) == VALID
        ]

    # -- the end
    # ----------------------------------------------------------------------------------------------

    @property
    def makespan_ns(self) -> int:
        """The end of the last op or transfer, in ns."""
        return max([self.transfers.last_end, *[stream.free_since for stream in self.streams]])

    def report(self) -> str | None:
        """Return the out-of-memory report if something has not ended; else check rule 2.

        Returns ``None`` if everything ended and the allocator did not fail.
        """
        if len(self.rules.ended) < len(self.graph.ops) or any(
            [queue.pieces for queue in self.transfers.queues]
        ):
            return self._culprit()
        self.rules.check_end()
        return self.arena.failure() if self.arena is not None else None

    def _culprit(self) -> str:
        """Return the report on the culprit (rule 4).

        It is the first op that does not fit, else the first transfer that does not, else the first
        op that waits in vain, else the first op that waits for other devices.
        """
        blocked = [(stream, i) for stream in self.streams if (i := stream.head) is not None]
        for stream, i in blocked:
            if stream.residency_met >= 0:
                return oom_reports.of_op(self.rules.where[i].full(), i)
        heads = sorted(
            [queue.pieces[0] for queue in self.transfers.queues if queue.pieces],
            key=lambda x: x.order,
        )
        for x in heads:
            turn = self.transfers.pending[x.tensor][0] is x.move
            if x.hop or (turn and x.lane.source.copies.get(x.tensor) == VALID):
                return self._no_room_for(x)
        for stream, i in blocked:
            if stream.dependency_met >= 0:
                there = self.rules.where[i]
                missing = [t for t in self.rules.reads[i] if there.copies.get(t) != VALID]
                return oom_reports.in_vain(self.graph, i, missing, there.tier.name)
        for i in self.rules.running():
            return oom_reports.for_others(self.graph, i)
        return self._no_room_for(heads[0])

    def _no_room_for(self, x: Piece) -> str:
        wanted = self.graph.tensors[x.tensor].size_bytes if x.arrives else x.size
        return oom_reports.of_transfer(
            x.lane.destination.full(), x.move.cache_op.op, x.tensor, x.channel.source, wanted
        )

    def outcome(self, error: str | None) -> Outcome:
        """Return the outcome of the device."""
        return Outcome(
            error=error,
            makespan_ns=self.makespan_ns,
            streams={stream.name: stream.figures(self.makespan_ns) for stream in self.streams},
            slowed_ns=sum([stream.slowed_ns for stream in self.streams]),
            waited_ns=sum([stream.peers_ns for stream in self.streams]),
            ledgers=[room.ledgers[0] for room in self.storage.everywhere],
            channels=self.lanes,
            decided=self.issued,
            timeline=None if self.recorder is None else self.recorder.timeline(self.env.now),
            arena=self.arena,
        )
