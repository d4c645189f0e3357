"""Who is in the way where the replay of a device ends out of memory (:mod:`hosim.engine.oom_reports` has the words)."""

from __future__ import annotations

from hosim.engine import oom_reports
from hosim.engine.channels import Chunk, IssuedTransfer
from hosim.engine.device import DeviceReplay
from hosim.engine.oom_reports import FullTier


def describe(device: DeviceReplay, tier_names: tuple[str, ...]) -> str:
    """One line on why nothing can proceed: the first op that does not fit, else transfer, else the first op that waits in vain.

    Where none of these waits for more than its producers, a collective that has started waits for other devices.
    """
    memory = device.memory
    blocked = [stream for stream in device.streams if stream.done < stream.length and stream.running < 0]
    for stream in blocked:
        if stream.residency_met >= 0:
            i = stream.queue[stream.done]
            return oom_reports.of_op(full_tier(device, _tier_of(device, i), tier_names), i)
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
        return oom_reports.for_others(device.graph, begun[0].running)
    if blocked:  # not one that waits for its producers: something else holds them up
        stream = (short or blocked)[0]
        i = stream.queue[stream.done]
        there = _tier_of(device, i)
        missing = [t for t in device.graph.ops[i].reads if device.program.tracked[t] and not memory.has_valid(t, there)]
        return oom_reports.in_vain(device.graph, i, missing, tier_names[there])
    return _transfer(device, waiting[0], tier_names)


def full_tier(device: DeviceReplay, tier: int, tier_names: tuple[str, ...]) -> FullTier:
    """What the reports say of a tier of a device."""
    memory, shared = device.memory, device.memory.pools[tier]
    own = None if shared is None else memory.ledgers[tier]
    arena = memory.arena if tier == memory.tier else None
    tensors = _held_tensors(device, tier)
    return FullTier(device.graph, tier_names[tier], device.clock.time, shared or memory.ledgers[tier], own, tensors, arena)


def _transfer(device: DeviceReplay, transfer: IssuedTransfer, tier_names: tuple[str, ...]) -> str:
    hop = transfer.hop
    arrives = not isinstance(transfer, Chunk) or transfer.arrives
    wanted = device.memory.sizes[transfer.tensor] if arrives else transfer.size  # on the way there a chunk has a place of its own
    full = full_tier(device, hop.destination, tier_names)
    return oom_reports.of_transfer(full, hop.op, transfer.tensor, tier_names[hop.source], wanted)


def _tier_of(device: DeviceReplay, i: int) -> int:
    """The tier that op ``i`` reads and writes."""
    return device.program.tracked_ops[i].tier if device.graph.ops[i].processor else device.memory.tier


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
