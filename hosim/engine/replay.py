"""Replay of a plan on a machine: the one place where instants are ordered (design.md section 3, rule 0).

simpy keeps the order of time (:mod:`hosim.engine.clock`); this module keeps the order within an instant. Every event that simpy hands
out ends something: an op, a transfer, an inspection. When no more end at this instant, :meth:`_Replay.settle` issues the cache ops that these ends issue,
starts what ops can start and then what transfers can, and sets the rates of what flows. What these begin ends in a later event, perhaps at the
same instant: then it is settled again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from hosim.costmodel.op_time import op_durations
from hosim.engine import oom
from hosim.engine.channels import Channel, LinkGroup, LoneChannel, Transfer
from hosim.engine.clock import Clock
from hosim.engine.device import Device
from hosim.engine.ledger import Ledger
from hosim.engine.program import Program, at_start, compile_plan
from hosim.engine.recorder import Recorder
from hosim.engine.runtime import DeviceView, Runtime
from hosim.hardware import Hardware
from hosim.plan import DETACH, PREFETCH, STORE, Plan
from hosim.result import STALL_CAUSES, ChannelFigures, Result


def replay(plan: Plan, hardware: Hardware, budget_bytes: int | None = None, *, record: bool = False) -> Result:
    """Replay a plan on a machine by the rules of design.md section 3; two runs give equal results.

    ``budget_bytes`` bounds the device tier further than its capacity does. ``record`` keeps the timeline in the result.
    A plan that does not fit gives a result with ``feasible`` false and an ``error`` that begins with ``out of memory``; its times are ``None`` and
    its peaks those reached until then. ``lower_bound_ns`` is left to the caller (:mod:`hosim.analysis.bounds`).
    Raises :class:`hosim.errors.PlanError` if the plan breaks a rule on the way.
    """
    begin = time.perf_counter()
    run = _Replay(plan, hardware, budget_bytes, record)
    error = run.run()
    result = run.result(error)
    return replace(result, replay_s=time.perf_counter() - begin)


class _Replay:
    """One replay: the simpy environment, the device and its channels."""

    def __init__(self, plan: Plan, hardware: Hardware, budget_bytes: int | None, record: bool) -> None:
        self.plan = plan
        self.hardware = hardware
        self.tier_names = tuple(tier.name for tier in hardware.tiers)
        device_tier = hardware.tier_index[hardware.device_tier]
        capacity = hardware.device.capacity_bytes
        self.budget = capacity if budget_bytes is None else budget_bytes
        self.clock = Clock()
        self.program: Program = compile_plan(
            plan, hardware, op_durations(plan.graph, hardware), track_all=record or plan.runtime is not None
        )
        ledgers = [Ledger(tier.capacity_bytes) for tier in hardware.tiers]
        ledgers[device_tier].capacity = min(capacity, self.budget)
        self.channels, self.groups = self._build_channels()
        recorder = None
        if record:
            workspaces = [op.workspace_bytes for op in plan.graph.ops]
            recorder = Recorder(len(plan.graph.ops), self.program.graph.sizes, workspaces, self.tier_names, device_tier)
        self.recorder = recorder
        runtime = Runtime(plan.runtime(), hardware) if plan.runtime is not None else None
        self.device = Device(
            self.clock, plan.graph, self.program, ledgers, device_tier, self.channels, recorder, runtime
        )
        if runtime is not None:
            runtime.attach(DeviceView(self.device, self.tier_names))

    def _build_channels(self) -> tuple[list[Channel], list[LinkGroup]]:
        """The channels, and for each the process that ends its transfers: shared where they share a fabric."""
        hardware = self.hardware
        fabrics_of = {c.name: [f for f in hardware.fabrics if c.name in f.channels] for c in hardware.channels}
        channels: list[Channel] = []
        component = _components(hardware)
        groups: dict[int, LinkGroup] = {}
        for k, c in enumerate(hardware.channels):
            fabrics = fabrics_of[c.name]
            alone = min([c.bandwidth_bytes_per_s, *(f.bandwidth_bytes_per_s for f in fabrics)])
            channel = Channel(k, c.name, alone, c.latency_ns, c.engines)
            channels.append(channel)
            if c.engines == 1 and component.count(component[k]) == 1:
                channel.driver = LoneChannel(self.clock, self.on_transfer_end)
                continue
            channel.links = (f"channel {c.name}", *(f"fabric {f.name}" for f in fabrics))
            group = groups.get(component[k])
            if group is None:
                capacity = {f"channel {c.name}": c.bandwidth_bytes_per_s for c in hardware.channels}
                capacity |= {f"fabric {f.name}": f.bandwidth_bytes_per_s for f in hardware.fabrics}
                group = groups[component[k]] = LinkGroup(self.clock, capacity, self.on_transfer_end)
            channel.driver = group
        return channels, list(groups.values())

    # -- the order of events -----------------------------------------------------------------------------------

    def run(self) -> str | None:
        """Run to the end; returns the out-of-memory report if nothing can proceed before it."""
        device = self.device
        for tier, ledger in enumerate(device.ledgers):
            if ledger.held > ledger.capacity:
                return oom.initial(device, tier, self.tier_names)
        device.issue(at_start(self.program))
        self.clock.run_instants(self.settle)
        while self._make_room():
            self.clock.run_instants(self.settle)
        if any(s.position < s.length for s in device.streams) or any(c.queue for c in self.channels):
            return oom.describe(device, self.tier_names)
        device.check_persistence(self.tier_names)
        return None

    def on_transfer_end(self, transfer: Transfer) -> None:
        """The bytes of a transfer are through."""
        transfer.channel.end(transfer, self.clock.time)
        self.device.end_transfer(transfer)

    def settle(self) -> None:
        """Everything of this instant has ended: issue, start ops, start transfers, set rates."""
        device = self.device
        self.clock.unsettled = False
        if device.issued:
            issued = sorted(device.issued)
            device.issued.clear()
            device.issue(issued)
        device.start_ops()
        while device.decided:  # a runtime policy's decisions may have set another stream free
            device.decided = False
            device.start_ops()
        if device.queued:
            self._start_transfers()
        for group in self.groups:
            group.settle()

    def _start_transfers(self) -> None:
        """In order of issue; one that cannot start holds back those behind it on its channel only (rule 4)."""
        free = [channel for channel in self.channels if channel.queue and channel.running < channel.engines]
        while free:
            channel = free[0] if len(free) == 1 else min(free, key=lambda c: c.queue[0].sequence)
            transfer = channel.queue[0]
            if self.device.try_transfer(transfer):
                channel.begin(transfer, self.clock.time)
                assert channel.driver is not None
                channel.driver.start(transfer)
                if channel.queue and channel.running < channel.engines:
                    continue
            free.remove(channel)

    def _make_room(self) -> bool:
        """Nothing is under way: ask the runtime policy, if there is one, to make room for what waits."""
        runtime, device = self.device.runtime, self.device
        if runtime is None:
            return False
        for stream in device.streams:
            if stream.position < stream.length and stream.dependency_met >= 0:
                i = stream.queue[stream.position]
                if device.issue_decided(runtime.make_room(i, device.wanted(i))):
                    self.clock.unsettled = True
                    return True
        return False

    # -- figures -----------------------------------------------------------------------------------------------

    def result(self, error: str | None) -> Result:
        """The figures of design.md section 4."""
        device, clock = self.device, self.clock
        feasible = error is None
        makespan = max([device.last_end, *(s.free_since for s in device.streams)])
        figures = {s.name: s.figures(makespan) for s in device.streams} if feasible else {}
        main = figures.pop(device.main.name, None) if device.main is not None else None
        counts = self._counts()
        timeline = self.recorder.timeline(clock.time) if self.recorder is not None else None
        return Result(
            workload=self.plan.graph.name,
            hardware=self.hardware.name,
            policy=self.plan.policy,
            budget_bytes=self.budget,
            feasible=feasible,
            error=error,
            makespan_ns=makespan if feasible else None,
            busy_ns=(main.busy_ns if main else 0) if feasible else None,
            stall_ns=main.stall_ns if main else dict.fromkeys(STALL_CAUSES, 0),
            drain_ns=(main.drain_ns if main else makespan) if feasible else None,
            lower_bound_ns=None,
            peak_bytes={name: ledger.peak for name, ledger in zip(self.tier_names, device.ledgers, strict=True)},
            peak_at_ns={name: ledger.peak_at for name, ledger in zip(self.tier_names, device.ledgers, strict=True)},
            peak_breakdown={name: ledger.breakdown() for name, ledger in zip(self.tier_names, device.ledgers, strict=True)},
            channels={c.name: _channel_figures(c, makespan) for c in self.channels},
            plan=counts,
            streams=figures,
            timeline=timeline,
        )

    def _counts(self) -> dict[str, int]:
        if self.plan.runtime is not None:
            return dict(self.device.executed)
        return {"prefetches": self.plan.count(PREFETCH), "stores": self.plan.count(STORE), "detaches": self.plan.count(DETACH)}


def _channel_figures(channel: Channel, makespan: int) -> ChannelFigures:
    return ChannelFigures(
        transfers=channel.transfers,
        bytes=channel.bytes,
        busy_ns=channel.busy_ns,
        queue_ns=channel.queue_ns,
        contention_ns=channel.contention_ns,
        exposed_ns=channel.exposed_ns,
        hidden_ns=max(0, channel.busy_ns - channel.exposed_ns),
        utilization=channel.busy_ns / makespan if makespan else 0.0,
    )


def _components(hardware: Hardware) -> Sequence[int]:
    """For each channel, a number that it shares with the channels it is joined to through fabrics."""
    index = {c.name: k for k, c in enumerate(hardware.channels)}
    component = list(range(len(index)))
    for fabric in hardware.fabrics:
        members = {component[index[name]] for name in fabric.channels}
        component = [min(members) if c in members else c for c in component]
    return component
