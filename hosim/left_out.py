"""What a model's config asks for and its builder leaves out, such as quantised weights."""

from __future__ import annotations

from hosim.costmodel.guessed_collectives import guessed_collectives_line
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.unknown_ops import unknown_ops

LEFT_OUT = "left_out"
"""The key of a graph's ``meta`` under which a line for each of these is, so that every table of the workload can say so."""


def left_out(graph: Graph) -> tuple[str, ...]:
    """A line for each thing that the graph does not have of its model."""
    lines = graph.meta.get(LEFT_OUT)
    return tuple([line for line in lines if isinstance(line, str)]) if isinstance(lines, list | tuple) else ()


def notes(graph: Graph, *machines: Hardware) -> list[tuple[str, str]]:
    """What a reader of the workload's figures has to know, a word and a line each.

    Ops whose FLOP nobody counted, what is left out, and the collectives whose time on a machine is a guess.
    """
    unknown = unknown_ops(graph)
    found = [*([("unknown", str(unknown))] if unknown else []), *(("left out", line) for line in left_out(graph))]
    for machine in machines:
        guessed = guessed_collectives_line(graph, machine)
        if guessed is not None:
            found.append(("guessed", guessed if len(machines) == 1 else f"on {machine.name}, {guessed}"))
    return found
