"""A graph whose device ops change in place what they would overwrite.

An update that may run on either processor writes a parameter without reading it. So nobody wants
its contents between its last reader and the update. Planners do worse with such tensors than with
those that stay and change, as in a step whose optimizer only runs on the device. Where a plan for
the changed graph also holds for the graph itself, which the verifier says, it is a plan for it, if
one that keeps more than it has to. The changed graph is never replayed.
"""

from __future__ import annotations

from dataclasses import replace

from hosim.graph import Graph


def updated_in_place(graph: Graph) -> Graph:
    """``graph`` where ops of the device read what they overwrite; ``graph`` itself if there are
    none.

    >>> from hosim.graph import GraphBuilder
    >>> b = GraphBuilder("toy")
    >>> _ = (
    ...     b.tensor("g", 10, "input"),
    ...     b.tensor("w", 40, "parameter"),
    ...     b.op("u", "optimizer", inputs=["g"], outputs=["w"]),
    ... )
    >>> op = updated_in_place(b.build()).ops[0]
    >>> op.outputs, op.mutates
    ((), (1,))
    """
    there, ops = set(graph.initial), []
    for op in graph.ops:
        again = [] if op.processor else [t for t in op.outputs if t in there]
        if again:
            op = replace(
                op,
                outputs=tuple([t for t in op.outputs if t not in again]),
                mutates=(*again, *op.mutates),
            )
        there.update(op.outputs)
        ops.append(op)
    return (
        Graph(graph.name, graph.tensors, tuple(ops), graph.meta)
        if tuple(ops) != graph.ops
        else graph
    )
