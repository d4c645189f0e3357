"""A lower bound on the makespan of a plan from its transfers alone, with room assumed everywhere.

Most plans that a planner rejects lose by the length or the lateness of their transfers. That needs
no replay: the transfers of a channel take turns in the order of issue, and ops wait for theirs. A
lack of room can only delay them further.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from heapq import heappop, heappush
from itertools import accumulate

from hosim.analysis.costmodel import machine_of_copies, op_durations
from hosim.analysis.costmodel.transfers import alone_ns
from hosim.cache_plan import AT_START, CacheOp, Plan
from hosim.hardware import Channel, Hardware


def soonest_end_ns(plan: Plan, hardware: Hardware) -> int:
    """Return a lower bound, in ns, on the makespan of a plan's replay."""
    times = _Alone(plan, hardware)
    busy, carried = _loads(plan, times)
    shared = [
        sum([carried.get(name, 0) for name in fabric.channels])
        * 10**9
        // fabric.bandwidth_bytes_per_s
        for fabric in times.machine.fabrics
    ]
    least = max([*busy.values(), *shared], default=0)
    return max(least, _in_turns(plan, hardware, times)) if len(plan.graph.streams) <= 1 else least


def _loads(plan: Plan, times: _Alone) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """Return the busy time in ns of each queue of channels with one engine, and the bytes that each
    channel carries.
    """
    queue_of = times.machine.queue_of
    busy: dict[str, int] = {}
    carried: dict[str, int] = {}
    for cache_op in plan.cache_ops:
        channel = times.channel(cache_op)
        if channel is not None:
            name = channel.name
            carried[name] = carried.get(name, 0) + times.sizes[cache_op.tensor]
            if channel.engines == 1:
                queue = queue_of[name]
                busy[queue] = busy.get(queue, 0) + times.of(name, cache_op.tensor)
    return busy, carried


def _in_turns(plan: Plan, hardware: Hardware, times: _Alone) -> int:
    """Return the end in ns of the last op or transfer on a single stream, if transfers wait only
    for their channels, and ops only for their transfers.
    """
    graph, device = plan.graph, hardware.device_tier
    ends = list(
        accumulate(op_durations(graph, hardware), initial=0)
    )  # ends[i + 1] is the end of op i without waits
    free: dict[str, int] = {}
    wanted: list[tuple[int, int]] = []  # ops, and the ends of the transfers that they wait for
    late = last = 0  # the delay of ops so far, and the end of the last transfer
    for cache_op in sorted(plan.cache_ops, key=lambda each: each.after):
        channel = times.channel(cache_op)
        if channel is None:
            continue
        after, t = cache_op.after, cache_op.tensor
        while wanted and wanted[0][0] <= after:
            op, there = heappop(wanted)
            late = max(late, there - ends[op])
        begin = ends[after + 1] + late if after != AT_START else 0
        queue = hardware.queue_of[channel.name]
        if channel.engines == 1:
            begin = max(begin, free.get(queue, 0))
        end = begin + times.of(channel.name, t)
        free[queue] = end
        last = max(last, end)
        if cache_op.destination == device:
            users = graph.users[t]
            k = bisect_right(users, after)
            if k < len(users):
                heappush(wanted, (users[k], end))
    for op, there in wanted:
        late = max(late, there - ends[op])
    return max(last, ends[-1] + late)


class _Alone:
    """The time of each tensor's transfer on a channel that it has to itself."""

    def __init__(self, plan: Plan, hardware: Hardware) -> None:
        self.machine = machine_of_copies(plan.graph, hardware)
        self._known: dict[tuple[str, int], int] = {}
        self._channels = hardware.channel_between
        self.sizes = [tensor.size_bytes for tensor in plan.graph.tensors]

    def channel(self, cache_op: CacheOp) -> Channel | None:
        """Return the channel of a copy; None for a detach, and for a copy over several channels."""
        return self._channels.get((cache_op.source, cache_op.destination or ""))

    def of(self, channel: str, tensor: int) -> int:
        """Return the time in ns of a tensor's transfer over a channel."""
        key = channel, self.sizes[tensor]
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = alone_ns(self.machine, *key)
        return known
