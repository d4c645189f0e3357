"""Computation and copies that use the same memory: what copies leave of it to an op, and what the
memories leave to copies.

A copy that flows at r bytes per second takes r of the bandwidth of both its tiers. With b the time
of an op, launch aside, and m the bytes that it accesses, it uses m / b, which is no more than the
device tier's bandwidth. What kernels reach of that bandwidth is its share by their efficiency, or
what this op uses if that is more. Of it they lose a part while copies flow
(``Compute.beside_copies``): all of this part if they only read, less if they write, and none if
half of their bytes are results. They have what the copies leave of the rest. So the op takes longer
where this is less than it uses. Copies come first: they do not slow down for ops, and ops not for
one another.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from hosim.analysis.costmodel.op_time import kernel_times_of, op_durations
from hosim.analysis.costmodel.peaks import efficiency_for
from hosim.graph import Graph
from hosim.hardware import Fabric, Hardware

_NS_PER_S = 10**9

HELD_BYTES_PER_S = 10**30
"""The part of the bandwidth of ops that a copy by the device's own processor takes: more than there
is (docs/contract.md, rule 22).
"""


@dataclass(frozen=True, slots=True, eq=False)
class MemoryUse:
    """Ops that copies slow down alike: ``launch_ns`` of their time, which they do not, and bytes
    per second of the device tier.

    Told apart by identity, which is what makes looking one up quick.
    """

    launch_ns: int
    used: Fraction
    """The bandwidth that the op uses at full speed."""
    reached: Fraction
    """The bandwidth that ops and copies reach together while copies flow."""

    def slowdown(self, taken_bytes_per_s: Fraction) -> Fraction | None:
        """By what factor the op takes longer where copies take so much; ``None``: it cannot go
        on.
        """
        if not taken_bytes_per_s:
            return Fraction(1)
        left = self.reached - taken_bytes_per_s
        return max(Fraction(1), self.used / left) if left > 0 else None


def with_memories(hardware: Hardware) -> Hardware:
    """The machine on which transfers also share the bandwidth of each memory that they read or
    write, as if it were a fabric.
    """
    memories = [
        Fabric(
            f"memory of {tier.name}",
            tier.bandwidth_bytes_per_s,
            tuple(c.name for c in hardware.channels if tier.name in (c.source, c.destination)),
            hardware.tier_scope(tier.name),
        )
        for tier in hardware.tiers
    ]
    return replace(hardware, fabrics=(*hardware.fabrics, *memories))


def copies_compete(graph: Graph) -> bool:
    """Return whether copies share the bandwidth of memories in a replay of the graph: by default
    where it is known what some op uses of it.

    That is so if its time is the cost model's, or was measured and the op says which bytes it
    accesses.
    """
    return any([op.duration_ns is None or op.bytes_accessed for op in graph.ops.alike])


def machine_of_copies(graph: Graph, hardware: Hardware, compete: bool | None = None) -> Hardware:
    """The machine as the copies of a replay of the graph find it; routes are chosen by it. That by
    default is kept with the graph.

    ``compete`` says whether copies share the bandwidth of memories, as in
    :func:`hosim.engine.replay`.
    """
    if compete is None:
        return graph.derived_on(hardware, _machine_of_copies)
    return with_memories(hardware) if compete else hardware


def _machine_of_copies(graph: Graph, hardware: Hardware) -> Hardware:
    return with_memories(hardware) if graph.derived(copies_compete) else hardware


def memory_uses(graph: Graph, hardware: Hardware, durations: Sequence[int]) -> dict[int, MemoryUse]:
    """The ops that copies can slow down, by position; ``durations`` are nanoseconds by op position,
    as alone.

    An op that uses memory bandwidth but leaves enough for all channels of the device tier does not
    count. Those of :func:`~hosim.analysis.costmodel.op_time.op_durations` are kept with the graph.
    """
    return (
        graph.derived_on(hardware, _uses_alone)
        if durations is op_durations(graph, hardware)
        else _all_uses(graph, hardware, durations)
    )


def _uses_alone(graph: Graph, hardware: Hardware) -> dict[int, MemoryUse]:
    return _all_uses(graph, hardware, op_durations(graph, hardware))


def _all_uses(graph: Graph, hardware: Hardware, durations: Sequence[int]) -> dict[int, MemoryUse]:
    uses = _uses_at(graph, hardware, durations, "")
    for processor in dict.fromkeys([graph.ops[i].processor for i in graph.elsewhere]):
        uses |= _uses_at(graph, hardware, durations, processor)
    return uses


def copy_uses(
    graph: Graph, hardware: Hardware, durations: Sequence[int], competes: bool
) -> dict[int, MemoryUse]:
    """The ops of a replay that copies can slow down or hold, by position.

    ``competes``: those of :func:`memory_uses`. Where a tier has no DMA, all that run on the device
    and take longer than their launch.
    """
    uses = memory_uses(graph, hardware, durations) if competes else {}
    if not any(hardware.copied_by_ops):
        return uses
    uses = uses.copy()
    kernels = kernel_times_of(graph, hardware)
    held: dict[int, MemoryUse] = {}
    for i, op in enumerate(graph.ops.each()):
        launch = hardware.compute.launch_ns if op.duration_ns is None and i not in kernels else 0
        if not op.processor and durations[i] > launch:
            uses.setdefault(
                i,
                held.setdefault(
                    launch, MemoryUse(launch, Fraction(0), Fraction(HELD_BYTES_PER_S, 2))
                ),
            )
    return uses


def _uses_at(
    graph: Graph, hardware: Hardware, durations: Sequence[int], processor: str
) -> dict[int, MemoryUse]:
    """Those of one processor's ops: the device's, or that of the tier named."""
    tier = processor or hardware.device_tier
    there = hardware.fair_share.tiers[
        hardware.tier_index[tier]
    ]  # the device tier is each device's own
    bandwidth = there.bandwidth_bytes_per_s
    compute = there.compute if processor else hardware.compute
    assert compute is not None  # durations have been asked for before
    lost = 1 - Fraction(str(compute.beside_copies))
    copies = sum(
        c.bandwidth_bytes_per_s for c in hardware.channels if tier in (c.source, c.destination)
    )
    uses = {}
    known: dict[
        tuple[int, int, int, int, str, str], MemoryUse | None
    ] = {}  # layers have the same ops again and again
    kernels = kernel_times_of(graph, hardware)
    for i, op in enumerate(graph.ops.each()):
        if op.processor != processor:
            continue
        launch = compute.launch_ns if op.duration_ns is None and i not in kernels else 0
        busy = durations[i] - launch
        if busy > 0 and op.bytes_accessed:
            made = sum([graph.tensors[t].size_bytes for t in graph.ops[i].outputs]) if lost else 0
            key = launch, busy, op.bytes_accessed, made, op.kind, op.dtype
            if key in known:
                use = known[key]
            else:
                efficiency = efficiency_for(compute, op.kind, op.dtype)
                used = min(Fraction(bandwidth), Fraction(op.bytes_accessed * _NS_PER_S, busy))
                reading = max(Fraction(0), 1 - Fraction(2 * made, op.bytes_accessed))
                reached = max(bandwidth * efficiency, used) * (1 - lost * reading)
                known[key] = use = (
                    MemoryUse(launch, used, reached) if used > reached - copies else None
                )
            if use is not None:
                uses[i] = use
    return uses
