"""Schedules for drawn activation traces of hyper-parallel, a row for each trace, policy and limit.

After a change that is meant to alter one::

    python tests/kept/write.py kept_schedules

writes the table anew. A schedule that is refused has its message in place of figures.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import astuple
from typing import Any
from zlib import crc32

from kept_table import KeptTable, Row

from hosim.analysis import static_peak
from hosim.errors import InfeasibleError
from hosim.formats import graph_of, read_document
from hosim.formats.bridges import plan_trace
from hosim.io import workload_to_dict

COLUMNS = (
    "trace",
    "graph",
    "limit_bytes",
    "host_bytes",
    "actions",
    "copies",
    "checksum",
    "peak_bytes",
    "makespan_ns",
    "stall_ns",
)
TRACES = [f"trace{n}" for n in range(30)]
POLICIES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("hyperoffload", {"effort": 0.2}),
    ("hyperoffload", {"effort": 0.1}),
    ("longest_gap", {}),
    ("g10", {}),
    ("memory_peak", {"prefetch_distance": 2}),
    ("distance", {"prefetch_distance": 2, "select_distance": 2}),
)
NAMES = ("mm.default", "aten.add_.Tensor", "relu_backward.default", "x" * 120)


def drawn(trace: str) -> dict[str, Any]:
    """A trace of up to 16 ops, most of which make a storage and use earlier ones; storage 0 is
    there from the start.
    """
    lots = random.Random(trace)
    sizes = {0: 7 << 20}
    ops: list[dict[str, Any]] = []
    for i in range(lots.randint(8, 16)):
        used = lots.sample(sorted(sizes), min(len(sizes), lots.choice((0, 1, 1, 2))))
        accesses = [
            (sid, kind)
            for sid in used
            for kind in lots.choice((["READ"], ["READ"], ["WRITE"], ["READ", "WRITE"]))
        ]
        for size in lots.choice(((), (9,), (16,), (25,), (40,), (12, 0))):
            sizes[len(sizes)] = size << 20
            accesses.append((len(sizes) - 1, "WRITE"))
        listed = [{"op_id": i, "storage_id": sid, "kind": kind} for sid, kind in accesses]
        ops.append(
            {
                "name": lots.choice(NAMES),
                "duration_ms": lots.choice((0, 0.5, 1.0, 2.25)),
                "accesses": listed,
            }
        )
    rates = {f"{way}_bandwidth_gbps": lots.choice((4, 8.5, 16.0)) for way in ("h2d", "d2h")}
    retained = lots.sample(sorted(sizes), lots.choice((0, 1, 2)))
    return {
        "ops": ops,
        "storage_sizes": {str(sid): size for sid, size in sizes.items()},
        "retained_sids": retained,
        "memory_limit_bytes": None,
        **rates,
    }


def rows(trace: str) -> Iterator[Row]:
    """The rows of one trace: without a limit, and under each policy within a limit that is drawn
    from between need and peak.
    """
    document = drawn(trace)
    sizes = document["storage_sizes"]
    graph = graph_of(read_document(document), trace)
    checksum = str(crc32(json.dumps(workload_to_dict(graph)).encode()))
    need = max(
        sum(sizes[sid] for sid in {str(a["storage_id"]) for a in op["accesses"]})
        for op in document["ops"]
    )
    room = static_peak(graph).bytes - need
    lots = random.Random(f"limits of {trace}")
    yield _row(trace, checksum, document, None, 1 << 30, "hyperoffload", {})
    for policy, parameters in POLICIES:
        limit = need + room * lots.randint(2, 9) // 10
        yield _row(
            trace,
            checksum,
            document,
            limit,
            lots.choice((1 << 30, 1 << 30, 40 << 20)),
            policy,
            parameters,
        )


def _row(
    trace: str,
    graph: str,
    document: dict[str, Any],
    limit: int | None,
    host: int,
    policy: str,
    parameters: dict[str, Any],
) -> Row:
    name = (f"{trace}/{policy}", graph, str(limit), str(host))
    try:
        planned = plan_trace(
            read_document({**document, "memory_limit_bytes": limit}), policy, host, **parameters
        )
    except InfeasibleError as error:
        return (*name, str(error)[:60])
    actions = [astuple(action) for action in planned.actions]
    copies = sum(action.kind.startswith("COPY") for action in planned.actions)
    result = planned.result
    figures = (
        (result.peak_bytes["hbm"], result.makespan_ns, result.stall_ns["transfer"])
        if result
        else ()
    )
    checksum = crc32(
        json.dumps(
            [actions, [astuple(op) for op in planned.plan.cache_ops], planned.plan.policy]
        ).encode()
    )
    return (*name, str(len(actions)), str(copies), str(checksum), *map(str, figures))


TABLE = KeptTable(
    "kept_schedules", COLUMNS, lambda: (row for trace in TRACES for row in rows(trace))
)
"""The table."""
