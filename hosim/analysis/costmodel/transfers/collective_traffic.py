"""Collectives between devices: which devices meet in one, and what it sends over links
(docs/contract.md, rule 19).
"""

from collections.abc import Mapping

from hosim.edits import COLLECTIVE_KINDS
from hosim.graph import Graph, Op
from hosim.hardware import Fabric, Hardware

_ONE_SIDED = frozenset({"wait_tensor", "send", "recv"})
"""Kinds of collectives whose other side is another program, which no device of the replay runs, or
that wait for one already under way.
"""

PASSES: Mapping[str, int] = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}
"""The number of times that each rank sends its share of the others' bytes, by class of kernels."""

_SILENT = frozenset({"wait_tensor", "barrier"})

EVERYONE = 0
"""Ranks of a collective that does not say how many there are."""


def meeting_ranks(graph: Graph) -> dict[int, int]:
    """The ops for which several devices have to come together, by position: how many of them, or
    :data:`EVERYONE`.
    """
    meeting = COLLECTIVE_KINDS - _ONE_SIDED
    return {i: _ranks(graph.ops[i]) for i in graph.ops.those(lambda op: op.kind in meeting)}


def first_of_group(ranks: int, device: int) -> int:
    """The first of the devices that meet in a collective: of n ranks, n devices that follow one
    another.
    """
    return device // ranks * ranks if ranks else 0


def _ranks(op: Op) -> int:
    return op.sizes[0] if op.kernel in PASSES or op.kernel == "custom_all_reduce" else EVERYONE


def sent_bytes(graph: Graph, hardware: Hardware) -> dict[int, int]:
    """The bytes that a device sends in each collective, by position, where the machine has links
    that they cross with copies.

    Those of a class of kernels say it by their sizes; a ``send`` by what it reads and a ``recv`` by
    what it writes; one without tensors by the bytes of its message.
    """
    if not crossed_fabrics(hardware):
        return {}
    found = {
        i: _sent(graph, graph.ops[i])
        for i in graph.ops.those(lambda op: op.kind in COLLECTIVE_KINDS)
    }
    return {i: size for i, size in found.items() if size}


def crossed_fabrics(hardware: Hardware) -> list[Fabric]:
    """The links of a machine that collectives cross with copies."""
    return [fabric for fabric in hardware.fabrics if fabric.collectives]


def bytes_per_s_over_links(hardware: Hardware) -> int | None:
    """Return the bytes per second that a device sends in collectives when all devices do, over the
    slowest fabric that they cross; None: they cross none.
    """
    parts = [
        fabric.bandwidth_bytes_per_s // hardware.sharers(fabric.scope) // fabric.collectives
        for fabric in crossed_fabrics(hardware)
    ]
    return max(1, min(parts)) if parts else None


def _sent(graph: Graph, op: Op) -> int:
    if op.kernel in PASSES:
        ranks, size = op.sizes
        return PASSES[op.kernel] * size * (ranks - 1) // ranks
    if op.kernel == "custom_all_reduce":
        ranks, size = op.sizes
        return size * (ranks - 1)
    # a message of so many bytes, of which the file has no tensor; among many ranks each sends it
    # all
    if not op.uses:
        return PASSES.get(op.kind, 0 if op.kind in _SILENT else 1) * op.bytes_accessed
    crossing = {"send": op.reads, "recv": op.writes}.get(op.kind, ())
    return sum([graph.tensors[t].size_bytes for t in crossing])
