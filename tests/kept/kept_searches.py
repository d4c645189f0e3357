"""The planner from end to end where kept_passes.py does not go: two streams, several tiers, links
that are shared, placement rules.

A row for each way to ask. After a change that is
meant to alter plans::

    python tests/kept/write.py kept_searches

writes the table anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from itertools import chain
from random import Random
from zlib import crc32

from instances import instance
from kept_placements import detour, housed
from kept_streams import machine, two_streams
from kept_table import KeptTable, Row, checksum

from hosim.cache_plan import Plan
from hosim.engine import replay
from hosim.errors import HosimError
from hosim.graph import Graph
from hosim.hardware import Fabric, Hardware
from hosim.planner.hyperoffload import Judgement, search
from hosim.planner.hyperoffload.explanations import explain
from hosim.planner.schedule.tiers_below import read_placement
from hosim.policies import own

COLUMNS = (
    "instance",
    "machine",
    "asked",
    "makespan_ns",
    "stall_ns",
    "moved_bytes",
    "origin",
    "checksum",
)
SEED = 43
INSTANCES = range(9)
EFFORT = 1.0


def shared(graph: Graph) -> Hardware:
    """The machine of kept_streams.py, its links half duplex, with two engines up, and memories that
    copies and ops share.
    """
    plain = machine(graph)
    channels = tuple(replace(c, engines=2) if c.name == "h2d" else c for c in plain.channels)
    return replace(
        plain, channels=channels, fabrics=(Fabric("half duplex", 11 * 10**8, ("h2d", "d2h")),)
    )


MACHINES: tuple[Callable[[Graph], Hardware], ...] = (machine, shared, detour)


def rows(number: int) -> Iterator[Row]:
    """The rows of one instance."""
    drawn = instance(number, SEED)
    made = MACHINES[number % 3]
    base = two_streams(drawn.graph) if number % 2 else drawn.graph
    graph = housed(base, Random(f"{SEED} {number}"), ("nvme",)) if number % 4 < 2 else base
    hardware = made(graph)
    if number % 5 == 4:
        graph = Graph(
            graph.name,
            graph.tensors,
            tuple(replace(op, bytes_accessed=(op.duration_ns or 0) * 7 // 9) for op in graph.ops),
        )
    tight = drawn.budget_bytes * 5 // 4

    def found(budget: int, rule: str | None = None) -> Plan:
        placement = None if rule is None else read_placement(rule, hardware)
        return search(graph, hardware, budget, effort=EFFORT, seed=number, placement=placement).plan

    def asked(reorder: bool, recompute: bool) -> Plan:
        return own.plan(
            graph,
            hardware,
            tight,
            effort=EFFORT / 2,
            seed=number,
            reorder=reorder,
            recompute=recompute,
        )

    ways: dict[str, tuple[int, Callable[[], Plan]]] = {
        "tight": (tight, lambda: found(tight)),
        "roomy": (2 * tight, lambda: found(2 * tight)),
        "balanced": (tight, lambda: found(tight, "balanced")),
        "by kind": (tight, lambda: found(tight, "by_kind/activation=nvme")),
        "rivals": (tight, lambda: asked(False, False)),
        "edits": (tight, lambda: asked(True, True)),
    }
    for how, (budget, make) in ways.items():
        try:
            figures = _figures(make(), hardware, budget)
        except HosimError as error:
            figures = ("", "", "", "", str(crc32(str(error).encode())))
        yield (f"{drawn.name}/{len(graph.streams)}", made.__name__, how, *figures)


def _figures(plan: Plan, hardware: Hardware, budget: int) -> tuple[str, ...]:
    result = replay(plan, hardware, budget)
    told = explain(plan, hardware, budget)
    judgement = plan.judgement
    origin = judgement.source if isinstance(judgement, Judgement) else ""
    explained = [
        getattr(told, field.name)
        for field in fields(told)
        if field.name not in ("plan", "hardware", "result", "judgement")
    ]
    rest = (
        plan.cache_ops,
        sorted(plan.initial.items()),
        [op.name for op in plan.graph.ops],
        explained,
    )
    moved = sum(c.bytes for c in result.channels.values())
    return (
        str(result.makespan_ns),
        str(sum(result.stall_ns.values())),
        str(moved),
        origin,
        checksum(rest),
    )


TABLE = KeptTable("kept_searches", COLUMNS, lambda: chain.from_iterable(map(rows, INSTANCES)))
