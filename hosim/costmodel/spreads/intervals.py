"""The 90 % interval of a makespan: from how unsure the times of its ops are, and what else is in a
real step.

The makespan's spread has four parts, each independent of the others: the spreads of its ops' times
(:mod:`hosim.costmodel.spreads.time_spread`);
the gaps between kernels, which no table of kernels has; the rates of the copies that it waits for;
and how many of these there are in other draws of a routing
(:func:`hosim.models.routing_draw.draw_spread`), where it is drawn. Where ops take longer than they
are said to, they may hide a copy that they now wait for: the interval does not count on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, exp, floor, hypot, sqrt

from hosim.costmodel.spreads.fitted_spreads import GAP_NS, STEP_SHARE
from hosim.costmodel.spreads.time_spread import StreamSpread, stream_spreads
from hosim.costmodel.transfers import is_pageable
from hosim.data.expert_routing import draw_spread_of
from hosim.data.runtime import Runtime
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.units import LARGEST

CERTAINTY = 0.9

COPIES = 0.085
"""The spread of waits for copies: medians of the errors of copies of 20 us or more in three
recordings (docs/accuracy.md) are 0.2, 4.7 and 8.7 %, and half of a normal distribution is within
0.67 standard deviations.
"""

PAGEABLE = 0.61
"""That of waits on a machine where tensors of the workload lie in pageable memory: what their
copies reach is the host's. The logarithms of six hosts' shares of the rate of pinned memory deviate
by so much: 0.13 and 0.38 (A100), 0.17 (A6000), 0.61 (RTX 3080), 0.30 (RTX 2080 Ti), 0.50 (V100);
docs/accuracy.md has their sources.
"""

_DEVIATIONS = 1.6449
"""So many standard deviations to either side have 90 % of a normal distribution."""


def makespan_interval(
    graph: Graph,
    hardware: Hardware,
    main: str,
    makespan_ns: int,
    stall_ns: Mapping[str, int],
    drain_ns: int,
) -> tuple[int, int] | None:
    """The ends of a makespan's 90 % interval; ``None`` where the time of every op is measured and
    no routing is drawn.

    ``stall_ns`` and ``drain_ns`` are those of the stream ``main``.
    """
    spreads = graph.derived_on(hardware, stream_spreads)
    draws = draw_spread_of(graph)
    if not spreads and not draws:
        return None
    copies = PAGEABLE if graph.derived_on(hardware, _has_pageable) else COPIES
    spread = makespan_spread(
        spreads, main, makespan_ns, stall_ns, drain_ns, copies=copies, draws=draws
    )
    if hardware.software is not None:  # what a whole step sustains errs for all of its ops alike
        busy = sum([each.busy_ns for stream, each in spreads.items() if stream == main])
        waits = _host_spread(hardware.software, copies) * stall_ns.get("runtime", 0)
        spread = (
            hypot(
                spread,
                hardware.software.speed.spread * min(1.0, busy / makespan_ns),
                waits / makespan_ns,
            )
            if makespan_ns
            else 0.0
        )
    return interval(makespan_ns, spread)


def _host_spread(runtime: Runtime, copies: float) -> float:
    """How unsure the waits for a runtime's host are (docs/contract.md, rule 23): as its calls, its
    pinning and the copies it awaits.
    """
    awaited = copies if {"prefetch", "store"} & {*runtime.blocks, *runtime.pins} else 0.0
    return max(runtime.host.spread, runtime.pin_rate.spread, awaited) if runtime.has_host else 0.0


def _has_pageable(graph: Graph, hardware: Hardware) -> bool:
    """Return whether a tensor's copies take a rate of pageable memory."""
    channels = [
        channel for channel in hardware.channels if channel.pageable_bytes_per_s is not None
    ]
    return any(
        [
            is_pageable(hardware, channel, kind)
            for channel in channels
            for kind in {tensor.kind for tensor in graph.tensors}
        ]
    )


def interval(makespan_ns: int, spread: float) -> tuple[int, int]:
    """Return what lies :data:`CERTAINTY` of a normal distribution of logarithms to both sides of a
    time.
    """
    factor = exp(min(_DEVIATIONS * spread, 40.0))
    return max(floor(makespan_ns / factor), min(makespan_ns, 1)), min(
        ceil(makespan_ns * factor), max(LARGEST, makespan_ns)
    )


def makespan_spread(
    spreads: Mapping[str, StreamSpread],
    main: str,
    makespan_ns: int,
    stall_ns: Mapping[str, int],
    drain_ns: int,
    *,
    step_share: float = STEP_SHARE,
    gap_ns: float = GAP_NS,
    copies: float | None = None,
    draws: float = 0.0,
) -> float:
    """The standard deviation of the logarithm of a makespan, from those of the streams' ops.

    Waits for other ops are as unsure as all ops of other streams together, in proportion. Waits for
    copies and for room have the spread of ``copies``, by default :data:`COPIES`, and that of
    ``draws``.
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
    moved = ((COPIES if copies is None else copies) * copying) ** 2 + (draws * copying) ** 2
    return sqrt(step_share**2 * variance + (gap_ns * ops) ** 2 + moved) / makespan_ns
