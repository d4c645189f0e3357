"""The figures of a result (docs/formats.md), read off the devices once a replay is over."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median_low

from hosim.analysis.costmodel import guessed_collectives
from hosim.analysis.remarks import WholeMoves, changed_line, whole_move_lines, whole_moves
from hosim.cache_plan import DETACH, PREFETCH, STORE, Plan
from hosim.data.runtime import RUNTIME
from hosim.data.seen_peaks import seen_peaks
from hosim.data.unknown_ops import unknown_ops
from hosim.engine import oom_reports
from hosim.engine.arenas import Arena
from hosim.engine.host_calls import first_step_lines, idle_lines
from hosim.engine.ledger import Ledger
from hosim.errors import HardwareError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.jitter import Jitter
from hosim.notes import Note, notes
from hosim.result import (
    LISTED_DEVICES,
    STALL_CAUSES,
    ChannelFigures,
    DeviceFigures,
    DeviceLine,
    Result,
    Spread,
    StreamFigures,
    Timeline,
)
from hosim.units import LARGEST


@dataclass(eq=False)
class ChannelCounts:
    """The counts that a replay keeps of a channel, with the names of
    :class:`hosim.result.ChannelFigures`.
    """

    transfers: int = 0
    bytes: int = 0
    busy_ns: int = 0
    queue_ns: int = 0
    contention_ns: int = 0
    exposed_ns: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a replay on one device, whichever engine ran it.

    ``error`` is its out-of-memory report, if it has one. ``streams`` are the figures of each
    stream, by name; ``slowed_ns`` and ``waited_ns`` say how much longer the ops of all of them took
    than alone, slowed by copies and waiting for other devices. ``ledgers`` are of the tiers and
    ``channels`` of the channels, in the machine's order. ``decided`` are the cache ops that a runtime policy has issued, by kind.
    """

    error: str | None
    makespan_ns: int
    streams: Mapping[str, StreamFigures]
    slowed_ns: int
    waited_ns: int
    ledgers: Sequence[Ledger]
    channels: Sequence[ChannelCounts]
    decided: Mapping[str, int]
    timeline: Timeline | None
    arena: Arena | None


def of_device(
    did: Outcome,
    plan: Plan,
    hardware: Hardware,
    budget_bytes: int,
    jitter: Jitter | None,
    modelled: tuple[bool, bool],
    engine: str,
) -> Result:
    """The result of one device.

    ``modelled`` says whether that copies slow ops down is told even if none does, and whether
    collectives can wait for other devices.
    """
    feasible, makespan = did.error is None, did.makespan_ns
    _check_years(makespan, hardware)
    figures = dict(did.streams) if feasible else {}
    main = figures.pop(
        plan.graph.main_stream, StreamFigures(0, dict.fromkeys(STALL_CAUSES, 0), makespan)
    )
    moves = whole_moves(plan, hardware.device_tier)
    ledgers = dict(zip([tier.name for tier in hardware.tiers], did.ledgers, strict=True))
    peak = ledgers[hardware.device_tier].peak
    seen = seen_peaks(hardware, peak, _largest_alike(plan, hardware)) if feasible else None
    copied = zip(hardware.channels, did.channels, hardware.copied_by_ops, strict=True)
    return Result(
        workload=plan.graph.name,
        hardware=hardware.name,
        policy=plan.policy,
        budget_bytes=budget_bytes,
        feasible=feasible,
        error=did.error,
        makespan_ns=makespan if feasible else None,
        busy_ns=main.busy_ns if feasible else None,
        stall_ns=main.stall_ns,
        drain_ns=main.drain_ns if feasible else None,
        lower_bound_ns=None,
        peak_bytes={name: ledger.peak for name, ledger in ledgers.items()},
        peak_at_ns={name: ledger.peak_at for name, ledger in ledgers.items()},
        peak_breakdown={name: ledger.breakdown() for name, ledger in ledgers.items()},
        channels={c.name: _channel(counted, makespan, by_ops) for c, counted, by_ops in copied},
        plan=_counts(did.decided, plan),
        streams=figures,
        slowed_ns=did.slowed_ns if modelled[0] or did.slowed_ns else None,
        peers_ns=did.waited_ns if modelled[1] else None,
        unknown_ops=plan.graph.derived(unknown_ops),
        guessed_collectives=len(plan.graph.derived_on(hardware, guessed_collectives)) or None,
        seen_peaks=seen,
        notes=(
            *_notes(plan, hardware, moves, sum([c.bytes for c in did.channels])),
            *_changed(plan, hardware, budget_bytes),
            *([] if seen is None else [str(Note("memory", seen.line))]),
        ),
        unused_bytes=sum([one.unused_bytes for one in moves]) or None,
        allocator=did.arena.figures(failed=not feasible) if did.arena is not None else None,
        jitter=jitter,
        timeline=did.timeline,
        replayed=None if did.timeline is None else (plan, hardware),
        engine=engine,
    )


def _check_years(makespan: int, hardware: Hardware) -> None:
    if makespan > LARGEST:
        raise HardwareError(
            "the replay takes more than 2^63-1 ns (292 years); check the rates of its channels "
            "and its compute",
            where=hardware.name,
        )


def tells_slowing(graph: Graph, sent: Mapping[int, int], compete: bool | None) -> bool:
    """Return whether it is told that copies slow ops down even if none does; ``sent`` is what
    collectives send, ``compete`` the caller's word.
    """
    return bool(sent) or (not graph.derived(all_measured) if compete is None else compete)


def all_measured(graph: Graph) -> bool:
    """Return whether every op has a duration of its own."""
    return all([op.duration_ns is not None for op in graph.ops.alike])


def _notes(
    plan: Plan, hardware: Hardware, moves: tuple[WholeMoves, WholeMoves], moved_bytes: int
) -> tuple[str, ...]:
    whole = [str(Note("whole", line)) for line in whole_move_lines(plan.graph, *moves, moved_bytes)]
    pinned = [str(Note("pinning", line)) for line in first_step_lines(plan, hardware)]
    idle = [str(Note(RUNTIME, line)) for line in idle_lines(plan, hardware)]
    return (*map(str, notes(plan.graph, hardware)), *plan.notes, *whole, *pinned, *idle)


def _largest_alike(plan: Plan, hardware: Hardware) -> int:
    """Bytes of the largest tensor of a kind that comes up to the device (of a policy that decides
    while ops run, that starts below), as buffers for any of them have.
    """
    device, tensors = hardware.device_tier, plan.graph.tensors
    up = [c.tensor for c in plan.cache_ops if c.op == PREFETCH and c.destination == device]
    if plan.runtime is not None:
        up = [t for t, where in plan.residency(device).items() if device not in where]
    kinds = {tensors.like(t).kind for t in up}
    return max([tensor.size_bytes for tensor in tensors.alike if tensor.kind in kinds], default=0)


def _changed(plan: Plan, hardware: Hardware, budget_bytes: int) -> tuple[str, ...]:
    line = changed_line(plan, hardware, budget_bytes)
    return () if line is None else (f"plan: {line}",)


def together(
    results: Sequence[Result],
    instances: Sequence[Sequence[Ledger]],
    hardware: Hardware,
    folded: bool,
    called: str = "device",
) -> Result:
    """The result of several devices from those of each (see :class:`Result`); ``folded``: the only
    one stands for all.

    ``instances`` are the ledgers of all instances of each tier, ``called`` is what reports call
    each device.
    """
    every = [*results] * hardware.devices if folded else results
    every = [
        r if r.error is None else replace(r, error=oom_reports.on_device(r.error, d, called))
        for d, r in enumerate(every)
    ]
    failed = [r for r in every if not r.feasible]
    shown = (
        min(failed, key=lambda r: oom_reports.is_for_others(r.error))
        if failed
        else max(every, key=lambda r: r.makespan_ns or 0)
    )
    peaks: dict[str, tuple[Ledger, int]] = {}
    for tier, ledgers in zip(hardware.tiers, instances, strict=True):
        times = hardware.sharers(hardware.tier_scope(tier.name)) if folded else 1
        peaks[tier.name] = max(ledgers, key=lambda ledger: (ledger.peak, -ledger.peak_at)), times
    return replace(
        shown,
        peak_bytes={name: times * ledger.peak for name, (ledger, times) in peaks.items()},
        peak_at_ns={name: ledger.peak_at for name, (ledger, _) in peaks.items()},
        peak_breakdown={
            name: {kind: times * size for kind, size in ledger.breakdown().items()}
            for name, (ledger, times) in peaks.items()
        },
        devices=_spread(every),
        by_device=tuple(every),
    )


def without_timelines(result: Result) -> Result:
    """The result, and those of its devices, as if nothing had been recorded."""
    each = [replace(one, timeline=None, replayed=None) for one in result.by_device]
    return replace(result, timeline=None, replayed=None, by_device=tuple(each))


def _spread(results: Sequence[Result]) -> DeviceFigures:
    lines = [DeviceLine(r.makespan_ns, sum(r.stall_ns.values()), r.peak_bytes) for r in results]
    ended = [line for line in lines if line.makespan_ns is not None]
    return DeviceFigures(
        count=len(lines),
        feasible=len(ended),
        makespan_ns=_of([line.makespan_ns or 0 for line in ended]) if ended else None,
        stall_ns=_of([line.stall_ns for line in ended]) if ended else None,
        peak_bytes={
            name: _of([line.peak_bytes[name] for line in lines]) for name in results[0].peak_bytes
        },
        each=tuple(lines) if len(lines) <= LISTED_DEVICES else (),
    )


def _of(values: Sequence[int]) -> Spread:
    return Spread(min(values), median_low(values), max(values))


def _channel(channel: ChannelCounts, makespan: int, by_ops: bool) -> ChannelFigures:
    """``by_ops``: nothing of its transfers is hidden, as ops stand still (docs/contract.md, rule
    22).
    """
    return ChannelFigures(
        transfers=channel.transfers,
        bytes=channel.bytes,
        busy_ns=channel.busy_ns,
        queue_ns=channel.queue_ns,
        contention_ns=channel.contention_ns,
        exposed_ns=channel.exposed_ns,
        hidden_ns=0 if by_ops else max(0, channel.busy_ns - channel.exposed_ns),
        utilization=channel.busy_ns / makespan if makespan else 0.0,
    )


def _counts(decided: Mapping[str, int], plan: Plan) -> dict[str, int]:
    labels = {PREFETCH: "prefetches", STORE: "stores", DETACH: "detaches"}
    planned = Counter([cache_op.op for cache_op in plan.cache_ops])
    counts = {label: planned[op] + decided.get(op, 0) for op, label in labels.items()}
    if plan.edits is not None:
        counts |= {
            label: count
            for label, count in (("recomputes", plan.recomputes), ("moved_ops", plan.moved_ops))
            if count
        }
    return counts
