"""The figures of a result (docs/formats.md), read off the devices once a replay is over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median_low

from hosim.analysis.remarks import WholeMoves, changed_line, whole_move_lines, whole_moves
from hosim.cache_plan import DETACH, PREFETCH, STORE, Plan
from hosim.costmodel import guessed_collectives, makespan_interval
from hosim.engine import oom
from hosim.engine.channels import ChannelQueue
from hosim.engine.device import DeviceReplay
from hosim.engine.ledger import Ledger, SharedLedger
from hosim.engine.other_processors import ProcessorsReplay
from hosim.errors import HardwareError
from hosim.hardware import Hardware
from hosim.jitter import Jitter
from hosim.notes import Note, notes
from hosim.result import LISTED_DEVICES, STALL_CAUSES, ChannelFigures, DeviceFigures, DeviceLine, Result, Spread, StreamFigures
from hosim.units import LARGEST
from hosim.unknown_ops import unknown_ops

Pools = Mapping[tuple[int, int], SharedLedger]
"""The instances of tiers that several devices share, by the tier's position and which instance it is."""


def of_device(
    device: DeviceReplay,
    plan: Plan,
    hardware: Hardware,
    budget_bytes: int,
    error: str | None,
    jitter: Jitter | None,
    modelled: tuple[bool, bool],
) -> Result:
    """The result of one device; ``error`` is its out-of-memory report, if it has one.

    ``modelled`` says whether that copies slow ops down is told even if none does, and whether collectives can wait for other devices.
    """
    memory = device.memory
    ledgers = {tier.name: ledger for tier, ledger in zip(hardware.tiers, memory.ledgers, strict=True)}
    feasible = error is None
    makespan = max([memory.last_end, *(s.free_since for s in device.streams)])
    if makespan > LARGEST:
        raise HardwareError(
            "the replay takes more than 2^63-1 ns (292 years); check the rates of its channels and its compute", where=hardware.name
        )
    slowed, waited = _longer(device)
    busy = [sum(map(device.durations.__getitem__, s.queue)) + slowed[s.name] + waited[s.name] for s in device.streams]
    figures = {s.name: s.figures(b, makespan) for s, b in zip(device.streams, busy, strict=True)} if feasible else {}
    main = figures.pop(device.main.name, None) if device.main is not None else None
    exposed = device.main.exposed_ns if device.main is not None else [0] * len(memory.channels)
    unsure = _interval(device, plan, hardware, makespan, main) if feasible else (None, None)
    moves = whole_moves(plan, hardware.device_tier)
    timeline = device.recorder.timeline(device.clock.time) if device.recorder is not None else None
    copied = zip(memory.channels, hardware.copied_by_ops, strict=True)
    return Result(
        workload=plan.graph.name,
        hardware=hardware.name,
        policy=plan.policy,
        budget_bytes=budget_bytes,
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
        channels={c.name: _channel(c, exposed[c.index], makespan, by_ops) for c, by_ops in copied},
        plan=_counts(device, plan),
        streams=figures,
        makespan_low_ns=unsure[0],
        makespan_high_ns=unsure[1],
        slowed_ns=sum(slowed.values()) if modelled[0] or any(slowed.values()) else None,
        peers_ns=sum(waited.values()) if modelled[1] else None,
        unknown_ops=plan.graph.derived(unknown_ops),
        guessed_collectives=len(plan.graph.derived_on(hardware, guessed_collectives)) or None,
        notes=(*_notes(plan, hardware, moves, sum([c.bytes for c in memory.channels])), *_changed(plan, hardware, budget_bytes)),
        unused_bytes=sum([one.unused_bytes for one in moves]) or None,
        allocator=memory.arena.figures(failed=not feasible) if memory.arena is not None else None,
        jitter=jitter,
        timeline=timeline,
        replayed=None if timeline is None else (plan, hardware),
    )


def _notes(plan: Plan, hardware: Hardware, moves: tuple[WholeMoves, WholeMoves], moved_bytes: int) -> tuple[str, ...]:
    whole = [str(Note("whole", line)) for line in whole_move_lines(plan.graph, *moves, moved_bytes)]
    return (*map(str, notes(plan.graph, hardware)), *plan.notes, *whole)


def _changed(plan: Plan, hardware: Hardware, budget_bytes: int) -> tuple[str, ...]:
    line = changed_line(plan, hardware, budget_bytes)
    return () if line is None else (f"plan: {line}",)


def _longer(device: DeviceReplay) -> tuple[Counter[str], Counter[str]]:
    """How much longer the ops of each stream took than alone, by its name: slowed by copies, and waiting for other devices."""
    slowed, waited = Counter[str](), Counter[str]()
    if device.contention is not None:
        slowed.update(device.contention.slowed_ns)
        if device.contention.collectives is not None:
            slowed.update(device.contention.collectives.slowed_ns)
            waited.update(device.contention.collectives.waited_ns)
    if isinstance(device, ProcessorsReplay):
        for contention in device.contentions.values():
            slowed.update(contention.slowed_ns)
    return slowed, waited


def _interval(
    device: DeviceReplay, plan: Plan, hardware: Hardware, makespan: int, main: StreamFigures | None
) -> tuple[int, int] | tuple[None, None]:
    if device.main is None or main is None:
        return None, None
    found = makespan_interval(plan.graph, hardware, device.main.name, makespan, main.stall_ns, main.drain_ns)
    return found if found is not None else (None, None)


def together(
    results: Sequence[Result], devices: Sequence[DeviceReplay], pools: Pools, hardware: Hardware, folded: bool, called: str = "device"
) -> Result:
    """The result of several devices from those of each (see :class:`Result`); ``folded``: the only one stands for all.

    ``called`` is what reports call each of them.
    """
    every = [*results] * hardware.devices if folded else results
    every = [r if r.error is None else replace(r, error=oom.on_device(r.error, d, called)) for d, r in enumerate(every)]
    failed = [r for r in every if not r.feasible]
    shown = min(failed, key=lambda r: oom.is_for_others(r.error)) if failed else max(every, key=lambda r: r.makespan_ns or 0)
    peaks: dict[str, tuple[Ledger, int]] = {}
    for position, tier in enumerate(hardware.tiers):
        shared: list[Ledger] = [pool for (which, _), pool in pools.items() if which == position]
        times = hardware.sharers(hardware.tier_scope(tier.name)) if shared and folded else 1
        largest = max(shared or [device.memory.ledgers[position] for device in devices], key=lambda ledger: (ledger.peak, -ledger.peak_at))
        peaks[tier.name] = largest, times
    return replace(
        shown,
        peak_bytes={name: times * ledger.peak for name, (ledger, times) in peaks.items()},
        peak_at_ns={name: ledger.peak_at for name, (ledger, _) in peaks.items()},
        peak_breakdown={name: {kind: times * size for kind, size in ledger.breakdown().items()} for name, (ledger, times) in peaks.items()},
        devices=_spread(every),
        by_device=tuple(every),
    )


def _spread(results: Sequence[Result]) -> DeviceFigures:
    lines = [DeviceLine(r.makespan_ns, sum(r.stall_ns.values()), r.peak_bytes) for r in results]
    ended = [line for line in lines if line.makespan_ns is not None]
    return DeviceFigures(
        count=len(lines),
        feasible=len(ended),
        makespan_ns=_of([line.makespan_ns or 0 for line in ended]) if ended else None,
        stall_ns=_of([line.stall_ns for line in ended]) if ended else None,
        peak_bytes={name: _of([line.peak_bytes[name] for line in lines]) for name in results[0].peak_bytes},
        each=tuple(lines) if len(lines) <= LISTED_DEVICES else (),
    )


def _of(values: Sequence[int]) -> Spread:
    return Spread(min(values), median_low(values), max(values))


def _channel(channel: ChannelQueue, exposed: int, makespan: int, by_ops: bool) -> ChannelFigures:
    """``by_ops``: nothing of its transfers is hidden, as ops stand still (docs/contract.md, rule 22)."""
    return ChannelFigures(
        transfers=channel.transfers,
        bytes=channel.bytes,
        busy_ns=channel.busy_ns,
        queue_ns=channel.queue_ns,
        contention_ns=channel.contention_ns,
        exposed_ns=exposed,
        hidden_ns=0 if by_ops else max(0, channel.busy_ns - exposed),
        utilization=channel.busy_ns / makespan if makespan else 0.0,
    )


def _counts(device: DeviceReplay, plan: Plan) -> dict[str, int]:
    labels = {PREFETCH: "prefetches", STORE: "stores", DETACH: "detaches"}
    planned = Counter([cache_op.op for cache_op in plan.cache_ops])
    counts = {label: planned[op] + device.executed[op] for op, label in labels.items()}
    if plan.edits is not None:
        counts |= {label: count for label, count in (("recomputes", plan.recomputes), ("moved_ops", plan.moved_ops)) if count}
    return counts
