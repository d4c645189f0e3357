"""The lifetime of each tensor, and the bytes in the device tier with everything resident.

The account is that of a replay in which nothing moves (docs/contract.md): tensors of
:attr:`Graph.initial` are there from the start, a produced one from the start of the op that first
writes it; persistent ones and those of kind ``output`` stay to the end, every other one until its
last user ends; an op's workspace is held while it runs. What no op uses and is at home in a tier
below stays there. It is exact for ops that run in listed order one at a time, so for a single
stream.

Of a graph with ops on other processors (rule 20) it is the account of the device tier: of the
tensors that ops of the device use, each held there from its first user on the device to the last
one, as if the others used copies of their own.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import add
from typing import TYPE_CHECKING, TypeAlias

from hosim.data.columns import NONE
from hosim.graph import KINDS, Graph
from hosim.hardware import Hardware
from hosim.result import WORKSPACE

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Positions: TypeAlias = "npt.NDArray[np.int64]"

USUAL_DEVICE_TIER = "hbm"
"""The name that machines give their device tier. The account of a workload for no machine takes a
home of another name for a tier below.
"""


@dataclass(frozen=True)
class StaticPeak:
    """The largest occupancy of the device tier with everything resident.

    ``op`` is the position of the first op during which it is reached (-1: the graph has no ops, and
    the bytes are those held at time 0). ``breakdown`` has the bytes by kind, kinds with none left
    out, ``workspace`` last. ``residents`` are the tensors held then, largest first.
    """

    bytes: int
    op: int
    breakdown: Mapping[str, int]
    residents: tuple[int, ...]


def needed_bytes(graph: Graph) -> tuple[int, ...]:
    """Bytes that each op needs in the device tier under any plan: what it uses, and its workspace;
    for :meth:`Graph.derived`.

    Ops on other processors hold no device memory.
    """
    sizes = [tensor.size_bytes for tensor in graph.tensors.each()]
    return tuple(
        [
            0 if op.processor else sum([sizes[t] for t in op.uses]) + op.workspace_bytes
            for op in graph.ops
        ]
    )


def idle_below(graph: Graph, device_tier: str = USUAL_DEVICE_TIER) -> frozenset[int]:
    """The tensors that no op uses and that are at home in another tier, where they stay; for
    :meth:`Graph.derived`.
    """
    return frozenset(
        [
            t
            for t in graph.initial
            if (graph.tensors[t].home or device_tier) != device_tier and not graph.users[t]
        ]
    )


def homes_below(graph: Graph, hardware: Hardware) -> dict[int, tuple[str, ...]]:
    """The tensors that the workload puts into tiers below at time 0, each with its tier."""
    tensors = graph.tensors
    return {
        t: (home,)
        for t in graph.initial
        if (home := tensors[t].home) not in (None, hardware.device_tier)
    }


def static_curve(graph: Graph, device_tier: str = USUAL_DEVICE_TIER) -> list[int]:
    """Bytes of the device tier held while each op runs, by op position, with everything
    resident.
    """
    begin, end = held_from_to(graph, device_tier)
    return held_while(
        graph.tensors.column(lambda tensor: tensor.size_bytes),
        begin,
        end,
        [0 if op.processor else op.workspace_bytes for op in graph.ops.each()],
    )


def held_while(
    sizes: Sequence[int], begin: Positions, end: Positions, workspaces: Sequence[int]
) -> list[int]:
    """The bytes held while each op runs: its workspace, and the tensors that are held from an op at
    or before it, ``begin``, up to one after it, ``end``.
    """
    change = [0] * (len(workspaces) + 2)
    for size, since, until in zip(sizes, begin.tolist(), end.tolist(), strict=True):
        change[since] += size
        change[until] -= size
    return list(map(add, accumulate(change), workspaces))


def static_peak(graph: Graph, device_tier: str = USUAL_DEVICE_TIER) -> StaticPeak:
    """The peak of :func:`static_curve`, where it is, and what it consists of."""
    curve = static_curve(graph, device_tier)
    peak = max(curve, default=0)
    op = curve.index(peak) if curve else -1
    at = max(op, 0)
    begin, end = held_from_to(graph, device_tier)
    residents = ((begin <= at) & (at < end)).nonzero()[0].tolist()
    by_kind = dict.fromkeys(KINDS, 0)
    for t in residents:
        by_kind[graph.tensors[t].kind] += graph.tensors[t].size_bytes
    by_kind[WORKSPACE] = (
        graph.ops[op].workspace_bytes if curve and not graph.ops[op].processor else 0
    )
    return StaticPeak(
        bytes=sum(by_kind.values()),
        op=op,
        breakdown={kind: size for kind, size in by_kind.items() if size},
        residents=tuple(sorted(residents, key=lambda t: (-graph.tensors[t].size_bytes, t))),
    )


def held_from_to(
    graph: Graph, device_tier: str = USUAL_DEVICE_TIER, below: Collection[int] = ()
) -> tuple[Positions, Positions]:
    """For each tensor the op position from which the device tier holds it if nothing moves, and the
    one up to which it does: both 0 if it never does, and the second one more than the number of ops
    if it stays there.

    Tensors that start ``below`` come up for their first use and leave after the last one.
    """
    import numpy as np  # here, as it takes longer to import than commands without a graph take

    users, count = graph.compact_users, len(graph.ops)
    first, last = np.array(users.first), np.array(users.last)
    survives, initial = np.array(graph.survives, bool), np.zeros(len(users), bool)
    idle = graph.derived(idle_below, device_tier)
    initial[list(set(graph.initial).difference(idle, below))] = True
    survives[list(below)] = False
    gone = np.zeros(len(users), bool)
    if graph.elsewhere:
        here = [[i for i in listed if not graph.ops[i].processor] for listed in graph.users]
        gone = (first != NONE) & np.array([not listed for listed in here], bool)
        first = np.array([listed[0] if listed else NONE for listed in here], int)
        last = np.array([listed[-1] if listed else NONE for listed in here], int)
    held = (initial | (first != NONE)) & ~gone
    begin = np.where(held & ~initial, first, 0)
    end = np.where(survives | (last == NONE), count + 1, last + 1)
    return begin, np.where(held, end, 0)


_LOSS = re.compile(r"(?:^|\.)(?:logits\.to|log_softmax|nll_loss)(?:\.|$)")
"""Names of ops of the loss in graphs of :mod:`hosim.io.models`."""


def largest_op(graph: Graph) -> tuple[int, bool]:
    """The bytes that the op needs which needs most, and whether its size is a choice of hosim's
    builder and no need of the model.

    That is so of ops with the logits of a loss, which is of all tokens in one piece: runtimes
    compute it in pieces.
    """
    needed = graph.derived(needed_bytes)
    if not needed:
        return 0, False
    largest = max(range(len(needed)), key=needed.__getitem__)
    if graph.meta.get("source") != "hosim.models":
        return needed[largest], False
    of_loss = {t for op in graph.ops if _LOSS.search(op.name) for t in op.uses}
    return needed[largest], any(t in of_loss for t in graph.ops[largest].uses)
