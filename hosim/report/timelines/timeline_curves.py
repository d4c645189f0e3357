"""The values of a timeline at every instant, as arrays of numpy that a picture has room for."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hosim.graph import Graph
from hosim.report.of_replays import ordered
from hosim.result import Result, Timeline
from hosim.timeline import Steps, last_ns, occupancy_by_kind

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
