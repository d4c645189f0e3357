"""Ops that nobody needs the results of: torch stops recomputing at the last tensor that its
backward pass uses.
"""

from __future__ import annotations

from dataclasses import replace

from hosim.graph import Graph


def without_idle(graph: Graph, prefix: str) -> Graph:
    """The graph without the ops whose names begin with ``prefix``, whose results nobody uses, and
    that nobody waits for.
    """
    needed, awaited = bytearray(len(graph.tensors)), bytearray(len(graph.ops))
    keep = []
    for i in reversed(range(len(graph.ops))):
        op = graph.ops[i]
        if (
            op.name.startswith(prefix)
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
    ops = tuple(
        [replace(graph.ops[i], deps=tuple([number[d] for d in graph.ops[i].deps])) for i in number]
    )
    used = sorted(
        {t for op in ops for t in op.uses}
        | {t for t, tensor in enumerate(graph.tensors) if tensor.persistent}
    )
    place = {t: i for i, t in enumerate(used)}

    def moved(listed: tuple[int, ...]) -> tuple[int, ...]:
        return tuple([place[t] for t in listed])

    tensors = tuple(graph.tensors[t] for t in used)
    return Graph(
        graph.name,
        tensors,
        tuple(
            replace(
                op, inputs=moved(op.inputs), outputs=moved(op.outputs), mutates=moved(op.mutates)
            )
            for op in ops
        ),
        graph.meta,
    )
