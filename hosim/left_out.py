"""What a model's config asks for and its builder leaves out, such as quantised weights."""

from __future__ import annotations

from hosim.graph import Graph
from hosim.unknown_ops import unknown_ops

LEFT_OUT = "left_out"
"""The key of a graph's ``meta`` under which a line for each of these is, so that every table of the workload can say so."""


def left_out(graph: Graph) -> tuple[str, ...]:
    """A line for each thing that the graph does not have of its model."""
    lines = graph.meta.get(LEFT_OUT)
    return tuple([line for line in lines if isinstance(line, str)]) if isinstance(lines, list | tuple) else ()


def notes(graph: Graph) -> list[tuple[str, str]]:
    """What a reader of the workload's figures has to know, a word and a line each: ops whose FLOP nobody counted, and what is left out."""
    unknown = unknown_ops(graph)
    return [*([("unknown", str(unknown))] if unknown else []), *(("left out", line) for line in left_out(graph))]
