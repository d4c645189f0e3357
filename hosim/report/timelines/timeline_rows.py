"""A timeline as rows of bars: one row per stream, with its ops and waits, and one for each transfer
that a channel carries at once.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from hosim.base.groups import grouped
from hosim.cache_plan import Plan
from hosim.graph import Graph
from hosim.report.of_replays import ordered
from hosim.result import Result, Timeline
from hosim.timeline import Steps, blamed, last_ns, occupancy_by_kind

OP, TRANSFER = "op", "transfer of"
"""The kinds of bars, beside the causes of :data:`hosim.result.STALL_CAUSES`."""


@dataclass(frozen=True, slots=True)
class Bar:
    """Something that lasts from ``start_ns`` to ``end_ns``: :data:`OP`, :data:`TRANSFER`, or a
    stall by its cause.

    ``number`` is the op that runs, or the place of the transfer or the stall in the timeline.
    """

    start_ns: int
    end_ns: int
    what: str
    number: int


@dataclass(frozen=True, slots=True)
class Row:
    """Bars in order of time that do not overlap. ``lane`` counts the rows of one channel from 0; it
    is 0 for a stream.
    """

    name: str
    is_stream: bool
    lane: int
    bars: tuple[Bar, ...]

    @property
    def label(self) -> str:
        """The name, with the lane where it is not the first."""
        return f"{self.name} {self.lane + 1}" if self.lane else self.name


def timeline_of(result: Result) -> Timeline:
    """Return the timeline that a replay recorded. Raises :class:`ValueError` if it recorded
    nothing.
    """
    if result.timeline is None:
        raise ValueError("the result has no timeline: replay with record=True")
    return result.timeline


def rows(graph: Graph, timeline: Timeline) -> list[Row]:
    """Streams in the order of their first op, then the channels that moved something, by name."""
    return [*_streams(graph, timeline), *_channels(timeline)]


def used_channels(timeline: Timeline) -> list[str]:
    """The channels that moved something, by name."""
    return sorted({x.channel for x in timeline.transfers})


def _streams(graph: Graph, timeline: Timeline) -> Iterator[Row]:
    ran = [
        (op.stream, Bar(timeline.op_start_ns[i], timeline.op_end_ns[i], OP, i))
        for i, op in enumerate(graph.ops)
        if timeline.op_start_ns[i] >= 0
    ]
    waited = [
        (graph.ops[stall.op].stream, Bar(stall.start_ns, stall.end_ns, stall.cause, k))
        for k, stall in enumerate(timeline.stalls)
    ]
    bars = grouped([*ran, *waited])
    for stream in graph.streams:
        own = sorted(bars.get(stream, ()), key=lambda bar: (bar.start_ns, bar.end_ns, bar.number))
        yield Row(stream, True, 0, tuple(own))


def _channels(timeline: Timeline) -> Iterator[Row]:
    numbered = grouped((x.channel, (k, x)) for k, x in enumerate(timeline.transfers))
    for channel in used_channels(timeline):
        lanes: list[list[Bar]] = []
        free: list[tuple[int, int]] = []  # (from when on, lane)
        idle: list[int] = []
        for k, x in sorted(numbered[channel], key=lambda pair: (pair[1].start_ns, pair[0])):
            while free and free[0][0] <= x.start_ns:
                heappush(idle, heappop(free)[1])
            lane = heappop(idle) if idle else len(lanes)
            if lane == len(lanes):
                lanes.append([])
            lanes[lane].append(Bar(x.start_ns, x.end_ns, TRANSFER, k))
            heappush(free, (x.end_ns, lane))
        for lane, own in enumerate(lanes):
            yield Row(channel, False, lane, tuple(own))


def bar_name(plan: Plan, timeline: Timeline, bar: Bar) -> str:
    """Return the name of a bar for people: the op, what is moved, or what is waited for."""
    if bar.what == OP:
        return plan.graph.ops[bar.number].name
    return (
        plan.graph.tensors[timeline.transfers[bar.number].tensor].name
        if bar.what == TRANSFER
        else f"{bar.what} stall"
    )


def awaited_name(plan: Plan, timeline: Timeline, bar: Bar) -> str | None:
    """Return the transfer that a stall's bar is blamed on, as tensor and channel; ``None`` if that
    is no transfer.
    """
    x = blamed(timeline, timeline.stalls[bar.number])
    return None if x is None else f"{plan.graph.tensors[x.tensor].name} on {x.channel}"


def waits(graph: Graph, timeline: Timeline, to_device: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """(transfer, op) for every transfer that an op needs.

    A copy to the device tier is needed by the first op that starts after it and uses the tensor;
    and an op that waited needed the transfer that its stall is blamed on, a store perhaps.
    ``to_device`` says of each transfer whether it ends in the device tier. For a copy in chunks
    only the last to arrive counts.
    """
    last: dict[tuple[int, int], int] = {}
    for k, x in enumerate(timeline.transfers):
        if to_device[k]:
            last[x.cache_op, x.tensor] = max(
                (k, last.get((x.cache_op, x.tensor), k)),
                key=lambda n: (timeline.transfers[n].end_ns, n),
            )
    needed = {(stall.transfer, stall.op) for stall in timeline.stalls if stall.transfer is not None}
    started: dict[int, list[tuple[int, int]]] = {}
    for k in last.values():
        x = timeline.transfers[k]
        if x.tensor not in started:
            started[x.tensor] = sorted((timeline.op_start_ns[i], i) for i in graph.users[x.tensor])
        after = bisect_left(started[x.tensor], (x.end_ns, -1))
        if after < len(started[x.tensor]):
            needed.add((k, started[x.tensor][after][1]))
    yield from sorted(needed)


def of_devices(result: Result) -> list[tuple[str, Result]]:
    """The results whose timelines are worth showing, with a name each: of several devices those
    that differ, else the result itself.
    """
    recorded = [(d, r) for d, r in enumerate(result.by_device) if r.timeline is not None]
    if not recorded or all(r.timeline is recorded[0][1].timeline for _, r in recorded):
        return [("", result)] if result.timeline is not None else []
    return [(f"device {d}", r) for d, r in recorded]


# -- curves
# --------------------------------------------------------------------------------------------------

Ints = npt.NDArray[np.int64]


def end_ns(result: Result) -> int:
    """Return the end of everything recorded: the makespan, or the last instant known of a replay
    that ran out of memory.
    """
    if result.makespan_ns is not None or result.timeline is None:
        return result.makespan_ns or 0
    return last_ns(result.timeline)


def stacked(graph: Graph, timeline: Timeline, tier: str) -> tuple[Ints, dict[str, Ints]]:
    """Bytes held in a tier over time: instants, ascending from 0, and by kind of tensor the bytes
    from each of them on.

    Kinds are in the order of tables, and only those that hold something.
    """
    held = occupancy_by_kind(graph, timeline, tier)
    times = np.unique(
        np.concatenate(
            [np.zeros(1, np.int64), *(np.array(own.at_ns, np.int64) for own in held.values())]
        )
    )
    return times, {kind: sampled(held[kind], times) for kind in ordered(list(held))}


def sampled(amount: Steps, at: Ints) -> Ints:
    """An amount at the instants ``at``."""
    values = np.array([0, *amount.values], np.int64)
    return values[np.searchsorted(np.array(amount.at_ns, np.int64), at, "right")]


def held_over_time(
    graph: Graph, timeline: Timeline, tier: str, end: int, columns: int
) -> tuple[Ints, Ints]:
    """Bytes held in a tier over time, of all kinds, in at most ``columns`` steps."""
    times, by_kind = stacked(graph, timeline, tier)
    at, (held,) = thinned(times, [sum(by_kind.values(), 0 * times)], end, columns)
    return at, held


def thinned(times: Ints, curves: Sequence[Ints], end: int, columns: int) -> tuple[Ints, list[Ints]]:
    """Curves of at most ``columns`` steps: each stands for an equal part of the time, and shows its
    instant with the largest sum.

    So no peak is lost; curves that have no more steps are as they were.
    """
    if len(times) <= columns:
        return times, list(curves)
    starts = np.arange(columns, dtype=np.int64) * end // columns
    total = np.sum(list(curves), axis=0)
    first = np.maximum(np.searchsorted(times, starts, "right") - 1, 0)
    last = np.append(np.searchsorted(times, starts[1:], "left"), len(times))
    most = np.array(
        [
            a + int(np.argmax(total[a : max(b, a + 1)]))
            for a, b in zip(first.tolist(), last.tolist(), strict=True)
        ]
    )
    return starts, [curve[most] for curve in curves]
