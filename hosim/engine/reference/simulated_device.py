"""One device of a replay: its storage, queues and streams in the rounds of an instant (docs/contract.md, rules 0, 1, 8, 15, 16, 19)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import count
from typing import Any

import simpy

from hosim.cache_plan import Plan
from hosim.costmodel import copy_uses, op_durations
from hosim.costmodel.transfers import NS_PER_S, bytes_per_s_over_links, first_of_group, meeting_ranks, sent_bytes
from hosim.engine.jittered_times import jittered, transfer_factors
from hosim.engine.reference.cache_op_queues import Transfers
from hosim.engine.reference.fluid import Flow, Fluid, Nanoseconds, RunningOp, Steps
from hosim.engine.reference.storage import VALID, Account, Storage
from hosim.engine.reference.streams import NOT_YET, OpStream, Rules
from hosim.hardware import Hardware
from hosim.jitter import Jitter


@dataclass(frozen=True)
class Shared:
    """What the devices of a replay have in common: the clock, what flows, the tiers' instances, and who waits in which collective.

    ``pause`` waits for so many nanoseconds, ``wake`` says that something has ended, ``order`` numbers transfers as they are issued.
    """

    env: Nanoseconds
    hardware: Hardware
    fluid: Fluid
    competes: bool
    jitter: Jitter | None
    pause: Callable[[int], Steps]
    wake: Callable[[], None]
    room: Callable[[str, int], Account]
    order: Iterator[int] = field(default_factory=lambda: count(1))
    meetings: dict[tuple[int, int], list[simpy.Event]] = field(default_factory=dict)


class SimulatedDevice:
    """One device: its storage, its transfers and its streams."""

    def __init__(self, shared: Shared, plan: Plan, position: int) -> None:
        self.shared, self.plan, self.graph, self.position = shared, plan, plan.graph, position
        self.env, hardware = shared.env, shared.hardware
        rooms = {tier.name: shared.room(tier.name, position) for tier in hardware.tiers}
        with_others = {name for name in rooms if hardware.sharers(hardware.tier_scope(name)) > 1}
        self.own = {name: Account(room.capacity) if name in with_others else room for name, room in rooms.items()}
        self.storage = Storage(self.env, self.graph, hardware, rooms, self.own)
        jitter = shared.jitter
        factor = None if jitter is None else transfer_factors(jitter, position, plan.workload)
        self.transfers = Transfers(self.env, hardware, self.storage, shared.fluid, position, shared.order, shared.pause, factor)
        self.rules = Rules(plan, hardware, self.storage, self.transfers)
        self.streams = self.rules.streams
        self.streams += [OpStream(name, [i for i, op in enumerate(self.graph.ops) if op.stream == name]) for name in self.graph.streams]
        self.main = next((s for s in self.streams if s.name == self.graph.main_stream), None)
        self.durations: Sequence[int] = op_durations(self.graph, hardware)
        self.uses = copy_uses(self.graph, hardware, self.durations, shared.competes)
        self.meets = meeting_ranks(self.graph) if hardware.devices > 1 else {}
        self.sent = sent_bytes(self.graph, hardware)
        if jitter is not None:
            self.durations = jittered(plan, self.durations, jitter, position, self.meets)
        self.finished: list[tuple[OpStream, int]] = []
        self.after: dict[int, list[int]] = {}
        for k, cache_op in enumerate(plan.cache_ops):
            self.after.setdefault(cache_op.after, []).append(k)
        self.policy = plan.runtime() if plan.runtime is not None else None
        self.inspected = getattr(self.policy, "inspected", None)
        self.decided = False
        self.error: tuple[str, str] | None = None
        for t, where in plan.residency(hardware.device_tier).items():
            for tier in where:
                self.storage.hold(t, tier, VALID)
                self.storage.note_pinned(tier)

    # -- a round ---------------------------------------------------------------------------------------------------

    def end(self) -> list[int] | None:
        """What has ended at this instant: the ops; ``None`` if nothing has."""
        finished, self.finished = sorted(self.finished, key=lambda pair: pair[1]), []
        if self.transfers.arrivals and self.transfers.arrivals[0].ended < self.env.now:
            self.transfers.arrivals.clear()
        if not finished and not self.transfers.passed:
            return None
        touched = set()
        for stream, i in finished:
            stream.running, stream.free_since, stream.next = False, self.env.now, stream.next + 1
            stream.inspected_at = stream.dependency_met = stream.residency_met = NOT_YET
            dead = self.rules.end(i)
            self.transfers.dead.update(dead)
            touched.update(dead)
        touched |= self.transfers.end()
        for t in touched:
            if t in self.transfers.pending:
                self.transfers.detach_due(t, self.rules.detach)
            self.rules.bury(t)
        self.transfers.go_on()
        return [i for _, i in finished]

    def issue_after(self, ops: Sequence[int]) -> None:
        """Issue the cache ops that name these, in the plan's order."""
        for k in sorted([k for i in ops for k in self.after.get(i, ())]):
            self.transfers.issue(k, self.plan.cache_ops[k], self.rules.detach)

    def start_ops(self) -> bool:
        """Start what can start, stream by stream; again where a policy's decisions may have set another stream free."""
        begun = False
        while True:
            self.decided = False
            begun |= any([self._start(stream) for stream in self.streams])
            if not self.decided:
                return begun

    def _start(self, stream: OpStream) -> bool:
        i, now, rules = stream.head, self.env.now, self.rules
        if i is None:
            return False
        if self.policy is not None and stream.inspected_at < 0:
            return self._inspect(stream, i)
        if stream.inspected_at > now or not all([rules.ended[p] for p in self.graph.producers[i]]):
            return False
        if stream.dependency_met < 0:
            stream.dependency_met = now
            if self.policy is not None and (self.inspected is None or i in self.inspected):
                self.decided |= self._decide(self.policy.before_op(i, self))
        if not rules.is_resident(i):
            stream.residency_met = NOT_YET
            return False
        if stream.residency_met < 0:
            stream.residency_met = now
            stream.blamed = rules.blamed(i)
        if not self.storage.fits(rules.where(i), rules.wanted(i)):
            return False
        self._divide(stream)
        rules.begin(i)
        stream.running = True
        self.env.process(self._op(stream, i))
        return True

    def _divide(self, stream: OpStream) -> None:
        """The idle time before an op, by cause (rule 8)."""
        begin = stream.free_since
        for cause, at in (
            ("runtime", stream.inspected_at),
            ("dependency", stream.dependency_met),
            ("transfer", stream.residency_met),
            ("capacity", self.env.now),
        ):
            waited = max(0, at - begin)
            stream.stalls[cause] += waited
            if cause == "transfer" and waited and stream is self.main and stream.blamed is not None:
                move = stream.blamed.move
                self.transfers.lines[move.hops[-1].name].exposed_ns += waited
            begin += waited

    # -- an op (rules 12, 13, 19) ------------------------------------------------------------------------------------

    def _op(self, stream: OpStream, i: int) -> Steps:
        start, shared = self.env.now, self.shared
        if i in self.meets:
            yield from self._meet(i)
        begun, duration = self.env.now, self.durations[i]
        links = shared.fluid.links_of_collectives(self.position) if i in self.sent and duration else ()
        if links:
            rate = min(-(-self.sent[i] * NS_PER_S // duration), bytes_per_s_over_links(shared.hardware) or 1)
            yield from shared.fluid.run(Flow(self.env, rate * duration, self.position, links, Fraction(rate), None))
        else:
            use = self.uses.get(i)
            launch = duration if use is None else min(duration, use.launch_ns)
            yield from shared.pause(launch)
            if duration > launch:
                yield from shared.fluid.run(RunningOp(self.env, duration - launch, self.position, self.rules.where(i), use))
        stream.busy_ns += self.env.now - start
        stream.peers_ns += begun - start
        stream.slowed_ns += self.env.now - begun - duration
        self.finished.append((stream, i))
        shared.wake()

    def _meet(self, i: int) -> Steps:
        """Wait until all devices that do a collective together have started it (rule 19)."""
        devices, ranks = self.shared.hardware.devices, self.meets[i]
        first = first_of_group(ranks, self.position)
        here = self.shared.meetings.setdefault((i, first), [])
        here.append(self.env.event())
        if len(here) < min(ranks or devices, devices - first):
            yield here[-1]
            return
        for waiting in self.shared.meetings.pop((i, first))[:-1]:
            waiting.succeed()

    # -- runtime policies (rule 16) ------------------------------------------------------------------------------------

    def _inspect(self, stream: OpStream, i: int) -> bool:
        """The policy inspects the next op of a stream; that takes time, and the op is looked at again after it."""
        ns = self.shared.hardware.inspect_ns if self.inspected is None or i in self.inspected else 0
        stream.inspected_at = self.env.now + ns
        if not ns:
            return self._start(stream)
        self.env.process(self._inspection(ns))
        return True

    def _inspection(self, ns: int) -> Steps:
        yield from self.shared.pause(ns)
        self.shared.wake()

    def _decide(self, decisions: Any) -> bool:
        made = list(decisions)
        for cache_op in made:
            self.transfers.issue(-1, cache_op, self.rules.detach)
        return bool(made)

    def make_room(self) -> bool:
        """If nothing is under way, the policy may make room for what waits."""
        if self.policy is None or self.rules.running():
            return False
        if any([move.begun for moves in self.transfers.pending.values() for move in moves]):
            return False
        if any([stream.inspected_at > self.env.now for stream in self.streams]):
            return False
        for stream in self.streams:
            i = stream.head
            if i is not None and stream.dependency_met >= 0:
                op, copies = self.graph.ops[i], self.storage.copies
                absent = [t for t in op.uses if (t, self.rules.device) not in copies]
                wanted = op.workspace_bytes + sum([self.graph.tensors[t].size_bytes for t in absent])
                if self._decide(self.policy.make_room(i, wanted, self)):
                    return True
        return False

    # What a policy may look at (:class:`hosim.cache_plan.MemoryView`).

    @property
    def now_ns(self) -> int:
        """The current instant."""
        return self.env.now

    @property
    def capacity_bytes(self) -> int:
        """Capacity of the device tier under the budget."""
        return self.own[self.rules.device].capacity

    @property
    def free_bytes(self) -> int:
        """Bytes of the device tier that nothing holds now."""
        return self.capacity_bytes - self.own[self.rules.device].held

    def residents(self) -> list[int]:
        """Tensors that hold bytes in the device tier now, ascending."""
        return sorted([t for t, tier in self.storage.copies if tier == self.rules.device])

    def is_resident(self, tensor: int) -> bool:
        """Whether the tensor holds bytes in the device tier now."""
        return (tensor, self.rules.device) in self.storage.copies

    def is_busy(self, tensor: int) -> bool:
        """Whether an op that runs uses the tensor, or a cache op of it is issued and not yet done."""
        return bool(self.transfers.pending.get(tensor)) or any([tensor in self.graph.ops[i].uses for i in self.rules.running()])

    def tiers_of(self, tensor: int) -> list[str]:
        """Tiers other than the device tier that hold a valid copy."""
        return [tier for tier in self.own if tier != self.rules.device and self.storage.copies.get((tensor, tier)) == VALID]

    # -- figures -------------------------------------------------------------------------------------------------------

    @property
    def makespan_ns(self) -> int:
        """When the last op or transfer has ended."""
        return max([self.transfers.last_end, *[stream.free_since for stream in self.streams]])

    def check(self) -> None:
        """Rule 2 where everything has ended; else who is in the way (rule 4)."""
        if all(self.rules.ended) and not any([line.queue for line in self.transfers.lines.values()]):
            self.rules.check_end()
        else:
            self.error = self._culprit()

    def _culprit(self) -> tuple[str, str]:
        """The first op that does not fit, else transfer, else the first op that waits in vain, else for others."""
        ops, blocked = self.graph.ops, [stream for stream in self.streams if stream.head is not None]
        for stream in blocked:
            if stream.residency_met >= 0:
                return "op", ops[stream.ops[stream.next]].name
        heads = sorted([line.queue[0] for line in self.transfers.lines.values() if line.queue], key=lambda chunk: chunk.order)
        for chunk in heads:
            t = chunk.move.cache_op.tensor
            turn = self.transfers.pending[t][0] is chunk.move and self.storage.copies.get((t, chunk.move.cache_op.source)) == VALID
            if chunk.hop or turn:
                return "transfer", self.graph.tensors[t].name
        for stream in blocked:
            if stream.dependency_met >= 0:
                return "vain", ops[stream.ops[stream.next]].name
        for i in self.rules.running():
            return "others", ops[i].name
        return "transfer", self.graph.tensors[heads[0].move.cache_op.tensor].name

    def figures(self) -> Mapping[str, Any]:
        """What the result of this device says."""
        feasible, makespan = self.error is None, self.makespan_ns
        by_ops = dict(zip([c.name for c in self.shared.hardware.channels], self.shared.hardware.copied_by_ops, strict=True))
        return {
            "makespan_ns": makespan if feasible else None,
            "busy_ns": {s.name: s.busy_ns for s in self.streams} if feasible else None,
            "stall_ns": {s.name: dict(s.stalls) for s in self.streams} if feasible else None,
            "drain_ns": {s.name: makespan - s.free_since for s in self.streams} if feasible else None,
            "slowed_ns": sum([s.slowed_ns for s in self.streams]) if feasible else None,
            "peers_ns": sum([s.peers_ns for s in self.streams]) if feasible else None,
            "peak_bytes": {tier: account.peak for tier, account in self.own.items()},
            "peak_at_ns": {tier: account.peak_at for tier, account in self.own.items()},
            "peak_breakdown": {tier: account.at_peak for tier, account in self.own.items()},
            "channels": {
                name: {
                    "transfers": line.transfers,
                    "bytes": line.bytes,
                    "busy_ns": line.busy_ns,
                    "queue_ns": line.queue_ns,
                    "contention_ns": line.contention_ns,
                    "exposed_ns": line.exposed_ns,
                    "hidden_ns": 0 if by_ops[name] else max(0, line.busy_ns - line.exposed_ns),
                }
                for name, line in self.transfers.lines.items()
            },
        }
