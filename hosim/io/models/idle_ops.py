"""Ops that nobody needs the results of: torch stops recomputing at the last tensor that its
backward pass uses.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from hosim.graph import Graph, Op


def without_idle(graph: Graph, prefix: str, wanted: Collection[str] = ()) -> Graph:
    """The graph without the ops whose names begin with ``prefix``, whose results nobody uses, and
    that nobody waits for. Ops without results stay. ``wanted`` are tensors that are used later.
    """
    needed, awaited = bytearray(len(graph.tensors)), bytearray(len(graph.ops))
    for name in wanted:
        needed[graph.tensor_index[name]] = 1
    keep = []
    for i in reversed(range(len(graph.ops))):
        op = graph.ops[i]
        if (
            op.name.startswith(prefix)
            and op.writes
            and not awaited[i]
            and not any([needed[t] for t in op.writes])
        ):
            continue
        keep.append(i)
        for t in op.reads:
            needed[t] = 1
        for d in op.deps:
            awaited[d] = 1
    if len(keep) == len(graph.ops):
        return graph
    number = {i: n for n, i in enumerate(reversed(keep))}
    used = sorted(
        {t for i in keep for t in graph.ops[i].uses}
        | {t for t, tensor in enumerate(graph.tensors) if tensor.persistent}
    )
    place = {t: i for i, t in enumerate(used)}

    def moved(op: Op) -> Op:
        inputs, outputs, mutates = [
            tuple([place[t] for t in part]) for part in (op.inputs, op.outputs, op.mutates)
        ]
        deps = tuple([number[d] for d in op.deps])
        return replace(op, inputs=inputs, outputs=outputs, mutates=mutates, deps=deps)

    return Graph(
        graph.name,
        tuple([graph.tensors[t] for t in used]),
        tuple([moved(graph.ops[i]) for i in number]),
        graph.meta,
    )
