"""A proved lower bound on the makespan of plans for ops on several processors: the exact model of a
relaxed graph.

The exact model knows what is in the device tier, and no other processors. In the relaxed graph ops
on these use no tensors. So what they use takes room only while an op of the device uses it, and
moves by itself: where an op reads on one processor what an op on another one has written, a copy
runs between the two, for as long as the copy takes alone, and on no channel. All else is as in the
graph. So every replay is a solution of the model, which may delay ops and transfers; the haste of
the engine (:mod:`hosim.planner.exact.haste`) is left out, as what waits for the copies that
are left out would break it.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

from hosim.analysis.costmodel import op_durations
from hosim.analysis.costmodel.transfers import alone_ns
from hosim.errors import InputError
from hosim.graph import Graph, Op, Tensor
from hosim.hardware import Hardware
from hosim.planner.exact.constraint_model import Model
from hosim.planner.exact.decision_space import earliest_and_tails, knows_all_starts, space_of
from hosim.planner.exact.exact_schedule import solve_model
from hosim.planner.exact.redundant_constraints import add_redundant_constraints
from hosim.processors import tier_of


def proved_bound_ns(
    graph: Graph,
    hardware: Hardware,
    capacity_bytes: int,
    most_ns: int,
    *,
    limit: float,
    seed: int,
    largest: int,
) -> int:
    """Nanoseconds that every plan of ``graph`` takes, with its processors and order; ``most_ns`` if
    it is proved that none takes less.

    ``limit`` is in deterministic seconds of the solver. 0 where the exact model does not know the
    machine or the graph: with other than one tier below, or one that cannot hold everything,
    channels that share bandwidth, more than ``largest`` possible absences, ops on other processors
    beside several streams of the device, and tensors that may start where the model does not know.
    """
    if graph.elsewhere and len({op.stream for op in graph.ops if not op.processor}) > 1:
        return 0
    durations = op_durations(graph, hardware)
    standin = relaxed(graph, hardware, durations)
    try:
        space = space_of(standin, hardware, op_durations(standin, hardware), capacity_bytes)
    except InputError:
        return 0
    if (
        len(space.lower) != 1
        or space.lower_tight
        or sum(len(movable.absences) for movable in space.movables) > largest
    ):
        return 0
    earliest, tails = earliest_and_tails(space.order, space.durations)
    if (
        max(
            [e + d + t for e, d, t in zip(earliest, space.durations, tails, strict=True)], default=0
        )
        >= most_ns
    ):
        return most_ns
    if not knows_all_starts(standin, hardware):
        return 0
    model = Model(space, min(space.horizon_ns, most_ns))
    add_redundant_constraints(model)
    outcome = solve_model(model, limit, seed)
    return most_ns if outcome.infeasible else min(most_ns, outcome.bound_ns)


def relaxed(graph: Graph, hardware: Hardware, durations: Sequence[int]) -> Graph:
    """A graph for the device alone, of which some plan takes no longer than the best one of
    ``graph``; ``graph`` if it is one.

    ``durations`` are those of the ops of ``graph``, whose device has one stream.
    """
    if not graph.elsewhere:
        return graph
    shared = {t for i in graph.elsewhere for t in graph.ops[i].uses}
    streams = {stream: f"stream {k}" for k, stream in enumerate(graph.streams)}
    ops: list[Op] = []
    place: list[int] = []
    for i, op in enumerate(graph.ops):
        after = {place[p] for p in graph.producers[i]}
        for copy_ns, writer in _copies(graph, hardware, i):
            name = f"copy {len(ops)}"  # which no op has: the others' names begin otherwise
            ops.append(Op(name, "copy", deps=(place[writer],), stream=name, duration_ns=copy_ns))
            after.add(len(ops) - 1)
        place.append(len(ops))
        bare = Op(
            f"op {i}",
            op.kind,
            deps=tuple(sorted(after)),
            stream=streams[op.stream],
            duration_ns=durations[i],
        )
        if not op.processor:
            own = op.without(shared)
            beside = sum([graph.tensors[t].size_bytes for t in op.uses if t in shared])
            bare = replace(
                bare,
                inputs=own.inputs,
                outputs=own.outputs,
                mutates=own.mutates,
                workspace_bytes=op.workspace_bytes + beside,
            )
        ops.append(bare)
    tensors = [Tensor(x.name, 0) if t in shared else x for t, x in enumerate(graph.tensors)]
    return Graph(graph.name, tuple(tensors), tuple(ops))


def _copies(graph: Graph, hardware: Hardware, i: int) -> list[tuple[int, int]]:
    """The copies that op ``i`` waits for, as what another processor has written: nanoseconds at
    least, and the op that wrote it.
    """
    to, longest = tier_of(graph.ops[i], hardware), dict[int, int]()
    for t in graph.ops[i].reads:
        before = bisect_left(graph.writers[t], i)
        if not before:
            continue
        writer = graph.writers[t][before - 1]
        source = tier_of(graph.ops[writer], hardware)
        if source != to:
            size = graph.tensors[t].size_bytes
            leaves = [
                alone_ns(hardware, c.name, size) for c in hardware.channels if c.source == source
            ]
            comes = [
                alone_ns(hardware, c.name, size) for c in hardware.channels if c.destination == to
            ]
            if leaves and comes:  # whatever the route
                longest[writer] = max(longest.get(writer, 0), min(leaves), min(comes))
    return [(copy_ns, writer) for writer, copy_ns in longest.items()]
