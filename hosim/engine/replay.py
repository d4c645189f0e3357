"""Replay of a plan on a machine: the one place where instants are ordered (design.md section 3, rule 0).

simpy keeps the order of time (:mod:`hosim.engine.clock`); this module keeps the order within an instant. Every event that simpy hands
out ends something: an op, a transfer, an inspection. When no more end at this instant, :meth:`_Replay.settle` lets detaches take
effect that transfers' ends set free, issues the cache ops that the ops' ends issue, starts what ops can start and then what
transfers can, and sets the rates of what flows. What these begin ends in a later event, perhaps at the same instant: then it is
settled again.
"""

from __future__ import annotations

import gc
import time
from dataclasses import replace

from hosim.costmodel.op_time import op_durations
from hosim.engine import oom
from hosim.engine.arenas import make_arena
from hosim.engine.channels import Channel, build_channels, drive_channels
from hosim.engine.clock import Clock
from hosim.engine.device import Device
from hosim.engine.ledger import Ledger
from hosim.engine.memory import Memory
from hosim.engine.program import compile_plan
from hosim.engine.program_account import check_program_account, program_account
from hosim.engine.recorder import Recorder
from hosim.engine.runtime import DeviceView, Runtime
from hosim.engine.stream import Stream
from hosim.engine.uneven import Uneven
from hosim.errors import InputError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.plan import AT_START, DETACH, PREFETCH, STORE, Plan
from hosim.result import ACCOUNTS, IN_PROGRAM_ORDER, IN_TIME, LEDGER, STALL_CAUSES, ChannelFigures, Result


def replay(
    plan: Plan,
    hardware: Hardware,
    budget_bytes: int | None = None,
    *,
    record: bool = False,
    allocator: str = LEDGER,
    account: str = IN_TIME,
) -> Result:
    """Replay a plan on a machine by the rules of design.md section 3; two runs give equal results.

    ``budget_bytes`` bounds the device tier further than its capacity does. ``record`` keeps the timeline in the result. ``allocator`` says
    what the device tier's bytes take beyond themselves (:mod:`hosim.engine.arenas`): with another than ``ledger`` the result has its
    figures, and what it reserves has to stay within the budget. It counts in time, as the replay does; with ``account`` set to ``program``
    the replay counts bytes alone, and the figures are those in program order (:mod:`hosim.engine.program_account`).
    A plan that does not fit gives a result with ``feasible`` false and an ``error`` that begins with ``out of memory``; its times are
    ``None`` and its peaks those reached until then. ``lower_bound_ns`` is left to the caller (:mod:`hosim.analysis.bounds`).
    Raises :class:`hosim.errors.PlanError` if the plan breaks a rule on the way, and :class:`hosim.errors.InputError` for an unknown
    allocator or account.
    """
    if account != IN_TIME:
        return _in_program_order(plan, hardware, budget_bytes, record, allocator, account)
    begin = time.perf_counter()
    collecting = gc.isenabled()
    gc.disable()  # a replay leaves no cycles while it runs, and looking for them among the objects of a large graph takes longer than it
    try:
        run = _Replay(plan, hardware, budget_bytes, record, allocator)
        result = run.result(run.run())
    finally:
        if collecting:
            gc.enable()
    return replace(result, replay_s=time.perf_counter() - begin)


def _in_program_order(plan: Plan, hardware: Hardware, budget_bytes: int | None, record: bool, allocator: str, account: str) -> Result:
    if account != IN_PROGRAM_ORDER:
        raise InputError(f"no account {account!r} (accounts: {', '.join(ACCOUNTS)})", source="account")
    check_program_account(plan, allocator)
    result = replay(plan, hardware, budget_bytes, record=True)
    assert result.timeline is not None
    capacity = min(result.budget_bytes, hardware.device.capacity_bytes)
    counted = program_account(plan, hardware, result.timeline, capacity, allocator)
    result = replace(result, allocator=counted.figures, timeline=result.timeline if record else None)
    if not result.feasible or counted.error is None:
        return result
    return replace(result, feasible=False, error=counted.error, makespan_ns=None, busy_ns=None, drain_ns=None, streams={})


class _Replay:
    """One replay: the clock, the device with its memory and streams, and the channels."""

    def __init__(self, plan: Plan, hardware: Hardware, budget_bytes: int | None, record: bool, allocator: str) -> None:
        self.plan = plan
        self.hardware = hardware
        self.tier_names = tuple(tier.name for tier in hardware.tiers)
        graph = plan.graph
        device_tier = hardware.tier_index[hardware.device_tier]
        capacity = hardware.device.capacity_bytes
        self.budget = capacity if budget_bytes is None else budget_bytes
        self.clock = Clock()
        track_all = record or plan.runtime is not None or allocator != LEDGER
        program = self.program = compile_plan(plan, hardware, _durations(graph, hardware), track_all=track_all)
        ledgers = [Ledger(tier.capacity_bytes) for tier in hardware.tiers]
        ledgers[device_tier].capacity = min(capacity, self.budget)
        channels = self.channels = build_channels(hardware)
        recorder = None
        if record:
            workspaces = [op.workspace_bytes for op in graph.ops]
            recorder = Recorder(len(graph.ops), program.graph.sizes, workspaces, self.tier_names, device_tier)
        self.recorder = recorder
        runtime = Runtime(plan.runtime(), hardware) if plan.runtime is not None else None
        queues = zip(graph.streams, program.graph.queues, strict=True)
        streams = [Stream(name, queue, len(channels), recorder) for name, queue in queues]
        self.arena = make_arena(allocator, graph, program.graph.stream_of, ledgers[device_tier].capacity)
        uneven = Uneven(graph, hardware) if any(channel.uneven for channel in channels) else None
        self.memory = Memory(self.clock, graph, program, ledgers, device_tier, channels, streams, recorder, self.arena, uneven)
        self.memory.groups = drive_channels(channels, hardware, self.clock, self.memory.end_transfer)
        self.device = Device(self.clock, graph, program, streams, self.memory, recorder, runtime)
        if runtime is not None:
            runtime.attach(DeviceView(self.device, self.tier_names))

    # -- the order of events -----------------------------------------------------------------------------------

    def run(self) -> str | None:
        """Run to the end; returns the out-of-memory report if nothing can proceed before it."""
        device, memory = self.device, self.memory
        for tier, ledger in enumerate(memory.ledgers):
            if ledger.held > ledger.capacity:
                return oom.initial(device, tier, self.tier_names)
        if not memory.place_residents():
            return oom.unplaced(device, self.tier_names)
        memory.issue(self.program.after.get(AT_START, ()), 0)
        self.clock.run_instants(self.settle)
        while device.make_room():
            self.clock.run_instants(self.settle)
        if any(s.done < s.length for s in device.streams) or any(c.queue for c in self.channels):
            return oom.describe(device, self.tier_names)
        memory.check_persistence(self.tier_names)
        return self.arena.failure() if self.arena is not None else None

    def settle(self) -> None:
        """Everything of this instant has ended: detaches that were behind it, issue, start ops, start transfers, set rates."""
        device, memory = self.device, self.memory
        now = self.clock.time
        self.clock.unsettled = False
        if memory.due:
            memory.detach_due()
        if device.issued:
            device.issued.sort()  # by place in the plan
            memory.issue(device.issued, now)
            device.issued.clear()
        stuck = device.start_ops(now)
        while device.decided:  # a runtime policy's decisions may have set another stream free
            device.decided = False
            stuck = device.start_ops(now)
        memory.start_transfers(now, stuck)

    # -- figures -----------------------------------------------------------------------------------------------

    def result(self, error: str | None) -> Result:
        """The figures of design.md section 4."""
        device, ledgers = self.device, dict(zip(self.tier_names, self.memory.ledgers, strict=True))
        feasible = error is None
        makespan = max([self.memory.last_end, *(s.free_since for s in device.streams)])
        busy = [sum([self.program.durations[i] for i in s.queue]) for s in device.streams]
        figures = {s.name: s.figures(b, makespan) for s, b in zip(device.streams, busy, strict=True)} if feasible else {}
        main = figures.pop(device.main.name, None) if device.main is not None else None
        exposed = device.main.exposed_ns if device.main is not None else [0] * len(self.channels)
        counts = self._counts()
        timeline = self.recorder.timeline(self.clock.time) if self.recorder is not None else None
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
            peak_bytes={name: ledger.peak for name, ledger in ledgers.items()},
            peak_at_ns={name: ledger.peak_at for name, ledger in ledgers.items()},
            peak_breakdown={name: ledger.breakdown() for name, ledger in ledgers.items()},
            channels={c.name: _channel_figures(c, exposed[c.index], makespan) for c in self.channels},
            plan=counts,
            streams=figures,
            allocator=self.arena.figures(failed=not feasible) if self.arena is not None else None,
            timeline=timeline,
        )

    def _counts(self) -> dict[str, int]:
        plan, decided = self.plan, self.device.executed
        labels = {PREFETCH: "prefetches", STORE: "stores", DETACH: "detaches"}
        counts = {label: plan.count(op) + decided[op] for op, label in labels.items()}
        return counts | {"recomputes": self.plan.recomputes} if self.plan.recomputes else counts


def _channel_figures(channel: Channel, exposed: int, makespan: int) -> ChannelFigures:
    return ChannelFigures(
        transfers=channel.transfers,
        bytes=channel.bytes,
        busy_ns=channel.busy_ns,
        queue_ns=channel.queue_ns,
        contention_ns=channel.contention_ns,
        exposed_ns=exposed,
        hidden_ns=max(0, channel.busy_ns - exposed),
        utilization=channel.busy_ns / makespan if makespan else 0.0,
    )


def _durations(graph: Graph, hardware: Hardware) -> tuple[int, ...]:
    """Nanoseconds of each op; measured ones do not depend on the machine and are kept with the graph."""
    return graph.derived(_measured) or op_durations(graph, hardware)


def _measured(graph: Graph) -> tuple[int, ...]:
    """Durations if every op has one, else nothing."""
    known: dict[int, int] = {}  # equal durations are one object
    measured = [known.setdefault(op.duration_ns, op.duration_ns) for op in graph.ops if op.duration_ns is not None]
    return tuple(measured) if len(measured) == len(graph.ops) else ()
