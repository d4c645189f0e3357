"""The 90 % interval of a makespan: from how unsure the times of its ops are, and what else is in a real step.

The makespan's spread has four parts, each independent of the others: the spreads of its ops' times (:mod:`hosim.costmodel.time_spread`);
the gaps between kernels, which no table of kernels has; the rates of the copies that it waits for; and how many of these there are in other
draws of a routing (:func:`hosim.models.routing_draw.draw_spread`), where it is drawn. Where ops take longer than they
are said to, they may hide a copy that they now wait for: the interval does not count on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, exp, floor, sqrt

from hosim.costmodel.fitted_spreads import GAP_NS, STEP_SHARE
from hosim.costmodel.time_spread import StreamSpread, stream_spreads
from hosim.expert_routing import draw_spread_of
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.units import LARGEST

CERTAINTY = 0.9

COPIES = 0.085
"""The spread of waits for copies: medians of the errors of copies of 20 us or more in three recordings (docs/accuracy.md) are 0.2, 4.7 and
8.7 %, and half of a normal distribution is within 0.67 standard deviations."""

_DEVIATIONS = 1.6449
"""So many standard deviations to either side have 90 % of a normal distribution."""


def makespan_interval(
    graph: Graph, hardware: Hardware, main: str, makespan_ns: int, stall_ns: Mapping[str, int], drain_ns: int
) -> tuple[int, int] | None:
    """The ends of a makespan's 90 % interval; ``None`` where the time of every op is measured and no routing is drawn.

    ``stall_ns`` and ``drain_ns`` are those of the stream ``main``.
    """
    spreads = graph.derived_on(hardware, stream_spreads)
    draws = draw_spread_of(graph)
    if not spreads and not draws:
        return None
    return interval(makespan_ns, makespan_spread(spreads, main, makespan_ns, stall_ns, drain_ns, draws=draws))


def interval(makespan_ns: int, spread: float) -> tuple[int, int]:
    """What lies :data:`CERTAINTY` of a normal distribution of logarithms to both sides of a time."""
    factor = exp(min(_DEVIATIONS * spread, 40.0))
    return max(floor(makespan_ns / factor), min(makespan_ns, 1)), min(ceil(makespan_ns * factor), max(LARGEST, makespan_ns))


def makespan_spread(
    spreads: Mapping[str, StreamSpread],
    main: str,
    makespan_ns: int,
    stall_ns: Mapping[str, int],
    drain_ns: int,
    *,
    step_share: float = STEP_SHARE,
    gap_ns: float = GAP_NS,
    draws: float = 0.0,
) -> float:
    """The standard deviation of the logarithm of a makespan, from those of the streams' ops.

    Waits for other ops are as unsure as all ops of other streams together, in proportion. Waits for copies and for room have the spread
    of copies, and that of ``draws``.
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
    copies = stall_ns.get("transfer", 0) + stall_ns.get("capacity", 0) + (0 if others else drain_ns)
    moved = (COPIES * copies) ** 2 + (draws * copies) ** 2
    return sqrt(step_share**2 * variance + (gap_ns * ops) ** 2 + moved) / makespan_ns
