"""What a budget forces to move under any plan: the memory relaxation behind the lower bound.

Everything here is about one stream, whose ops run one at a time in listed order. While its op p runs, the device
tier holds what p uses and p's workspace; what else of the tensors still needed does not fit must lie elsewhere.

*Into the device tier.* Take a tensor that the stream uses at a and reads next at b, its contents not replaced in
between by another stream. Either it is held, or being brought in, when each op inside the open interval (a, b) ends;
or a transfer of all its bytes begins after the end of such an op and ends before b starts. Let x = 1 for the
intervals of the second sort. Those that span op p have together at least ``excess(p) = used(p) + workspace(p) +
bytes of all intervals that span p - capacity`` bytes. The least traffic that satisfies this for every p, with
0 <= x <= 1, is a lower bound on that of any plan. A tensor that starts in the device tier has an interval from the
start of the step to its first read; one that starts elsewhere has it too, with x = 1 at the start; and one that
must be in the device tier at the end of the step (rule 2) has an interval from its last use to that end.

*Out of it.* Contents that a write on the stream makes, or that start in the device tier alone, and that are read
later or must survive, lie in the device tier or have been stored before. They have one interval, from the write to their last
read; the ops inside that use them hold them anyway. Those stored before op p starts cover at least the excess of
those that span p.

*Greedy is exact.* Both are interval covering problems in which a byte of cover costs a byte of traffic, whichever
interval gives it. Sweep the ops in order; at an op not yet covered take, of the intervals that span it, the one that
reaches farthest: it covers every later op that another would (Belady's rule, with fractions). Of the intervals that
end by op j the sweep takes the least *even if all others were free*: it takes one of them only where every longer
one is taken. And what it takes up to op p is the least for the ops up to p. So one sweep serves every deadline.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import accumulate

from hosim.graph import Graph

START = -1
"""Left end of the intervals that begin with the step."""

Interval = tuple[int, int, int]
"""(left, right, bytes): spans the places p of a stream with left < p < right; right = number of ops stands for the end of the step."""


@dataclass(frozen=True)
class Demand:
    """One direction of one stream: its intervals, and the ``excess`` bytes to be covered by place on the stream.

    ``forced`` marks the intervals that are taken in any case: into the device tier those that start elsewhere, out of
    it those that rule 2 wants stored.
    """

    intervals: tuple[Interval, ...]
    forced: tuple[bool, ...]
    excess: tuple[int, ...]


def demands(
    graph: Graph, stream: str, capacity_bytes: int, initial: Mapping[int, Sequence[str]], device_tier: str, repeats: bool
) -> tuple[Demand, Demand]:
    """The demands (into the device tier, out of it) of one stream; ``initial`` has the tiers of each tensor's valid copies at time 0."""
    place = {i: p for p, i in enumerate(i for i, op in enumerate(graph.ops) if op.stream == stream)}
    end = len(place)
    into: list[Interval] = []
    into_forced: list[bool] = []
    out: list[Interval] = []
    out_forced: list[bool] = []
    inside = [0] * (end + 1)  # by place, bytes of outward intervals that an op inside them uses
    for t, users in enumerate(graph.users):
        tensor, where = graph.tensors[t], initial.get(t, ())
        size = tensor.size_bytes
        here = device_tier in where
        last = START
        whole = bool(where)  # the contents after `last` are those of `last`, as far as the stream has them
        written: int | None = START if tuple(where) == (device_tier,) else None
        reads: list[int] = []
        dirty = False
        for u in users:
            op = graph.ops[u]
            p = place.get(u)
            writes = t in op.outputs or t in op.mutates
            if p is not None:
                if t in op.inputs or t in op.mutates:
                    cold = last == START and not here
                    if whole and (cold or p - last > 1):
                        into.append((last, p, size))
                        into_forced.append(cold)
                    reads.append(p)
                last, whole = p, True
            elif writes:
                whole = False
            if writes:
                if written is not None and reads:
                    _add_version(out, out_forced, inside, (written, reads[-1], size), reads, forced=False)
                written, reads, dirty = p, [], True
        if whole and here and tensor.persistent and repeats and end - last > 1:
            into.append((last, end, size))
            into_forced.append(False)
        if written is None:
            continue
        if graph.survives[t]:
            must_store = repeats and dirty and bool(tensor.persistent) and any(tier != device_tier for tier in where)
            _add_version(out, out_forced, inside, (written, end, size), reads, forced=must_store)
        elif reads:
            _add_version(out, out_forced, inside, (written, reads[-1], size), reads, forced=False)
    running = [sum(graph.tensors[t].size_bytes for t in graph.ops[i].uses) + graph.ops[i].workspace_bytes for i in place]
    over = [used - capacity_bytes for used in running]
    return (
        Demand(tuple(into), tuple(into_forced), _excess(over, into, [0] * (end + 1))),
        Demand(tuple(out), tuple(out_forced), _excess(over, out, inside)),
    )


def _add_version(
    out: list[Interval], out_forced: list[bool], inside: list[int], interval: Interval, reads: Iterable[int], *, forced: bool
) -> None:
    out.append(interval)
    out_forced.append(forced)
    for p in reads:
        if interval[0] < p < interval[1]:
            inside[p] += interval[2]


def _excess(over: Sequence[int], intervals: Iterable[Interval], inside: Sequence[int]) -> tuple[int, ...]:
    change = [0] * (len(over) + 2)
    for left, right, size in intervals:
        if right - left > 1:
            change[left + 1] += size
            change[right] -= size
    return tuple(o + spanning - used for o, spanning, used in zip(over, accumulate(change), inside, strict=False))


def arrivals(demand: Demand, begin: int = START) -> list[int]:
    """Bytes that must come in by the start of each place (the end of the step last), in transfers begun after the end of ``begin``.

    Cumulative. ``begin`` is a place on the stream, or :data:`START` for all transfers of the step, forced ones included.
    """
    end = len(demand.excess)
    taken = [0] * (end + 1)
    waiting: list[list[tuple[int, int]]] = [[] for _ in range(end + 1)]
    covered, expires = 0, [0] * (end + 2)
    heap: list[tuple[int, int]] = []
    for (left, right, size), forced in zip(demand.intervals, demand.forced, strict=True):
        if begin == START and forced:
            taken[right] += size
            covered += size
            expires[right] += size
        elif left < begin < right:
            heap.append((-right, size))
        elif left >= begin and right - left > 1:
            waiting[left + 1].append((-right, size))
    heapify(heap)
    for p in range(max(begin, 0), end):
        covered -= expires[p]
        for item in waiting[p]:
            heappush(heap, item)
        missing = demand.excess[p] - covered
        while missing > 0 and heap:
            right, size = heappop(heap)
            if -right <= p:
                break  # all that is left ended before: no plan fits here
            part = min(size, missing)
            taken[-right] += part
            expires[-right] += part
            covered += part
            missing -= part
            if part < size:
                heappush(heap, (right, size - part))
    return list(accumulate(taken))


def departures(demand: Demand) -> list[int]:
    """Bytes that must have gone out by the start of each place, cumulative; by the end of the step (last) all forced ones too."""
    end = len(demand.excess)
    waiting: list[list[tuple[int, bool, int]]] = [[] for _ in range(end + 1)]
    for (left, right, size), forced in zip(demand.intervals, demand.forced, strict=True):
        if right - left > 1:
            waiting[left + 1].append((-right, not forced, size))
    covered, expires = 0, [0] * (end + 2)
    heap: list[tuple[int, bool, int]] = []
    by: list[int] = []
    gone, gone_unforced = 0, 0
    for p in range(end):
        covered -= expires[p]
        for item in waiting[p]:
            heappush(heap, item)
        missing = demand.excess[p] - covered
        while missing > 0 and heap:
            right, unforced, size = heappop(heap)
            if -right <= p:
                break
            part = min(size, missing)
            expires[-right] += part
            covered += part
            missing -= part
            gone += part
            gone_unforced += part * unforced
            if part < size:
                heappush(heap, (right, unforced, size - part))
        by.append(gone)
    every_forced = sum(size for (_, _, size), forced in zip(demand.intervals, demand.forced, strict=True) if forced)
    by.append(gone_unforced + every_forced)
    return by
