"""Ops that nobody needs the results of: torch stops recomputing at the last tensor that its backward pass uses."""

from __future__ import annotations

from dataclasses import replace

from hosim.graph import Graph


def without_idle(graph: Graph, prefix: str) -> Graph:
    """The graph without the ops whose names begin with ``prefix`` and whose results nobody uses."""
    needed = bytearray(len(graph.tensors))
    keep = []
    for op in reversed(graph.ops):
        if op.name.startswith(prefix) and not any([needed[t] for t in op.writes]):
            continue
        keep.append(op)
        for t in op.reads:
            needed[t] = 1
    if len(keep) == len(graph.ops):
        return graph
    ops = tuple(reversed(keep))
    used = sorted({t for op in ops for t in op.uses} | {t for t, tensor in enumerate(graph.tensors) if tensor.persistent})
    place = {t: i for i, t in enumerate(used)}

    def moved(listed: tuple[int, ...]) -> tuple[int, ...]:
        return tuple([place[t] for t in listed])

    tensors = tuple(graph.tensors[t] for t in used)
    return Graph(
        graph.name,
        tensors,
        tuple(replace(op, inputs=moved(op.inputs), outputs=moved(op.outputs), mutates=moved(op.mutates)) for op in ops),
        graph.meta,
    )
