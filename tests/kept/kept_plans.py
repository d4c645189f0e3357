"""The plans of every policy for drawn instances, a row each: what they move, in which order, and
how long their replays take.

No rule says which plan is the best found; these rows say when one becomes another. After a change
that is meant to alter plans::

    python tests/kept/write.py kept_plans

writes the table anew; the difference then shows which plans are faster and which are slower.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from zlib import crc32

from instances import instance
from kept_table import KeptTable, Row

from hosim.engine import replay
from hosim.errors import InfeasibleError
from hosim.policies import own, policy_named

COLUMNS = (
    "instance",
    "policy",
    "budget_bytes",
    "makespan_ns",
    "peak_bytes",
    "stall_ns",
    "cache_ops",
    "checksum",
)
SEED = 7
INSTANCES = range(24)
POLICIES = (
    "belady",
    "distance",
    "g10",
    "layerwise",
    "longest_gap",
    "lookahead",
    "memory_peak",
    "on_demand",
)
EFFORT = 1.0
"""Of hyperoffload: some dozen replays."""


def plans(number: int) -> Iterator[Row]:
    """The rows of one instance."""
    drawn = instance(number, SEED)
    graph, hardware, budget = drawn.graph, drawn.hardware, drawn.budget_bytes

    def searched(**how: bool) -> object:
        given = {"reorder": False, "recompute": False} | how
        return own.plan(graph, hardware, budget, effort=EFFORT, seed=1, **given)

    ways = {
        name: lambda name=name: policy_named(name).plan(graph, hardware, budget)
        for name in POLICIES
    }
    ways |= {"hyperoffload": searched, "hyperoffload reorder": lambda: searched(reorder=True)}
    ways |= {"hyperoffload recompute": lambda: searched(recompute=True)}
    for name, make in ways.items():
        asked = (drawn.name, name, str(budget))
        try:
            plan = make()
        except InfeasibleError:
            yield (*asked, "", "", "", "", "")
            continue
        result = replay(plan, hardware, budget)
        moved = [
            (c.op, plan.graph.tensors[c.tensor].name, c.source, c.destination, c.after)
            for c in plan.cache_ops
        ]
        text = json.dumps([moved, sorted(plan.initial.items()), [op.name for op in plan.graph.ops]])
        figures = (
            result.makespan_ns,
            result.peak_bytes[hardware.device_tier],
            sum(result.stall_ns.values()),
            len(moved),
            crc32(text.encode()),
        )
        yield (*asked, *("" if figure is None else str(figure) for figure in figures))


TABLE = KeptTable("kept_plans", COLUMNS, lambda: chain.from_iterable(map(plans, INSTANCES)))
