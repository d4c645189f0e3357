"""Lower bounds of drawn graphs, a row each: a bound that gets weaker is still true, so only its
figure tells.

After a change that is meant to alter bounds::

    python tests/kept/write.py kept_bounds

writes the table anew; a bound that has fallen says less than it did.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, islice

from instances import instance
from kept_placements import detour
from kept_streams import machine, two_streams
from kept_table import KeptTable, Row, checksum

from hosim.analysis.costmodel import op_durations
from hosim.analysis.lower_bounds import critical_path, free_order_bound_ns, lower_bound_ns, tails
from hosim.data.stream_order import earliest_starts
from hosim.graph import Graph
from hosim.hardware import Fabric, Hardware

COLUMNS = (
    "graph",
    "machine",
    "resident_ns",
    "loose_ns",
    "tight_ns",
    "once_ns",
    "below_ns",
    "any_order_ns",
    "checksum",
)
SEED = 17
INSTANCES = (3, 7, 9, 11, 14, 15, 17, 19)
"""Those whose programs are small, of twenty."""


def machines(graph: Graph, drawn: Hardware) -> Iterator[tuple[str, Hardware]]:
    """The drawn one; one with a tier behind another; one with three such ways; the drawn one, its
    channels on a fabric, two engines up.
    """
    yield "drawn", drawn
    yield "routed", machine(graph)
    yield "detour", detour(graph)
    half = sum(channel.bandwidth_bytes_per_s for channel in drawn.channels) // 3
    channels = tuple(
        replace(c, engines=2, latency_ns=c.latency_ns + 3) if c.destination == "hbm" else c
        for c in drawn.channels
    )
    shared = Fabric("host", half, tuple(channel.name for channel in channels))
    yield "shared", replace(drawn, channels=channels, fabrics=(shared,))


def rows(number: int) -> Iterator[Row]:
    """The rows of one instance, on two of the machines: for two budgets and none; for a step that
    need not repeat; all below at time 0.
    """
    drawn = instance(number, SEED)
    for turn, graph in enumerate((drawn.graph, two_streams(drawn.graph))):
        for name, hardware in islice(
            machines(graph, drawn.hardware), (number + turn) % 4, (number + turn) % 4 + 1
        ):
            durations = op_durations(graph, hardware)
            tight = drawn.budget_bytes
            bounds = [
                lower_bound_ns(graph, durations, hardware, None, b)
                for b in (None, tight + tight // 3, tight)
            ]
            once = lower_bound_ns(graph, durations, hardware, None, tight, repeats=False)
            below = dict.fromkeys(graph.initial, (hardware.tiers[-1].name,))
            cold = lower_bound_ns(graph, durations, hardware, below)
            free = free_order_bound_ns(graph, durations, hardware, tight)
            rest = (
                critical_path(graph, durations),
                earliest_starts(graph, durations),
                tails(graph, durations),
            )
            figures = (*bounds, once, cold, free, checksum(rest))
            yield (f"{drawn.name}/{len(graph.streams)}", name, *(str(figure) for figure in figures))


TABLE = KeptTable("kept_bounds", COLUMNS, lambda: chain.from_iterable(map(rows, INSTANCES)))
