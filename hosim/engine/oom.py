"""The out-of-memory report: who wanted how much, what was held, and the largest residents."""

from __future__ import annotations

from hosim.analysis import canonical_places
from hosim.engine.channels import Chunk, IssuedTransfer
from hosim.engine.device import DeviceReplay
from hosim.engine.stream import Stream
from hosim.units import human_percent, human_size

_LISTED = 5
_FOR_OTHERS = "waits in vain for other devices"

FOR_OTHERS = f"out of memory: the step {_FOR_OTHERS}"
"""The report of a stage that has not begun, as another one has no room for what it starts with."""


def describe(device: DeviceReplay, tier_names: tuple[str, ...]) -> str:
    """One line on why nothing can proceed: the first op that does not fit, else transfer, else the first op that waits in vain.

    Where none of these waits for more than its producers, a collective that has started waits for other devices.
    """
    memory = device.memory
    blocked = [stream for stream in device.streams if stream.done < stream.length and stream.running < 0]
    for stream in blocked:
        if stream.residency_met >= 0:
            return _op(device, stream, tier_names)
    waiting = sorted((channel.queue[0] for channel in memory.channels if channel.queue), key=lambda x: x.sequence)
    for transfer in waiting:
        t, hop = transfer.tensor, transfer.hop
        if isinstance(transfer, Chunk) and transfer.leg:  # it is on its way, and waits for room alone
            return _transfer(device, transfer, tier_names)
        absent = not memory.copies[hop.destination][t] or transfer.route is not None
        turn = memory.pending[t][0] is (transfer.route or transfer)
        if turn and absent and device.memory.has_valid(t, hop.source):
            return _transfer(device, transfer, tier_names)
    short = [s for s in blocked if s.dependency_met >= 0]
    begun = [stream for stream in device.streams if stream.running >= 0]
    if begun and not short:
        return f"out of memory: op {device.graph.ops[begun[0].running].name!r} {_FOR_OTHERS}"
    if blocked:  # not one that waits for its producers: something else holds them up
        return _residency(device, (short or blocked)[0], tier_names)
    return _transfer(device, waiting[0], tier_names)


def is_for_others(report: str | None) -> bool:
    """Whether a report says that the device itself could go on: it waits for others, whose reports say why."""
    return report is not None and report.endswith(_FOR_OTHERS)


def on_device(report: str, position: int, device: str = "device") -> str:
    """The report of one of several devices, or of what else is called ``device``, which names it."""
    return report.replace("out of memory", f"out of memory on {device} {position}", 1)


def initial(device: DeviceReplay, tier: int, tier_names: tuple[str, ...]) -> str:
    """One line on an initial residency that is more than a tier holds."""
    ledger = device.memory.pools[tier] or device.memory.ledgers[tier]
    return (
        f"out of memory: the initial residents of {tier_names[tier]} take {_size(ledger.held)}{_of_this(device, tier)}, "
        f"its capacity is {_size(ledger.capacity)}; largest residents: {_largest(device, tier)}"
    )


def unplaced(device: DeviceReplay, tier_names: tuple[str, ...]) -> str:
    """One line on initial residents of the device tier that fit by their bytes, but find no place."""
    tier = device.memory.tier
    return f"out of memory: the initial residents of {tier_names[tier]} want more {_held(device, tier, tier_names)}"


def _op(device: DeviceReplay, stream: Stream, tier_names: tuple[str, ...]) -> str:
    i = stream.queue[stream.done]
    op = device.graph.ops[i]
    tier = _tier_of(device, i)
    held = set(_held_tensors(device, tier))
    wanted = op.workspace_bytes + sum(device.memory.sizes[t] for t in op.outputs if t not in held)
    return f"out of memory: op {op.name!r} wants {_size(wanted)} {_held(device, tier, tier_names)}"


def _transfer(device: DeviceReplay, transfer: IssuedTransfer, tier_names: tuple[str, ...]) -> str:
    hop = transfer.hop
    name = device.graph.tensors[transfer.tensor].name
    arrives = not isinstance(transfer, Chunk) or transfer.arrives
    wanted = device.memory.sizes[transfer.tensor] if arrives else transfer.size  # on the way there a chunk has a place of its own
    return (
        f"out of memory: {hop.op} of {name!r} ({tier_names[hop.source]} to {tier_names[hop.destination]}) wants "
        f"{_size(wanted)} {_held(device, hop.destination, tier_names)}"
    )


def _residency(device: DeviceReplay, stream: Stream, tier_names: tuple[str, ...]) -> str:
    i = stream.queue[stream.done]
    op, there = device.graph.ops[i], _tier_of(device, i)
    missing = [t for t in op.reads if device.program.tracked[t] and not device.memory.has_valid(t, there)]
    tier = tier_names[there]
    if missing:
        name = device.graph.tensors[missing[0]].name
        size = _size(device.memory.sizes[missing[0]])
        wanted = f"{name!r} ({size}) to be resident in {tier}"
        return f"out of memory: op {op.name!r} waits in vain for {wanted}: no cache op can bring it there any more"
    return f"out of memory: op {op.name!r} waits in vain for its producers or for a transfer that cannot start"


def _tier_of(device: DeviceReplay, i: int) -> int:
    """The tier that op ``i`` reads and writes."""
    return device.program.tracked_ops[i].tier if device.graph.ops[i].processor else device.memory.tier


def _held(device: DeviceReplay, tier: int, tier_names: tuple[str, ...]) -> str:
    ledger = device.memory.pools[tier] or device.memory.ledgers[tier]
    return (
        f"of {tier_names[tier]} at {device.clock.time} ns, where {_size(ledger.held)} of {_size(ledger.capacity)} are held"
        f"{_of_this(device, tier)}{_arena(device, tier)}; largest residents: {_largest(device, tier)}"
    )


def _arena(device: DeviceReplay, tier: int) -> str:
    """What the allocator makes of what is held: where it is more than its bytes, this may be why the rest does not fit."""
    arena = device.memory.arena
    if arena is None or tier != device.memory.tier:
        return ""
    state = arena.state()
    return (
        f" (allocator {arena.name}: {_size(state.allocated_bytes)} allocated, {_size(state.reserved_bytes)} reserved, "
        f"fragmentation {human_percent(state.fragmentation)}, largest free block {_size(state.largest_free_bytes)})"
    )


def _of_this(device: DeviceReplay, tier: int) -> str:
    """The part of a shared tier that the device itself holds."""
    return f" ({_size(device.memory.ledgers[tier].held)} by this device)" if device.memory.pools[tier] is not None else ""


def _largest(device: DeviceReplay, tier: int) -> str:
    sizes = device.memory.sizes
    places = device.graph.derived(canonical_places)
    held = sorted(_held_tensors(device, tier), key=lambda t: (-sizes[t], places[t]))
    if not held:
        return "none"
    listed = ", ".join(f"{device.graph.tensors[t].name} {_size(sizes[t])}" for t in held[:_LISTED])
    return listed + (f" and {len(held) - _LISTED} more" if len(held) > _LISTED else "")


def _held_tensors(device: DeviceReplay, tier: int) -> list[int]:
    """Tensors that hold bytes in a tier now. Untracked ones: in the device tier, from their first user's start to their last one's end."""
    graph, program = device.graph, device.program
    held = [t for t, state in enumerate(device.memory.copies[tier]) if state]
    if tier != device.memory.tier:
        return held
    initial = set(graph.initial)
    streams = [device.streams[s] for s in program.graph.stream_of]
    started = [i == stream.running or stream.has_ended(i) for i, stream in enumerate(streams)]
    for t, users in enumerate(graph.compact_users):
        if program.tracked[t] or not (t in initial or (users and started[users[0]])):
            continue
        if graph.tensors[t].survives or not all(streams[u].has_ended(u) for u in users):
            held.append(t)
    return held


def _size(size: int) -> str:
    return human_size(size) if size < 1024 else f"{human_size(size)} ({size} B)"
