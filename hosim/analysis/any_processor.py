"""A workload as if each op that may run on several processors ran beside all others, on the fastest of them, with its tensors at hand.

No plan does better than the best plan of that, whatever processors it chooses: such an op waits for its producers alone, and whatever it
uses takes no room and never moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hosim.costmodel.op_time import op_durations
from hosim.edits import on_processors
from hosim.graph import Graph, Op
from hosim.hardware import Hardware
from hosim.processors import others_of


def on_any_processor(graph: Graph, durations: Sequence[int], hardware: Hardware) -> tuple[Graph, list[int]]:
    """The relaxed workload, and its durations; ``durations`` are those on the processors that the ops name."""
    least = list(durations)
    for known in durations_by_processor(graph, hardware).values():
        for i, duration in known.items():
            least[i] = min(least[i], duration)
    free, loose = set(graph.movable), {t for i in graph.movable for t in graph.ops[i].uses}
    ops = []
    for i, op in enumerate(graph.ops):
        before = tuple(graph.producers[i])
        if i in free:
            ops.append(Op(op.name, op.kind, deps=before, stream=f"{op.name} on any processor", duration_ns=least[i], dtype=op.dtype))
        else:
            own = [tuple([t for t in listed if t not in loose]) for listed in (op.inputs, op.outputs, op.mutates)]
            ops.append(replace(op, inputs=own[0], outputs=own[1], mutates=own[2], deps=before))
    return Graph(graph.name, graph.tensors, tuple(ops), graph.meta), least


def durations_by_processor(graph: Graph, hardware: Hardware) -> dict[str, dict[int, int]]:
    """Nanoseconds of each op that may run on several processors, by processor (``""``: the device) and position."""
    may = {i: (graph.ops[i].processor, *others_of(graph.ops[i], hardware)) for i in graph.movable}
    found = {}
    for processor in sorted({name for names in may.values() for name in names}):
        there = [i for i, names in may.items() if processor in names]
        durations = op_durations(on_processors(graph, [(graph.ops[i].name, processor) for i in there]), hardware)
        found[processor] = {i: durations[i] for i in there}
    return found
