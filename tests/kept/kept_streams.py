"""The plans of policies where the machine is harder: two streams, latencies, and a tier that is
reached through another one.

The rows of kept_plans.py are of one stream and of tiers that are joined to the device tier. These
are the same graphs with their ops on two streams in turn, on a machine whose middle tier is small,
so that tensors go further down, over two channels. After a change that is meant to alter plans::

    python tests/kept/write.py kept_streams

writes the table anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from zlib import crc32

from instances import instance
from kept_table import KeptTable, Row

from hosim.cache_plan import Plan
from hosim.engine import replay
from hosim.errors import HosimError
from hosim.graph import Graph
from hosim.hardware import Channel, Compute, Hardware, Tier
from hosim.policies import policy_named

COLUMNS = (
    "instance",
    "policy",
    "parameters",
    "budget_bytes",
    "makespan_ns",
    "peak_bytes",
    "stall_ns",
    "moved_bytes",
    "checksum",
)
SEED = 13
INSTANCES = range(12)
WAYS: tuple[tuple[str, dict[str, bool | float | int | str]], ...] = (
    ("belady", {}),
    ("lookahead", {"k": 2, "placement": "balanced"}),
    ("on_demand", {}),
    ("distance", {}),
    (
        "distance",
        {
            "select_distance": 4,
            "select_num": 5,
            "prefetch_distance": 2,
            "release_distance": 1,
            "placement": "fastest",
        },
    ),
    ("g10", {}),
    ("layerwise", {}),
    ("layerwise", {"layers_ahead": 2}),
    ("longest_gap", {}),
    ("memory_peak", {}),
    (
        "memory_peak",
        {
            "prefetch_distance": 3,
            "release_distance": 1,
            "score_weight_size": 0.2,
            "score_weight_cover_start": 0.4,
        },
    ),
    (
        "memory_peak",
        {
            "enable_adaptive_prefetch_distance": True,
            "enable_adaptive_release_distance": True,
            "default_kernel_time_us": 0.01,
        },
    ),
)


def two_streams(graph: Graph) -> Graph:
    """The ops in turns on the main stream, there again, and on another."""
    return Graph(
        graph.name,
        graph.tensors,
        tuple(replace(op, stream="s1") if i % 3 == 2 else op for i, op in enumerate(graph.ops)),
    )


def machine(graph: Graph) -> Hardware:
    """``hbm``, ``ddr`` with room for a third of all bytes beside what lives there, and ``nvme``
    behind it.
    """
    everything = sum(tensor.size_bytes for tensor in graph.tensors) + sum(
        op.workspace_bytes for op in graph.ops
    )
    home = sum(tensor.size_bytes for tensor in graph.tensors if tensor.home == "ddr")
    tiers = (
        Tier("hbm", everything, 10**9, "device"),
        Tier("ddr", home + everything // 3, 10**9),
        Tier("nvme", everything, 10**9),
    )
    channels = (
        Channel("h2d", "ddr", "hbm", 10**9, 2),
        Channel("d2h", "hbm", "ddr", 8 * 10**8, 1),
        Channel("read", "nvme", "ddr", 7 * 10**8, 3),
        Channel("write", "ddr", "nvme", 5 * 10**8),
    )
    return Hardware("routed", tiers, channels, Compute({}))


def rows(number: int) -> Iterator[Row]:
    """The rows of one instance: on one stream and on two."""
    drawn = instance(number, SEED)
    budget = drawn.budget_bytes * 3 // 2  # of two streams, ops that overlap
    for graph in (drawn.graph, two_streams(drawn.graph)):
        hardware = machine(graph)
        for name, parameters in WAYS:
            asked = (
                f"{drawn.name}/{len(graph.streams)}",
                name,
                json.dumps(parameters),
                str(budget),
            )
            try:
                plan = policy_named(name).plan(graph, hardware, budget, **parameters)
            except HosimError as error:
                yield (*asked, "", "", "", "", str(crc32(str(error).encode())))
                continue
            yield (*asked, *_figures(plan, hardware, budget))


def _figures(plan: Plan, hardware: Hardware, budget: int) -> Iterator[str]:
    result = replay(plan, hardware, budget)
    moved = [
        (c.op, plan.graph.tensors[c.tensor].name, c.source, c.destination, c.after)
        for c in plan.cache_ops
    ]
    channels = {
        name: (c.transfers, c.bytes, c.busy_ns, c.queue_ns, c.exposed_ns)
        for name, c in result.channels.items()
    }
    rest = json.dumps([moved, sorted(plan.initial.items()), channels, result.error])
    figures = (
        result.makespan_ns,
        result.peak_bytes["hbm"],
        sum(result.stall_ns.values()),
        sum(c.bytes for c in result.channels.values()),
        crc32(rest.encode()),
    )
    yield from ("" if figure is None else str(figure) for figure in figures)


TABLE = KeptTable("kept_streams", COLUMNS, lambda: chain.from_iterable(map(rows, INSTANCES)))
