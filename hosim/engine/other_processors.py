"""Ops that run on the processors of other tiers than the device's (docs/contract.md, rule 20).

A graph that has such ops is replayed by :class:`ProcessorsReplay`; all others by :class:`~hosim.engine.device.DeviceReplay`, to which
this costs nothing. Every tensor that such an op uses is tracked, so that what the op needs of its tier is read off the copies there.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from hosim.cache_plan import Plan
from hosim.costmodel.memory_traffic import MemoryUse
from hosim.edits import COLLECTIVE_KINDS
from hosim.engine.compiled_plan import ABSENT, PENDING, VALID, TrackedOp
from hosim.engine.device import DeviceReplay
from hosim.engine.ledger import composition_of
from hosim.engine.link_groups import LinkGroup
from hosim.engine.memory_contention import MemoryContention
from hosim.engine.recorder import TimelineRecorder
from hosim.engine.stream import Stream
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.processors import refuse_other_processors
from hosim.result import IN_TIME, LEDGER, WORKSPACE


def check_other_processors(plan: Plan, hardware: Hardware, allocator: str, account: str) -> None:
    """Raise :class:`InputError` for a replay with ops on other processors that the rules do not define."""
    graph = plan.graph
    if hardware.devices > 1:
        refuse_other_processors(graph, "a replay with such ops has one device; give the machine devices: 1")
    if plan.runtime is not None:
        refuse_other_processors(graph, f"runtime policies such as {plan.policy} know only the device's ops")
    if allocator != LEDGER:
        refuse_other_processors(graph, f"a replay with such ops counts bytes alone (allocator {LEDGER}, not {allocator})")
    if account != IN_TIME:
        refuse_other_processors(graph, f"a replay with such ops counts in time (account {IN_TIME}, not {account})")
    if any([graph.ops[i].kind in COLLECTIVE_KINDS for i in graph.elsewhere]):
        refuse_other_processors(graph, "collectives are done by devices, and one of these ops is a collective")


class ProcessorsReplay(DeviceReplay):
    """A device with the processors of other tiers beside it. ``contentions`` has what copies take of each of these tiers, by position."""

    def __init__(self, *parts: Any, hardware: Hardware, uses: Mapping[int, MemoryUse], recorder: TimelineRecorder | None) -> None:
        graph: Graph = parts[1]
        at = hardware.tier_index
        tiers = sorted({at[graph.ops[i].processor] for i in graph.elsewhere}) if uses else ()
        self.contentions = {tier: MemoryContention(uses, recorder) for tier in tiers}
        self._ends = [(at[c.source], at[c.destination]) for c in hardware.channels]
        super().__init__(*parts)

    def contention_of(self, stream: Stream) -> MemoryContention | None:
        """What copies take of the memory that the ops of a stream use."""
        tier = self._tier(stream.queue[0])
        return self.contention if tier == self.memory.tier else self.contentions.get(tier)

    def take(self, group: LinkGroup, now: int) -> None:
        """Tell the ops of other processors what the transfers of a group take of their memories from now on."""
        rates = list(group.rates())
        for tier, contention in self.contentions.items():
            taken = sum([rate for channel, rate in rates if tier in self._ends[channel.index]], Fraction(0))
            contention.take(group, taken.as_integer_ratio(), now)

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
        copies, ledger = memory.copies[tracked.tier], memory.ledgers[tracked.tier]
        made = [t for t in tracked.outputs if copies[t] == ABSENT]
        size = op.workspace_bytes + sum([memory.sizes[t] for t in made])
        if size and ledger.held + size > ledger.capacity:
            return False
        self._begin_writes(tracked, now)
        for t in made:
            memory.copies_below[t] += 1
            if memory.overheads is not None:
                memory.overheads.pin(t, tracked.tier)  # which takes no time of the op's
        workspace = composition_of(WORKSPACE, op.workspace_bytes)
        ledger.allocate(size, workspace + sum([memory.compositions[t] for t in made]), now)
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
        memory.ledgers[tracked.tier].release(size, composition_of(WORKSPACE, size))
        for t in tracked.writes:
            memory.copies[tracked.tier][t] = VALID
        for t in tracked.dying:
            memory.die(t)
        for t in tracked.shared:
            memory.users_left[t] -= 1
            if not memory.users_left[t]:
                memory.die(t)
