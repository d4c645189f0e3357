"""Ops that run on the processors of other tiers than the device's (docs/contract.md, rule 20).

A graph that has such ops is replayed by :class:`ProcessorsReplay`; all others by :class:`~hosim.engine.device.DeviceReplay`, to which
this costs nothing. Every tensor that such an op uses is tracked, so that what the op needs of its tier is read off the copies there.
A tier that devices share has its processor in equal parts: each has one, also while others leave theirs idle.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from hosim.cache_plan import Plan
from hosim.costmodel import MemoryUse
from hosim.edits import COLLECTIVE_KINDS
from hosim.engine.clock import Alarm, Process
from hosim.engine.compiled_plan import ABSENT, PENDING, VALID, TrackedOp
from hosim.engine.device import DeviceReplay
from hosim.engine.ledger import composition_of
from hosim.engine.link_groups import LinkGroup
from hosim.engine.memory_contention import MemoryContention
from hosim.engine.stream import Stream
from hosim.hardware import Hardware
from hosim.processors import refuse_other_processors
from hosim.result import IN_TIME, LEDGER, WORKSPACE


def check_other_processors(plan: Plan, allocator: str, account: str) -> None:
    """Raise :class:`InputError` for a replay with ops on other processors that the rules do not define."""
    graph = plan.graph
    if plan.runtime is not None:
        refuse_other_processors(graph, f"runtime policies such as {plan.policy} know only the device's ops")
    if allocator != LEDGER:
        refuse_other_processors(graph, f"a replay with such ops counts bytes alone (allocator {LEDGER}, not {allocator})")
    if account != IN_TIME:
        refuse_other_processors(graph, f"a replay with such ops counts in time (account {IN_TIME}, not {account})")
    if any([graph.ops[i].kind in COLLECTIVE_KINDS for i in graph.elsewhere]):
        refuse_other_processors(graph, "collectives are done by devices, and one of these ops is a collective")


class ProcessorsReplay(DeviceReplay):
    """A device with the processors of other tiers beside it. ``contentions`` has what copies take of each of these tiers, by position.

    ``folded``: the device stands for all.
    """

    def __init__(self, *parts: Any, hardware: Hardware, uses: Mapping[int, MemoryUse], folded: bool) -> None:
        clock, graph, program, streams, memory, recorder, _, _ = parts
        at = hardware.tier_index
        tiers = sorted({at[graph.ops[i].processor] for i in graph.elsewhere}) if uses else ()
        self._touches = {
            tier: [*[hardware.tiers[tier].name in (c.source, c.destination) for c in hardware.channels], False]  # the last: collectives
            for tier in tiers
        }
        self.contentions = {}
        for tier in tiers:
            here = [stream for stream in streams if graph.ops[stream.queue[0]].processor == hardware.tiers[tier].name]
            self.contentions[tier] = MemoryContention(uses, program.durations, here, self._touches[tier], recorder)
        scopes = {tier: hardware.tier_scope(hardware.tiers[tier].name) for tier in tiers}
        self._parts = {tier: 1 if folded else hardware.sharers(scope) for tier, scope in scopes.items()}
        self._near = {
            tier: [d for d in range(hardware.devices) if hardware.instance(scope, d) == hardware.instance(scope, memory.position)]
            for tier, scope in scopes.items()
        }
        self._is_to_settle = False
        self._again = Alarm(clock, self._settle_again())
        super().__init__(*parts)

    def contention_of(self, stream: Stream) -> MemoryContention | None:
        """What copies take of the memory that the ops of a stream use."""
        tier = self._tier(stream.queue[0])
        return self.contention if tier == self.memory.tier else self.contentions.get(tier)

    def take(self, group: LinkGroup, now: int) -> None:
        """Of one device: tell the ops of all processors that the rates of a group's transfers are others from now on."""
        if self.contention is not None:
            self.contention.take(group, now)
        for contention in self.contentions.values():
            contention.take(group, now)

    def take_parts(self, group: LinkGroup, now: int) -> None:
        """Of several devices: tell the ops of other processors what transfers take of this device's part of their memories."""
        rates = list(group.rates())
        for tier, contention in self.contentions.items():
            near, touches = self._near[tier], self._touches[tier]
            taken = sum([rate for channel, rate in rates if touches[channel.index] and channel.device in near], Fraction(0))
            contention.take_part(group, (taken / self._parts[tier]).as_integer_ratio(), now)

    def _settle_again(self) -> Process:
        """Look at this instant again: an op has left room as it started, for which ops of streams before it may wait (rule 0)."""
        while True:
            yield
            self._is_to_settle = False
            self.clock.unsettled.add(self.memory.position)

    def _left_room(self, now: int) -> None:
        if not self._is_to_settle:
            self._is_to_settle = True
            self._again.ring_at(now)

    def _tier(self, i: int) -> int:
        """The tier that op ``i`` reads and writes."""
        tracked = self.tracked_ops.get(i) if self.graph.ops[i].processor else None
        return self.memory.tier if tracked is None else tracked.tier

    def _try_op(self, stream: Stream, now: int) -> bool:
        """As on the device, by the tier of the op's processor."""
        i = stream.queue[stream.done]
        op = self.graph.ops[i]
        if not op.processor:
            return super()._try_op(stream, now)
        memory, tracked = self.memory, self.tracked_ops[i]
        if stream.dependency_met < 0:
            for s, count in self.launch[i][2]:
                if self.streams[s].done < count:
                    stream.wait_for(self.streams[s], count)
                    return False
            stream.dependency_met = now
        if not self._resident(tracked):
            stream.residency_met = -1
            return False
        if stream.residency_met < 0:
            stream.residency_met = now
            if stream.transfer_wait > 0:
                stream.waited_for = self._blamed(tracked)
        copies, ledger, pool = memory.copies[tracked.tier], memory.ledgers[tracked.tier], memory.pools[tracked.tier]
        made = [t for t in tracked.outputs if copies[t] == ABSENT]
        size = op.workspace_bytes + sum([memory.sizes[t] for t in made])
        if size and (ledger.held + size > ledger.capacity or (pool is not None and not pool.has_room(size, memory.position))):
            return False
        self._begin_writes(tracked, now)
        for t in made:
            memory.copies_below[t] += 1
            if memory.overheads is not None:
                memory.overheads.pin(t, tracked.tier)  # which takes no time of the op's
        composition = composition_of(WORKSPACE, op.workspace_bytes) + sum([memory.compositions[t] for t in made])
        ledger.allocate(size, composition, now)
        if pool is not None:
            pool.allocate(size, composition, now)
        duration = self.durations[i]
        if self.recorder is not None:
            self.recorder.op(i, now, duration)
            for t in made:
                self.recorder.hold(t, tracked.tier, now)
        stream.divide(i, now)
        stream.running = i
        contention = self.contention_of(stream)
        if contention is None:
            stream.alarm.ring_at(now + duration)
        else:
            contention.start(stream, i, now, duration)
        return True

    def _resident(self, tracked: TrackedOp) -> bool:
        memory = self.memory
        if tracked.tier == memory.tier:
            return super()._resident(tracked)
        copies, pending = memory.copies[tracked.tier], memory.pending
        if not all([memory.ended_cache_ops[k] for k in tracked.awaited]) or any([copies[t] != VALID for t in tracked.reads]):
            return False
        return not any([t in pending and t in memory.transferring for t in tracked.writes])

    def _begin_writes(self, tracked: TrackedOp, now: int) -> None:
        """What the op writes is invalid until it ends, and stale in every other tier."""
        memory = self.memory
        if any([copies[t] for tier, copies in enumerate(memory.copies) if tier != tracked.tier for t in tracked.writes]):
            self._left_room(now)
        if tracked.tier == memory.tier:
            super()._begin_writes(tracked, now)
            return
        for t in tracked.writes:
            for tier, copies in enumerate(memory.copies):
                if tier == tracked.tier:
                    copies[t] = PENDING
                elif copies[t]:
                    memory.release(t, tier)

    def _finish_tracked(self, i: int) -> None:
        memory, tracked = self.memory, self.tracked_ops[i]
        if tracked.tier == memory.tier:
            super()._finish_tracked(i)
            return
        size = self.graph.ops[i].workspace_bytes
        workspace = composition_of(WORKSPACE, size)
        memory.ledgers[tracked.tier].release(size, workspace)
        memory.release_shared(tracked.tier, size, workspace)
        for t in tracked.writes:
            memory.copies[tracked.tier][t] = VALID
        for t in tracked.dying:
            memory.die(t)
        for t in tracked.shared:
            memory.users_left[t] -= 1
            if not memory.users_left[t]:
                memory.die(t)
