"""A workload as if each op that may run on several processors ran beside all others, on the fastest
of them, with its tensors at hand.

No plan does better than the best plan of that, whatever processors it chooses: such an op waits for
its producers alone, and whatever it uses takes no room and never moves.
"""

from collections.abc import Sequence
from dataclasses import replace

from hosim.analysis.costmodel import op_durations
from hosim.edits import on_processors
from hosim.graph import Graph, Op
from hosim.hardware import Hardware
from hosim.processors import others_of


def on_any_processor(
    graph: Graph, durations: Sequence[int], hardware: Hardware
) -> tuple[Graph, list[int]]:
    """The relaxed workload, and its durations; ``durations`` are those on the processors that the
    ops name.
    """
    least = least_durations(graph, durations, hardware)
    return loosened(graph, least, graph.movable), least


def least_durations(graph: Graph, durations: Sequence[int], hardware: Hardware) -> list[int]:
    """Nanoseconds of each op on the processor where it takes the least; ``durations`` are those on
    the processors that the ops name.
    """
    least = list(durations)
    for known in durations_by_processor(graph, hardware).values():
        for i, duration in known.items():
            least[i] = min(least[i], duration)
    return least


def loosened(graph: Graph, durations: Sequence[int], loose: Sequence[int]) -> Graph:
    """``graph`` where some ops, and all others that use a tensor of theirs, do so without needing
    it anywhere.

    Those of ``loose`` that run on the device have a stream of their own, others that of their
    processor.
    """
    free, known = set(loose), {t for i in loose for t in graph.ops[i].uses}
    ops = []
    for i, op in enumerate(graph.ops):
        before = tuple(graph.producers[i])
        if i in free:
            stream = op.stream if op.processor and not op.also_on else f"{op.name} on any processor"
            ops.append(
                Op(
                    op.name,
                    op.kind,
                    deps=before,
                    stream=stream,
                    duration_ns=durations[i],
                    dtype=op.dtype,
                )
            )
        else:
            ops.append(replace(op.without(known), deps=before))
    return Graph(graph.name, graph.tensors, tuple(ops), graph.meta)


def durations_by_processor(graph: Graph, hardware: Hardware) -> dict[str, dict[int, int]]:
    """Nanoseconds of each op that may run on several processors, by processor (``""``: the device)
    and position.
    """
    may = {i: (graph.ops[i].processor, *others_of(graph.ops[i], hardware)) for i in graph.movable}
    found = {}
    for processor in sorted({name for names in may.values() for name in names}):
        there = [i for i, names in may.items() if processor in names]
        durations = op_durations(
            on_processors(graph, [(graph.ops[i].name, processor) for i in there]), hardware
        )
        found[processor] = {i: durations[i] for i in there}
    return found


def fits_on(graph: Graph, i: int, processor: str, hardware: Hardware, capacity_bytes: int) -> bool:
    """Return whether what op ``i`` needs at once fits into the tier of a processor;
    ``capacity_bytes`` is that of the device tier.
    """
    room = (
        hardware.tiers[hardware.tier_index[processor]].capacity_bytes
        if processor
        else capacity_bytes
    )
    op = graph.ops[i]
    return sum([graph.tensors[t].size_bytes for t in op.uses]) + op.workspace_bytes <= room
