"""What a timeline says of every instant, as arrays of numpy: bytes held and bytes waiting over time, and shares of time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from hosim.graph import Graph
from hosim.report.tables import ordered
from hosim.result import WORKSPACE, Result, Timeline

Ints = npt.NDArray[np.int64]
Interval = tuple[int, int]


def end_ns(result: Result) -> int:
    """When everything recorded has ended: the makespan, or the last instant known of a replay that ran out of memory."""
    if result.makespan_ns is not None or result.timeline is None:
        return result.makespan_ns or 0
    timeline = result.timeline
    return max([*timeline.op_end_ns, *(x.end_ns for x in timeline.transfers), *(r.end_ns for r in timeline.residencies)], default=0)


def steps(parts: Sequence[tuple[int, int, int]]) -> tuple[Ints, Ints]:
    """The sum of weights over time from (start, end, weight): instants, ascending, and the sum from each of them on.

    >>> [a.tolist() for a in steps([(0, 5, 10), (2, 9, 1)])]
    [[0, 2, 5, 9], [10, 11, 1, 0]]
    """
    table = np.array(parts, np.int64).reshape(-1, 3)
    times = np.unique(table[:, :2])
    change = np.zeros(len(times), np.int64)
    np.add.at(change, np.searchsorted(times, table[:, 0]), table[:, 2])
    np.subtract.at(change, np.searchsorted(times, table[:, 1]), table[:, 2])
    return times, np.cumsum(change)


def occupancy(graph: Graph, timeline: Timeline, tier: str) -> tuple[Ints, dict[str, Ints]]:
    """Bytes held in a tier over time: instants, ascending from 0, and by kind of tensor the bytes from each of them on.

    Kinds are in the order of tables, and only those that hold something. What is held and released within one instant is left out.
    """
    parts: dict[str, list[tuple[int, int, int]]] = {}
    for r in timeline.residencies:
        if r.tier == tier and r.bytes and r.start_ns < r.end_ns:
            kind = graph.tensors[r.tensor].kind if r.tensor >= 0 else WORKSPACE
            parts.setdefault(kind, []).append((r.start_ns, r.end_ns, r.bytes))
    curves = {kind: steps(parts[kind]) for kind in ordered(list(parts))}
    times = np.unique(np.concatenate([np.zeros(1, np.int64), *(own for own, _ in curves.values())]))
    return times, {kind: sampled(own, values, times) for kind, (own, values) in curves.items()}


def sampled(times: Ints, values: Ints, at: Ints) -> Ints:
    """The steps (``times``, ``values``) at the instants ``at``; 0 before the first."""
    if not len(times):
        return np.zeros(len(at), np.int64)
    before = np.searchsorted(times, at, "right") - 1
    return np.where(before >= 0, values[before], 0)


def thinned(times: Ints, curves: Sequence[Ints], end: int, columns: int) -> tuple[Ints, list[Ints]]:
    """Curves of at most ``columns`` steps: each stands for an equal part of the time, and shows its instant with the largest sum.

    So no peak is lost; curves that have no more steps are as they were.
    """
    if len(times) <= columns:
        return times, list(curves)
    starts = np.arange(columns, dtype=np.int64) * end // columns
    total = np.sum(list(curves), axis=0)
    first = np.maximum(np.searchsorted(times, starts, "right") - 1, 0)
    last = np.append(np.searchsorted(times, starts[1:], "left"), len(times))
    most = np.array([a + int(np.argmax(total[a : max(b, a + 1)])) for a, b in zip(first.tolist(), last.tolist(), strict=True)])
    return starts, [curve[most] for curve in curves]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The intervals without overlaps, in order of time.

    >>> union([(5, 7), (0, 3), (2, 4), (4, 5)])
    [(0, 7)]
    """
    merged: list[list[int]] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return [(start, end) for start, end in merged]


def shares(intervals: Sequence[Interval], end: int, columns: int) -> npt.NDArray[np.float64]:
    """What part of each of ``columns`` equal parts of ``[0, end)`` the intervals cover; they must not overlap.

    >>> shares([(0, 5), (7, 8)], 10, 2).tolist()
    [1.0, 0.2]
    """
    if not intervals or end <= 0:
        return np.zeros(columns)
    table = np.array(sorted(intervals), np.int64)
    corners = table.reshape(-1)
    length = np.cumsum(table[:, 1] - table[:, 0])
    covered = np.stack([np.append(0, length[:-1]), length], 1).reshape(-1)
    edges = np.linspace(0, end, columns + 1)
    found = np.diff(np.interp(edges, corners, covered, left=0)) * columns / end
    clipped: npt.NDArray[np.float64] = np.clip(found, 0.0, 1.0)
    return clipped
