"""Replays on machines of every kind, a row each: whatever the engine can be asked for, with a
checksum of all that it says.

A simulation has no figure that is right by a formula beyond toys; these rows say when one becomes
another. Plans are those of policies for drawn graphs, on one stream and on two, replayed with small
transfers slower, memory to pin, shared links, several devices, jitter, copies that compete,
allocators, and with less memory than the plan was made for. After a change that is meant to alter
replays::

    python tests/kept/write.py kept_replays

writes the table anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any
from zlib import crc32

from instances import instance
from kept_streams import machine, two_streams
from kept_table import KeptTable, Row, checksum

from hosim.cache_plan import Plan
from hosim.engine import replay
from hosim.errors import HosimError
from hosim.graph import Graph
from hosim.hardware import Compute, Fabric, Hardware
from hosim.jitter import Jitter
from hosim.policies import policy_named
from hosim.result import Result

COLUMNS = (
    "instance",
    "policy",
    "machine",
    "asked",
    "makespan_ns",
    "peak_bytes",
    "stall_ns",
    "busy_channels_ns",
    "checksum",
)
SEED = 23
INSTANCES = range(15)
POLICIES = ("distance", "g10", "layerwise", "belady", "lookahead")
"""One of them for each instance, in turn; the last two decide during the replay."""
WAYS: Mapping[str, tuple[tuple[str, dict[str, Any]], ...]] = {
    "plain": (
        ("", {}),
        ("program", {"account": "program"}),
        ("jitter", {"jitter": Jitter(3, 0.3, 0.4)}),
        ("jitter of ops", {"jitter": Jitter(4, 0.5)}),
    ),
    "large tensors": (
        ("caching", {"allocator": "caching"}),
        ("expandable", {"allocator": "caching-expandable"}),
        ("static", {"allocator": "static"}),
        ("reserve", {"allocator": "caching", "reserve_bytes": 60 * 2**20}),
        ("program", {"account": "program", "allocator": "caching"}),
        ("program expandable", {"account": "program", "allocator": "caching-expandable"}),
    ),
    "overheads": (("", {}), ("jitter", {"jitter": Jitter(5, 0.0, 0.5)})),
    "shared": (("", {}), ("compete", {"compete": True})),
    "modelled": (
        ("", {}),
        ("alone", {"compete": False}),
        ("jitter", {"jitter": Jitter(6, 0.2, 0.2)}),
    ),
    "two devices": (
        ("", {}),
        ("apart", {"fold": False}),
        ("jitter", {"jitter": Jitter(7, 0.2, 0.3)}),
    ),
    "three devices": (("", {}), ("compete", {"compete": True})),
}
"""By machine, what the replay is asked for."""
SHARES = (1.0, 0.9, 0.75)
"""Of the bytes that a replay of the plan needs by itself; and those where an allocator takes
more.
"""
ROOMY_SHARES = (4.0, 1.5, 1.1, 0.8)
FACTOR = 2**18
"""Of large tensors: some are small for the caching allocator, some are not."""


def machines(graph: Graph) -> Iterator[tuple[str, Graph, Hardware]]:
    """The machine of kept_streams.py in several ways, each with the graph that runs on it."""
    plain = machine(graph)
    yield "plain", graph, plain
    yield "large tensors", enlarged(graph), enlarged_machine(plain)
    hbm, ddr, nvme = plain.tiers
    up, down, read, write = plain.channels
    curve = ((6, 2 * 10**8), (12, 4 * 10**8))
    slow_ddr = replace(ddr, pageable=("activation", "kv_cache"), pin_ns=3, pin_pool=True)
    channels = (
        replace(up, curve=curve, pageable_bytes_per_s=4 * 10**8),
        replace(down, curve=curve),
        read,
        write,
    )
    yield (
        "overheads",
        graph,
        replace(
            plain,
            tiers=(hbm, slow_ddr, replace(nvme, pin_ns=2)),
            channels=channels,
            chunk_bytes=7,
            inspect_ns=2,
        ),
    )
    half = Fabric("half duplex", 11 * 10**8, ("h2d", "d2h"))
    channels = (replace(up, engines=2), down, replace(read, beside=(("write", 3 * 10**8),)), write)
    yield "shared", graph, replace(plain, channels=channels, fabrics=(half,), chunk_bytes=5)
    compute = Compute({"bf16": 10**9}, 0.5, 2, {"matmul": {"bf16": 0.8}})
    ops = tuple(
        replace(
            op,
            duration_ns=op.duration_ns if i % 5 == 1 else None,
            bytes_accessed=3 * i % 17,
            flops=5 * i % 13,
            dtype="bf16",
        )
        for i, op in enumerate(graph.ops)
    )
    memories = tuple(
        replace(tier, bandwidth_bytes_per_s=2 * 10**9 - 10**8 * k)
        for k, tier in enumerate(plain.tiers)
    )
    yield (
        "modelled",
        Graph(graph.name, graph.tensors, ops),
        replace(plain, tiers=memories, compute=compute),
    )
    doubled = replace(ddr, capacity_bytes=2 * ddr.capacity_bytes)
    tiers = (hbm, doubled, replace(nvme, scope="global"))
    yield (
        "two devices",
        graph,
        replace(plain, tiers=tiers, fabrics=(half,), devices=2, chunk_bytes=9),
    )
    root = Fabric("root", 2 * 10**9, ("h2d", "read"), "global")
    tiers = (hbm, doubled, nvme)
    yield (
        "three devices",
        graph,
        replace(plain, tiers=tiers, fabrics=(root,), devices=3, devices_per_host=2, inspect_ns=1),
    )


def enlarged(graph: Graph) -> Graph:
    """The graph with all bytes times :data:`FACTOR`."""
    tensors = tuple(
        replace(tensor, size_bytes=tensor.size_bytes * FACTOR) for tensor in graph.tensors
    )
    return Graph(
        graph.name,
        tensors,
        tuple(replace(op, workspace_bytes=op.workspace_bytes * FACTOR) for op in graph.ops),
    )


def enlarged_machine(hardware: Hardware) -> Hardware:
    """The machine that does the same with it in the same time."""
    tiers = tuple(
        replace(tier, capacity_bytes=tier.capacity_bytes * FACTOR) for tier in hardware.tiers
    )
    channels = tuple(
        replace(c, bandwidth_bytes_per_s=c.bandwidth_bytes_per_s * FACTOR)
        for c in hardware.channels
    )
    return replace(hardware, tiers=tiers, channels=channels, chunk_bytes=8 * FACTOR)


def rows(number: int) -> Iterator[Row]:
    """The rows of one instance."""
    drawn = instance(number, SEED)
    policy = policy_named(POLICIES[number % len(POLICIES)])
    given = two_streams(drawn.graph) if number % 2 else drawn.graph
    for name, graph, hardware in machines(given):
        budget = drawn.budget_bytes * 2 * (FACTOR if name == "large tensors" else 1)
        plan = policy.plan(graph, hardware, budget)
        most = replay(plan, hardware, budget if plan.runtime else None).peak_bytes["hbm"]
        for how, options in WAYS[name]:
            if plan.runtime and "account" in options:
                continue  # it has none
            for share in ROOMY_SHARES if {"allocator", "account"} & {*options} else SHARES:
                asked = (
                    f"{drawn.name}/{len(graph.streams)}",
                    plan.policy,
                    name,
                    f"{how} {share:.0%}".lstrip(),
                )
                yield (*asked, *_figures(plan, hardware, int(most * share), options))


def _figures(
    plan: Plan, hardware: Hardware, budget: int, options: dict[str, Any]
) -> tuple[str, ...]:
    try:
        result = replay(plan, hardware, budget, record=True, **options)
    except HosimError as error:
        return "", "", "", "", str(crc32(str(error).encode()))
    figures = (
        result.makespan_ns,
        result.peak_bytes["hbm"],
        sum(result.stall_ns.values()),
        sum(c.busy_ns for c in result.channels.values()),
        checksum([_all(one) for one in (result, *result.by_device)]),
    )
    return tuple("" if figure is None else str(figure) for figure in figures)


def _all(result: Result) -> object:
    return replace(result, replay_s=0.0), result.timeline


TABLE = KeptTable("kept_replays", COLUMNS, lambda: chain.from_iterable(map(rows, INSTANCES)))
