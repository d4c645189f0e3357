"""A lower bound on the makespan of any plan: what no order of transfers can beat.

Every figure here holds for each plan of the graph that starts from the same residency, fits the budget and keeps the
rules of docs/contract.md; the bound is the largest of them. One forward sweep gives each op a *head*, a time
before which it cannot start: its producers and its stream, and what must have moved by then. One backward sweep
gives each its *tail*, the time that must pass from its start: what follows it, and what must move after it. Then
makespan >= head + tail for every op.

What must have moved before an op starts:

- *Arrival.* A tensor that starts outside the device tier and is read before anything replaces its contents comes in
  before its first user, along the fastest route at best. All those that a stream needs up to an op come in together
  over the channels into the device tier; those that start in one tier only, over the channels out of that.
- *Budget, in.* Besides these, :func:`~hosim.analysis.forced_traffic.arrivals` has the bytes that must return by then
  for everything to fit: counted from time 0, and again from the end of the ops where memory is tightest, as what
  does not fit there is still to come.
- *Budget, out.* Contents that are nowhere else are stored before they leave, over the channels out of the device
  tier (:func:`~hosim.analysis.forced_traffic.departures`).

What must move after an op: tensors that it, or a later op of its stream, writes for the last time, and that rule 2
wants valid in another tier, are stored after that.

Bytes are added up only where they belong to different transfers; latencies, engines and fabrics count as in
:mod:`hosim.analysis.cuts`. A single stream of ops with everything resident gives exactly the sum of durations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from hosim.analysis.critical_path import stream_predecessors, tails
from hosim.analysis.cuts import Cut, cut_of, fastest_ns
from hosim.analysis.forced_traffic import Demand, arrivals, demands, departures
from hosim.graph import Graph
from hosim.hardware import Hardware

Residency = Mapping[int, Sequence[str]]
"""Tiers of the valid copies at time 0, by tensor position."""

_WINDOWS, _WINDOWS_IF_LARGE, _LARGE = 8, 3, 20_000
"""From how many places of a stream the bytes to come are counted anew; fewer on streams with many ops, as each costs a sweep."""


def lower_bound_ns(
    graph: Graph,
    durations: Sequence[int],
    hardware: Hardware,
    initial_residency: Residency,
    budget_bytes: int | None = None,
    *,
    repeats: bool = True,
) -> int:
    """Nanoseconds below which no feasible replay of ``graph`` on ``hardware`` ends under any plan.

    ``durations`` are nanoseconds by op position, ``initial_residency`` is what :meth:`hosim.cache_plan.Plan.residency` gives,
    ``budget_bytes`` the budget of the device tier, if it has one. ``repeats`` false leaves out what rule 2 wants moved so
    that the step can repeat, for replays that do not keep it. Time O(n log n) in ops and uses.
    """
    device = hardware.device_tier
    capacity = hardware.device.capacity_bytes if budget_bytes is None else min(budget_bytes, hardware.device.capacity_bytes)
    into = cut_of(hardware, [channel for channel in hardware.channels if channel.destination == device])
    out = cut_of(hardware, [channel for channel in hardware.channels if channel.source == device])
    both = cut_of(hardware, [channel for channel in hardware.channels if device in (channel.source, channel.destination)])

    release = _route_releases(graph, hardware, initial_residency)
    windows: dict[int, list[tuple[int, int]]] = {}
    whole, last_windows = [0], []
    for stream in graph.streams:
        ops = [i for i, op in enumerate(graph.ops) if op.stream == stream]
        demand_in, demand_out = demands(graph, stream, capacity, initial_residency, device, repeats)
        come, gone, cold = arrivals(demand_in), departures(demand_out), _cold_transfers(demand_in)
        for p, i in enumerate(ops):
            release[i] = max(release[i], _earliest(into, come[p], cold[p]), _earliest(out, gone[p]))
        for i, floor in _source_releases(hardware, graph, ops, initial_residency):
            release[i] = max(release[i], floor)
        whole += [_earliest(into, come[-1], cold[-1]), _earliest(out, gone[-1]), _earliest(both, come[-1] + gone[-1], cold[-1])]
        for begin in _tight_places(demand_in):
            later = arrivals(demand_in, begin)
            for p in range(begin + 1, len(ops)):
                if later[p] > later[p - 1]:
                    windows.setdefault(ops[p], []).append((ops[begin], _earliest(into, later[p])))
            last_windows.append((ops[begin], _earliest(into, later[-1])))

    heads = _heads(graph, durations, release, windows)
    after = _stores_after(graph, hardware, initial_residency, out) if repeats else None
    through = (head + tail for head, tail in zip(heads, tails(graph, durations, after), strict=True))
    to_the_end = (heads[begin] + durations[begin] + elapsed for begin, elapsed in last_windows)
    return max([*whole, *through, *to_the_end])


def _earliest(cut: Cut | None, size_bytes: int, transfers: int = 0) -> int:
    """Nanoseconds for ``size_bytes`` to cross, in at least ``transfers`` transfers (one, if there are bytes at all).

    A cut without channels lets nothing through: no plan exists then, and any bound is true.
    """
    return cut.earliest_ns(size_bytes, max(transfers, size_bytes > 0)) if cut is not None else 0


def _heads(graph: Graph, durations: Sequence[int], release: Sequence[int], windows: Mapping[int, Iterable[tuple[int, int]]]) -> list[int]:
    """Earliest start of each op; ``windows`` has, by op, (an earlier op, nanoseconds that must pass from its end)."""
    heads: list[int] = []
    for i, (before, producers) in enumerate(zip(stream_predecessors(graph), graph.producers, strict=True)):
        head = release[i]
        if before >= 0:
            head = max(head, heads[before] + durations[before])
        for p in producers:
            head = max(head, heads[p] + durations[p])
        for begin, elapsed in windows.get(i, ()):
            head = max(head, heads[begin] + durations[begin] + elapsed)
        heads.append(head)
    return heads


def _is_cold(graph: Graph, t: int, where: Sequence[str], device: str) -> bool:
    """Whether the contents of tensor ``t`` must come into the device tier before its first user."""
    users = graph.users[t]
    return bool(users) and bool(where) and device not in where and t in graph.ops[users[0]].reads


def _route_releases(graph: Graph, hardware: Hardware, initial: Residency) -> list[int]:
    """For each op, the time at which the slowest of the cold tensors that it is the first to use has come."""
    release = [0] * len(graph.ops)
    times: dict[tuple[tuple[str, ...], int], int] = {}
    for t, where in initial.items():
        if _is_cold(graph, t, where, hardware.device_tier):
            key = (tuple(where), graph.tensors[t].size_bytes)
            if key not in times:
                routes = [fastest_ns(hardware, tier, hardware.device_tier, key[1]) for tier in where]
                times[key] = min([time for time in routes if time is not None], default=0)
            first = graph.users[t][0]
            release[first] = max(release[first], times[key])
    return release


def _source_releases(hardware: Hardware, graph: Graph, ops: Sequence[int], initial: Residency) -> Iterator[tuple[int, int]]:
    """(op, time) for the cold tensors that start in one tier only: all that the stream needs up to the op have left it."""
    tiers = {where[0] for where in initial.values() if len(where) == 1 and where[0] != hardware.device_tier}
    cold = {t: where[0] for t, where in initial.items() if len(where) == 1 and _is_cold(graph, t, where, hardware.device_tier)}
    for tier in tiers:
        if all(channel.source == tier for channel in hardware.channels if channel.destination == hardware.device_tier):
            continue  # the channels into the device tier say it all
        cut = cut_of(hardware, [channel for channel in hardware.channels if channel.source == tier])
        size = count = 0
        seen: set[int] = set()
        for i in ops:
            new = {t for t in graph.ops[i].uses if cold.get(t) == tier} - seen
            if new:
                seen |= new
                size += sum(graph.tensors[t].size_bytes for t in new)
                count += len(new)
                yield i, _earliest(cut, size, count)


def _stores_after(graph: Graph, hardware: Hardware, initial: Residency, out: Cut | None) -> list[int]:
    """For each op, the time that must pass from its end until all that rule 2 wants stored after it has been.

    Along the fastest route for each tensor that the op writes last; over the channels out of the device tier for all that
    it and the later ops of its stream write last.
    """
    device = hardware.device_tier
    after, sizes, counts = ([0] * len(graph.ops) for _ in range(3))
    for t, where in initial.items():
        below = [tier for tier in where if tier != device]
        writer = next((u for u in reversed(graph.users[t]) if t in graph.ops[u].writes), None)
        if below and writer is not None and graph.tensors[t].persistent:
            sizes[writer] += graph.tensors[t].size_bytes
            counts[writer] += 1
            times = [fastest_ns(hardware, device, tier, graph.tensors[t].size_bytes) for tier in below]
            after[writer] = max([after[writer], *(time for time in times if time is not None)])
    totals: dict[str, tuple[int, int]] = {}
    for i in range(len(graph.ops) - 1, -1, -1):
        if counts[i]:
            stream = graph.ops[i].stream
            size, count = totals.get(stream, (0, 0))
            totals[stream] = size, count = size + sizes[i], count + counts[i]
            after[i] = max(after[i], _earliest(out, size, count))
    return after


def _cold_transfers(demand: Demand) -> list[int]:
    """By place (the end of the step last), how many cold tensors the stream has needed by then."""
    counts = [0] * (len(demand.excess) + 1)
    for (_, right, _), forced in zip(demand.intervals, demand.forced, strict=True):
        counts[right] += forced
    return list(accumulate(counts))


def _tight_places(demand: Demand) -> Iterator[int]:
    """Places where most does not fit, at most one in each of a few equal parts of the stream."""
    count = len(demand.excess)
    parts = _WINDOWS if count <= _LARGE else _WINDOWS_IF_LARGE
    for k in range(parts):
        part = range(count * k // parts, count * (k + 1) // parts)
        place = max(part, key=lambda p: (demand.excess[p], p), default=None)
        if place is not None and demand.excess[place] > 0:
            yield place
