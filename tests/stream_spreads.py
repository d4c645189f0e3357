"""What the spreads of a step's ops add up to in first order: what spreads are fitted by, and what
draws are held against.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import exp, fsum, sqrt

from hosim.analysis.costmodel import op_durations
from hosim.analysis.costmodel.spreads import GAP_NS, STEP_SHARE, Spreads, alike_ops, spread_of
from hosim.graph import Graph
from hosim.hardware import Hardware

DEVIATIONS = 1.6449
"""So many standard deviations to either side have 90 % of a normal distribution."""

COPIES = 0.085
"""The spread of waits for copies."""

Which = tuple[str, str]


@dataclass(frozen=True, slots=True)
class StreamSpread:
    """The ops of one stream that are not measured: how many, the nanoseconds that they take, and
    the variance of these.
    """

    ops: int
    busy_ns: int
    variance: float


@dataclass(frozen=True, slots=True)
class StreamTimes:
    """The ops of one stream that are not measured: how many, and the nanoseconds of each class,
    those of equal sizes together.
    """

    ops: int
    by_class: Mapping[Which, tuple[int, ...]]

    def spread(self, spreads: Spreads, shared: Mapping[str, float]) -> StreamSpread:
        """How far all of them together may be off; ``shared`` is the shared part of the variance,
        by origin.
        """
        variance = fsum(
            [
                _variance(times, spread_of(which, spreads), shared[which[0]])
                for which, times in self.by_class.items()
            ]
        )
        return StreamSpread(self.ops, sum(map(sum, self.by_class.values())), variance)


def _variance(times: Iterable[int], spread: float, shared: float) -> float:
    """Of errors of which ``shared`` (a share of the variance) is common to all times, and the rest
    is each one's own.
    """
    listed = [float(ns) for ns in times]
    return spread**2 * (
        shared * fsum(listed) ** 2 + (1 - shared) * fsum([ns * ns for ns in listed])
    )


def stream_times(graph: Graph, hardware: Hardware) -> Mapping[str, StreamTimes]:
    """The ops whose time was not measured on this machine, by stream; streams without any are left
    out.
    """
    alike, durations = alike_ops(graph, hardware), op_durations(graph, hardware)
    counts: defaultdict[str, int] = defaultdict(int)
    times: defaultdict[str, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
    for op, ns, group in zip(graph.ops, durations, alike.group, strict=True):
        if group >= 0:
            counts[op.stream] += 1
            times[op.stream][group] += ns
    found = {}
    for stream, groups in times.items():
        by_class: defaultdict[Which, list[int]] = defaultdict(list)
        for group, ns in groups.items():
            by_class[alike.which[group]].append(ns)
        found[stream] = StreamTimes(
            counts[stream], {which: tuple(listed) for which, listed in by_class.items()}
        )
    return found


def ends(makespan_ns: float, spread: float) -> tuple[float, float]:
    """What lies nine tenths of a normal distribution of logarithms to both sides of a time."""
    return makespan_ns / exp(DEVIATIONS * spread), makespan_ns * exp(DEVIATIONS * spread)


def makespan_spread(
    spreads: Mapping[str, StreamSpread],
    main: str,
    makespan_ns: int,
    stall_ns: Mapping[str, int],
    drain_ns: int,
    *,
    step_share: float = STEP_SHARE,
    gap_ns: float = GAP_NS,
    copies: float = COPIES,
) -> float:
    """The standard deviation of the logarithm of a makespan, from those of the streams' ops.

    Waits for other ops are as unsure as all ops of other streams together, in proportion; waits for
    copies and for room have the spread of ``copies``.
    """
    if not makespan_ns:
        return 0.0
    ops, variance = 0.0, 0.0
    if main in spreads:
        ops, variance = spreads[main].ops, spreads[main].variance
    others = [spread for stream, spread in spreads.items() if stream != main]
    waits = stall_ns.get("dependency", 0) + (drain_ns if others else 0)
    taken = sum([spread.busy_ns for spread in others])
    share = min(1.0, waits / taken) if taken else 0.0
    ops += share * sum([spread.ops for spread in others])
    variance += share**2 * sum([spread.variance for spread in others])
    copying = (
        stall_ns.get("transfer", 0) + stall_ns.get("capacity", 0) + (0 if others else drain_ns)
    )
    moved = (copies * copying) ** 2
    return sqrt(step_share**2 * variance + (gap_ns * ops) ** 2 + moved) / makespan_ns
