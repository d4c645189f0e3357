"""Policies on machines with three tiers below, under every rule of placement, a row each; and
decisions at run time, as they were taken.

``detour`` has a pool whose own channels are slower than the way over ``ddr``, so that a copy is
passed on there, and ``nvme`` that only that way leads to; all are small. ``read-only`` has a tier
beside it that can only be read, at which some tensors are at home. After a change that is meant to
alter plans::

    python tests/kept/write.py kept_placements

writes the table anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, product
from random import Random
from zlib import crc32

import moe_toy
from instances import instance
from kept_streams import two_streams
from kept_table import KeptTable, Row, checksum

from hosim.analysis import canonical
from hosim.cache_plan import Plan
from hosim.data.expert_routing import realise
from hosim.engine import replay
from hosim.errors import HosimError
from hosim.graph import Graph, Tensor
from hosim.hardware import Channel, Compute, Hardware, Tier
from hosim.planner.schedule import plan_for
from hosim.planner.schedule.experts import Fetch
from hosim.policies import policy_named
from hosim.policies.own import Deciding, freeze_runtime

COLUMNS = (
    "instance",
    "policy",
    "parameters",
    "budget_bytes",
    "makespan_ns",
    "stall_ns",
    "moved_bytes",
    "checksum",
)
SEED = 37
INSTANCES = range(10)
RULES = ("fastest", "balanced", "by_kind", "by_kind/activation=pool/parameter=nvme", "nearest")
PLACED = ("belady", "on_demand", "lookahead", "distance", "layerwise", "longest_gap", "memory_peak")
SHORT = {
    "distance": {"select_distance": 3, "prefetch_distance": 2},
    "memory_peak": {"prefetch_distance": 4},
    "lookahead": {"k": 3},
}
"""Parameters for graphs of so few ops."""
EXPERTS = ((1, 5), (2, 4), (3, 6))
"""Layers, and experts of each."""


def detour(graph: Graph) -> Hardware:
    """Three tiers below, each with room for what is at home there and for a quarter of all."""
    room = sum(tensor.size_bytes for tensor in graph.tensors)
    home = {
        name: sum(t.size_bytes for t in graph.tensors if t.home == name)
        for name in ("ddr", "pool", "nvme")
    }
    tiers = tuple(Tier(name, held + room // 4, 10**9) for name, held in home.items())
    channels = (
        Channel("h2d", "ddr", "hbm", 10**9, 1),
        Channel("d2h", "hbm", "ddr", 9 * 10**8),
        Channel("in", "pool", "hbm", 10**8),
        Channel("out", "hbm", "pool", 2 * 10**8, 2),
        Channel("up", "pool", "ddr", 8 * 10**8),
        Channel("down", "ddr", "pool", 7 * 10**8, 1),
        Channel("read", "nvme", "ddr", 6 * 10**8, 3),
        Channel("write", "ddr", "nvme", 5 * 10**8),
    )
    device = Tier("hbm", room + max(op.workspace_bytes for op in graph.ops), 10**9, "device")
    return Hardware("detour", (device, *tiers), channels, Compute({}), chunk_bytes=16)


def read_only(graph: Graph) -> Hardware:
    """One tier to move to, and one to read from."""
    machine = detour(graph)
    rom = Tier("rom", machine.device.capacity_bytes, 10**9)
    channels = (*machine.channels[:2], Channel("load", "rom", "hbm", 7 * 10**8, 1))
    roomy = replace(machine.tiers[1], capacity_bytes=machine.device.capacity_bytes)
    return Hardware(
        "read-only", (machine.tiers[0], roomy, rom), channels, Compute({}), chunk_bytes=16
    )


def housed(graph: Graph, lots: Random, homes: tuple[str, ...]) -> Graph:
    """The graph with some persistent tensors at home elsewhere; nothing that is written is at home
    where it can only be read.
    """
    tensors = []
    for t, tensor in enumerate(graph.tensors):
        home = lots.choice((tensor.home, *homes)) if tensor.persistent else tensor.home
        tensors.append(replace(tensor, home="ddr" if home == "rom" and graph.writers[t] else home))
    return Graph(graph.name, tuple(tensors), graph.ops, graph.meta)


def rows(number: int) -> Iterator[Row]:
    """The rows of one instance."""
    drawn = instance(number, SEED)
    lots = Random(f"{SEED} {number}")
    base = two_streams(drawn.graph) if number % 2 else drawn.graph
    budget = drawn.budget_bytes * 5 // 4
    scattered, read = housed(base, lots, ("pool", "nvme")), housed(base, lots, ("rom",))
    given = [
        (scattered, detour(scattered), name, {**SHORT.get(name, {}), "placement": rule})
        for name, rule in product(PLACED, RULES)
    ]
    given += [(scattered, detour(scattered), name, {}) for name in ("g10", "resident")]
    given += [
        (read, read_only(read), name, SHORT.get(name, {})) for name in (*PLACED, "g10", "resident")
    ]
    for graph, hardware, name, parameters in given:
        asked = (f"{drawn.name}/{hardware.name}", name, json.dumps(parameters), str(budget))
        yield (*asked, *_made(graph, hardware, name, parameters, budget))


def _made(
    graph: Graph, hardware: Hardware, name: str, parameters: dict[str, object], budget: int
) -> tuple[str, ...]:
    try:
        plan = policy_named(name).plan(graph, hardware, budget, **parameters)
        return _figures(plan, hardware, budget)
    except HosimError as error:
        return "", "", "", str(crc32(str(error).encode()))


def _figures(plan: Plan, hardware: Hardware, budget: int) -> tuple[str, ...]:
    frozen = freeze_runtime(plan, hardware, budget)
    result = replay(plan, hardware, budget)
    told = (
        plan.cache_ops,
        sorted(plan.initial.items()),
        None if frozen is None else frozen.cache_ops,
        result.channels,
        result.error,
    )
    moved = sum(c.bytes for c in result.channels.values())
    return (
        str(result.makespan_ns or ""),
        str(sum(result.stall_ns.values())),
        str(moved),
        checksum(told),
    )


# -- experts
# --------------------------------------------------------------------------------------------------


def experts(number: int) -> Iterator[Row]:
    """Hybrid on mixtures of experts: predictors, caches from too small to ample, and what was
    fetched when.
    """
    layers, count = EXPERTS[number]
    lots = Random(f"{SEED} experts {number}")
    steps = [
        tuple(tuple(lots.sample(range(count), lots.randint(0, 3))) for _ in range(layers))
        for _ in range(4)
    ]
    routing = moe_toy.routing(layers, count, steps)
    for predictor, top, cache, chosen in product(
        ("previous", "popular", "perfect", "none"), (None, 2), (None, 40, 100, 170), (1, 3)
    ):
        graph, hardware = realise(routing, chosen), moe_toy.machine()
        for way, on in (("", hardware), (" pool", _with_pool(hardware))):
            given = graph if not way else replace(graph, tensors=tuple(_in_pool(graph)))
            asked = (
                f"experts-{number}/{chosen}{way}",
                "hybrid",
                json.dumps([predictor, top, cache]),
                "300",
            )
            try:
                plan = policy_named("hybrid").plan(
                    given, on, 300, predictor=predictor, top=top, cache_bytes=cache
                )
            except HosimError as error:
                yield (*asked, "", "", "", str(crc32(str(error).encode())))
                continue
            plan = plan_for(plan, given.derived(canonical))
            fetches: list[Fetch] = []
            assert isinstance(plan.runtime, Deciding)
            makespan, stall, moved, rest = _figures(
                replace(plan, runtime=replace(plan.runtime, fetches=fetches)), on, 300
            )
            yield (*asked, makespan, stall, moved, checksum((rest, fetches)))


def _with_pool(hardware: Hardware) -> Hardware:
    """The machine of the toy with a pool that is read the quicker way over ``ddr``."""
    channels = (Channel("in", "pool", "hbm", 10**8), Channel("up", "pool", "ddr", 10**9))
    return replace(
        hardware,
        tiers=(*hardware.tiers, Tier("pool", 10**6, 10**11)),
        channels=(*hardware.channels, *channels),
    )


def _in_pool(graph: Graph) -> Iterator[Tensor]:
    yield from (
        replace(tensor, home="pool") if tensor.kind == "expert" else tensor
        for tensor in graph.tensors
    )


def _all_rows() -> Iterator[Row]:
    yield from chain.from_iterable(map(rows, INSTANCES))
    yield from chain.from_iterable(map(experts, range(len(EXPERTS))))


TABLE = KeptTable("kept_placements", COLUMNS, _all_rows)
