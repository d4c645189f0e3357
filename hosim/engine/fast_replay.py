"""Replay of a plan on a machine: the one place where instants are ordered (docs/contract.md, rule 0).

simpy keeps the order of time (:mod:`hosim.engine.clock`); this module keeps the order within an instant. Every event that simpy hands
out ends something: an op, a transfer, an inspection. When no more end at this instant, :meth:`FastReplay.settle` lets detaches take
effect that transfers' ends set free, issues the cache ops that the ops' ends issue, starts what ops can start and then what
transfers can, and sets the rates of what flows. What these begin ends in a later event, perhaps at the same instant: then it is
settled again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import count
from typing import TYPE_CHECKING

from hosim.analysis import StageExchange
from hosim.cache_plan import AT_START, Plan
from hosim.costmodel import copies_compete, with_memories
from hosim.engine import oom, oom_reports, result_figures
from hosim.engine.arenas import make_arena
from hosim.engine.channels import build_channels
from hosim.engine.clock import Clock
from hosim.engine.device import DeviceReplay
from hosim.engine.device_meetings import Collectives, DeviceCollectives
from hosim.engine.device_memory import DeviceMemory, start_together
from hosim.engine.device_outcome import outcome_of
from hosim.engine.device_programs import DeviceProgram, program_of, stopping_at
from hosim.engine.jittered_times import jittered, transfer_factors
from hosim.engine.ledger import AsymmetryError, Ledger, SharedLedger
from hosim.engine.link_groups import LinkGroup, drive_channels
from hosim.engine.memory_contention import MemoryContention
from hosim.engine.other_processors import ProcessorsReplay
from hosim.engine.recorder import TimelineRecorder
from hosim.engine.runtime import DeviceView, Runtime
from hosim.engine.stage_exchanges import DeviceExchanges
from hosim.engine.stream import Stream
from hosim.engine.transfer_overheads import TransferOverheads
from hosim.hardware import Hardware
from hosim.jitter import Jitter
from hosim.measured_on import check_measured_on
from hosim.result import FAST, LEDGER, Result

if TYPE_CHECKING:
    pass

Placing = tuple[str, int | None]
"""The allocator, and the bytes that it may reserve if they are not the budget's."""


class FastReplay:
    """One replay: the clock, the devices with their memories and streams, and the channels.

    ``plans`` are the one of all devices, or those of stages, one for each device, with the ``tied`` ops of each. ``folded``: one device
    stands for all of them.
    """

    def __init__(
        self,
        plans: Sequence[Plan],
        hardware: Hardware,
        budget_bytes: int | Sequence[int | None] | None,
        record: bool,
        placing: Placing,
        jitter: Jitter | None,
        compete: bool | None,
        folded: bool = False,
        tied: Sequence[Mapping[int, StageExchange]] | None = None,
    ) -> None:
        for plan in plans:
            check_measured_on(plan.workload, hardware)
        self.hardware = hardware
        self.jitter = jitter
        self.folded = folded
        self.staged = tied is not None
        self.tier_names = tuple(tier.name for tier in hardware.tiers)
        capacity = hardware.device.capacity_bytes
        given = [budget_bytes] * hardware.devices if budget_bytes is None or isinstance(budget_bytes, int) else budget_bytes
        self.budgets = [capacity if budget is None else budget for budget in given]
        self.clock = Clock()
        self.sequence = count(1)
        self.decides = any([plan.runtime is not None for plan in plans])
        self.elsewhere = any([plan.graph.elsewhere for plan in plans])
        self.competes = any([plan.graph.derived(copies_compete) for plan in plans]) if compete is None else compete
        self.machine = with_memories(hardware) if self.competes else hardware
        tier = hardware.device_tier
        self.at_device = [*[tier in (c.source, c.destination) for c in hardware.channels], False]  # the last one is of collectives
        self.holds = [*hardware.copied_by_ops, False]
        self.programs: list[DeviceProgram] = []
        for stage, plan in enumerate(plans):
            track_all = record or plan.runtime is not None or placing[0] != LEDGER
            here = None if tied is None else tied[stage]
            self.programs.append(program_of(plan, hardware, track_all, self.competes, compete, here))
        self.watches = any([program.uses for program in self.programs])
        self.meets = any([program.meetings or program.exchanges for program in self.programs])
        self.collectives: Collectives | None = None
        if any([program.sent for program in self.programs]) or (self.meets and not folded):
            self.collectives = Collectives(self.clock, hardware, self.sequence)
            for k, program in enumerate(self.programs):
                ops = {*program.sent, *program.exchanges, *(() if folded else program.meetings)}
                self.programs[k] = replace(program, compiled=stopping_at(program.compiled, ops))
        if tied is None and not folded:
            self.programs *= hardware.devices
        self.pools: dict[tuple[int, int], SharedLedger] = {}
        self.devices = [self._device(d, record, placing) for d in range(len(self.programs))]
        channels = [channel for device in self.devices for channel in (*device.memory.channels, *device.crossing)]
        ordered = record or placing[0] != LEDGER
        group_of = drive_channels(channels, self.machine, self.clock, divided=folded, grouped=self.watches, ordered=ordered)
        for device in self.devices:
            groups = [group_of[channel] for channel in (*device.memory.channels, *device.crossing) if channel in group_of]
            for channel in device.crossing:
                channel.undivided = True  # it asks for no more than its part
            device.memory.groups = list(dict.fromkeys(groups))
            if self.watches and device.contention is not None:
                alone = device.take if isinstance(device, ProcessorsReplay) else device.contention.take
                for group in groups:
                    group.watch = alone if len(self.devices) == 1 else self._rates_changed

    def _device(self, position: int, record: bool, placing: Placing) -> DeviceReplay:
        mine, hardware = self.programs[position], self.hardware
        plan, graph, program, uses = mine.plan, mine.graph, mine.compiled, mine.uses
        factor = None
        if self.jitter is not None:
            program = replace(program, durations=jittered(plan, program.durations, self.jitter, position, mine.meetings))
            factor = transfer_factors(self.jitter, position, plan.workload)
        device_tier = hardware.tier_index[hardware.device_tier]
        ledgers = [Ledger(tier.capacity_bytes) for tier in hardware.tiers]
        ledgers[device_tier].capacity = min(ledgers[device_tier].capacity, self.budgets[position])
        pools = [self._pool(tier, position) for tier in range(len(ledgers))]
        channels = build_channels(self.machine, position)
        recorder = TimelineRecorder(graph, hardware) if record else None
        runtime = Runtime(plan.runtime(), hardware) if plan.runtime is not None else None
        queues = zip(graph.streams, program.graph.queues, strict=True)
        streams = [Stream(name, queue, len(channels), recorder) for name, queue in queues]
        allocator, reserve = placing
        reserved = min(hardware.device.capacity_bytes, self.budgets[position] if reserve is None else reserve)
        arena = make_arena(allocator, graph, program.graph.stream_of, reserved)
        overheads = TransferOverheads(graph, hardware) if any(channel.has_overheads for channel in channels) else None
        memory = DeviceMemory(
            self.clock,
            graph,
            program,
            position,
            ledgers,
            pools,
            device_tier,
            channels,
            streams,
            self.sequence,
            recorder,
            arena,
            self.machine,
            overheads,
            factor,
        )
        collectives: DeviceCollectives | None = None
        contention = None
        if self.collectives is not None:
            rest = mine.sent, len({graph.ops[i].stream for i in mine.sent}), hardware, position, len(channels), recorder
            if mine.exchanges:
                collectives = DeviceExchanges(self.collectives, mine.exchanges, *rest)
            else:
                collectives = DeviceCollectives(self.collectives, {} if self.folded else mine.meetings, *rest)
        if self.watches or collectives is not None:
            here = [stream for stream in streams if not graph.ops[stream.queue[0]].processor]
            contention = MemoryContention(uses, program.durations, here, self.at_device, recorder, collectives, self.holds)
        parts = self.clock, graph, program, streams, memory, recorder, runtime, contention
        device = ProcessorsReplay(*parts, hardware=hardware, uses=uses, folded=self.folded) if graph.elsewhere else DeviceReplay(*parts)
        for channel in channels:
            channel.ended = device.end_transfer
        if runtime is not None:
            runtime.attach(DeviceView(memory, streams, self.tier_names))
        return device

    def _pool(self, tier: int, position: int) -> SharedLedger | None:
        """What a device shares a tier by; ``None`` if it has the tier for itself."""
        hardware = self.hardware
        scope = hardware.tier_scope(self.tier_names[tier])
        sharers = hardware.sharers(scope)
        if sharers == 1:
            return None
        which = tier, hardware.instance(scope, position)
        if which not in self.pools:
            capacity = hardware.tiers[tier].capacity_bytes
            self.pools[which] = SharedLedger(capacity // sharers, folded=True) if self.folded else SharedLedger(capacity)
        return self.pools[which]

    # -- the order of events -----------------------------------------------------------------------------------

    def run(self) -> Result:
        """Run to the end, or until nothing can proceed before it."""
        error = self._initial_error()
        if error is None:
            for device in self.devices:
                device.memory.issue(device.program.after.get(AT_START, ()), 0)
                self.clock.unsettled.add(device.memory.position)
            self.clock.run_instants(self.settle_one if len(self.devices) == 1 else self.settle)
        return self.result(error)

    def settle_one(self) -> None:
        """What :meth:`settle` does, of one device."""
        now, device = self.clock.time, self.devices[0]
        memory = device.memory
        self.clock.unsettled.clear()
        if memory.due:
            memory.detach_due()
        if memory.routes.onward:
            memory.routes.go_onward(now)
        if device.issued:
            device.issue_ended(now)
        stuck = device.start_ops(now)
        while device.decided:  # a runtime policy's decisions may have set another stream free
            device.decided = False
            stuck = device.start_ops(now)
        self.clock.unsettled.clear()
        memory.start_transfers(now, stuck)
        if device.runtime is not None:
            device.make_room()

    def settle(self) -> None:
        """Everything of this instant has ended: detaches that were behind it, issue, start ops, start transfers, set rates.

        Device by device, but for transfers, which start in order of issue. Those that wait for room in a tier that devices share are
        looked at again where another device has left some.
        """
        now, unsettled = self.clock.time, self.clock.unsettled
        touched = self._taken()
        for device in touched:
            if device.memory.due:
                device.memory.detach_due()
            if device.memory.routes.onward:
                device.memory.routes.go_onward(now)
        for device in touched:
            if device.issued:
                device.issue_ended(now)
        for device in touched:
            stuck = device.start_ops(now)
            while device.decided:  # a runtime policy's decisions may have set another stream free
                device.decided = False
                stuck = device.start_ops(now)
            device.memory.stuck = stuck
        if unsettled:
            unsettled.update([device.memory.position for device in touched])
            touched = self._taken()
        if len(touched) == 1:
            memory = touched[0].memory
            memory.start_transfers(now, memory.stuck)
        else:
            start_together([device.memory for device in touched], now)
        if self.decides:
            for device in touched:
                device.make_room()

    def _rates_changed(self, group: LinkGroup, now: int) -> None:
        """Tell the ops of each of several devices what its transfers of a group take of its memory."""
        found = [Fraction(0)] * len(self.devices)
        for channel, rate in group.rates():
            contention = self.devices[channel.device].contention
            if contention is not None:
                found[channel.device] += contention.taken_by(channel, rate)
        for device, taken in zip(self.devices, found, strict=True):
            if device.contention is not None:
                device.contention.take_part(group, taken.as_integer_ratio(), now)
            if isinstance(device, ProcessorsReplay):
                device.take_parts(group, now)

    def _taken(self) -> list[DeviceReplay]:
        """The devices that are unsettled, in order, and from now on are not.

        If ops run in tiers that devices share, all of them: they may wait for room that another device has left.
        """
        unsettled, devices = self.clock.unsettled, self.devices
        together = len(unsettled) == len(devices) or self.elsewhere
        touched = devices if together else [devices[d] for d in sorted(unsettled)]
        unsettled.clear()
        return touched

    def _initial_error(self) -> tuple[int, str] | None:
        """The out-of-memory report of what is more than a tier holds at time 0, and whose it is: of equal plans it is everyone's."""
        for device in self.devices if self.staged else self.devices[:1]:
            for tier, (ledger, pool) in enumerate(zip(device.memory.ledgers, device.memory.pools, strict=True)):
                if pool is not None and pool.held > pool.capacity:
                    if self.folded:
                        raise AsymmetryError
                    return device.memory.position, oom_reports.initial(oom.full_tier(device, tier, self.tier_names))
                if ledger.held > ledger.capacity:
                    return device.memory.position, oom_reports.initial(oom.full_tier(device, tier, self.tier_names))
        placed, first = [device.memory.place_residents() for device in self.devices], self.devices[0]
        return None if all(placed) else (0, oom_reports.unplaced(oom.full_tier(first, first.memory.tier, self.tier_names)))

    def result(self, initial_error: tuple[int, str] | None) -> Result:
        """The figures of a result (docs/formats.md): one device's, or those of several with each of them."""
        results = []
        for device in self.devices:
            error = None
            if initial_error is not None:
                whose, error = initial_error
                if self.staged and whose != device.memory.position:
                    error = oom_reports.FOR_OTHERS
            elif any(s.done < s.length for s in device.streams) or any(c.queue for c in device.memory.channels):
                error = oom.describe(device, self.tier_names)
            if error is None:
                device.memory.check_persistence(self.tier_names)
                arena = device.memory.arena
                error = arena.failure() if arena is not None else None
            program, budget = self.programs[device.memory.position], self.budgets[device.memory.position]
            modelled = program.tells, self.meets
            did = outcome_of(device, error)
            results.append(result_figures.of_device(did, program.plan, self.hardware, budget, self.jitter, modelled, FAST))
        if self.hardware.devices == 1:
            return results[0]
        instances = []
        for tier in range(len(self.tier_names)):
            shared: list[Ledger] = [pool for (which, _), pool in self.pools.items() if which == tier]
            instances.append(shared or [device.memory.ledgers[tier] for device in self.devices])
        return result_figures.together(results, instances, self.hardware, self.folded, "stage" if self.staged else "device")
