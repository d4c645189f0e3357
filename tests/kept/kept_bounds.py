"""Lower bounds of drawn graphs, a row each: a bound that gets weaker is still true, so only its figure tells.

After a change that is meant to alter bounds::

    python tests/kept/write.py kept_bounds

writes the table anew; a bound that has fallen says less than it did.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from zlib import crc32

from instances import instance
from kept_placements import detour
from kept_streams import machine, two_streams
from kept_table import KeptTable, Row

from hosim.analysis.bounds import lower_bound_ns
from hosim.analysis.critical_path import critical_path, earliest_starts, tails
from hosim.analysis.forced_traffic import arrivals, demands, departures
from hosim.analysis.free_order_bound import free_order_bound_ns
from hosim.cache_plan import Plan
from hosim.costmodel.op_time import op_durations
from hosim.graph import Graph
from hosim.hardware import Fabric, Hardware

COLUMNS = ("graph", "machine", "starts", "resident_ns", "loose_ns", "tight_ns", "once_ns", "any_order_ns", "checksum")
SEED = 17
INSTANCES = range(20)


def machines(graph: Graph, drawn: Hardware) -> Iterator[tuple[str, Hardware]]:
    """The drawn one; one with a tier behind another; one with three such ways; the drawn one, its channels on a fabric, two engines up."""
    yield "drawn", drawn
    yield "routed", machine(graph)
    yield "detour", detour(graph)
    half = sum(channel.bandwidth_bytes_per_s for channel in drawn.channels) // 3
    channels = tuple(replace(c, engines=2, latency_ns=c.latency_ns + 3) if c.destination == "hbm" else c for c in drawn.channels)
    shared = Fabric("host", half, tuple(channel.name for channel in channels))
    yield "shared", replace(drawn, channels=channels, fabrics=(shared,))


def starts(graph: Graph, hardware: Hardware) -> Iterator[tuple[str, dict[int, tuple[str, ...]]]]:
    """Where persistent tensors are at time 0: at home, all in the last tier, and by turns there, at home or in both."""
    last = hardware.tiers[-1].name
    free = [t for t in graph.initial if graph.tensors[t].persistent and graph.tensors[t].home is None]
    yield "home", {}
    yield "below", dict.fromkeys(free, (last,))
    turns = ((last,), ("hbm", last), ("hbm",))
    yield "turns", {t: turns[k % 3] for k, t in enumerate(free)}


def rows(number: int) -> Iterator[Row]:
    """The rows of one instance."""
    drawn = instance(number, SEED)
    for graph in (drawn.graph, two_streams(drawn.graph)):
        for name, hardware in machines(graph, drawn.hardware):
            durations = op_durations(graph, hardware)
            for place, initial in starts(graph, hardware):
                residency = Plan(graph, "any", (), initial).residency(hardware.device_tier)
                bounds = [
                    lower_bound_ns(graph, durations, hardware, residency, b) for b in (None, drawn.budget_bytes, drawn.budget_bytes // 2)
                ]
                once = lower_bound_ns(graph, durations, hardware, residency, drawn.budget_bytes // 2, repeats=False)
                free = free_order_bound_ns(graph, durations, hardware, residency)
                traffic = [
                    (arrivals(into), arrivals(into, 2), departures(out))
                    for stream in graph.streams
                    for into, out in [demands(graph, stream, drawn.budget_bytes, residency, "hbm", True)]
                ]
                rest = (traffic, critical_path(graph, durations), earliest_starts(graph, durations), tails(graph, durations))
                figures = (*bounds, once, free, crc32(repr(rest).encode()))
                yield (f"{drawn.name}/{len(graph.streams)}", name, place, *(str(figure) for figure in figures))


TABLE = KeptTable("kept_bounds", COLUMNS, lambda: chain.from_iterable(map(rows, INSTANCES)))
