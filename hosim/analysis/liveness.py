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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from hosim.graph import KINDS, Graph
from hosim.hardware import Hardware
from hosim.result import WORKSPACE

USUAL_DEVICE_TIER = "hbm"
"""What machines call their device tier: the account of a workload for no machine takes a home of
another name for a tier below.
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


def live_ranges(graph: Graph) -> tuple[tuple[int, int] | None, ...]:
    """For each tensor, its live range ``[first use, last use + 1)`` in op positions; ``None`` if no
    op uses it.
    """
    return tuple((users[0], users[-1] + 1) if users else None for users in graph.users)


def _live_on_device(graph: Graph) -> tuple[tuple[int, int] | None, ...]:
    """Like :func:`live_ranges`, of the users that run on the device."""
    users = [[i for i in listed if not graph.ops[i].processor] for listed in graph.users]
    return tuple([(listed[0], listed[-1] + 1) if listed else None for listed in users])


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
    if not graph.ops:
        return []
    ranges = _held(graph, device_tier)
    held = [
        (tensor.size_bytes, *there)
        for tensor, there in zip(graph.tensors, ranges, strict=True)
        if there is not None
    ]
    return _summed(held, [0 if op.processor else op.workspace_bytes for op in graph.ops.each()])


def _summed(held: Iterable[tuple[int, int, int]], workspaces: Sequence[int]) -> list[int]:
    """The bytes held while each op runs: of tensors, each as its size and the first and the end of
    the ops that hold it, and workspaces.
    """
    change = [0] * (len(workspaces) + 1)
    for size, first, end in held:
        change[first] += size
        change[end] -= size
    return [
        tensors + workspace
        for tensors, workspace in zip(accumulate(change), workspaces, strict=False)
    ]


def static_peak(graph: Graph, device_tier: str = USUAL_DEVICE_TIER) -> StaticPeak:
    """The peak of :func:`static_curve`, where it is, and what it consists of."""
    curve = static_curve(graph, device_tier)
    peak = max(curve, default=0)
    op = curve.index(peak) if curve else -1
    at = max(op, 0)
    residents = [
        t
        for t, held in enumerate(_held(graph, device_tier))
        if held is not None and held[0] <= at < max(held[1], 1)
    ]
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


def _held(graph: Graph, device_tier: str) -> list[tuple[int, int] | None]:
    """For each tensor the half-open range of op positions during which its bytes are held; ``None``
    if never.
    """
    end = len(graph.ops)
    initial = set(graph.initial) - idle_below(graph, device_tier)
    held: list[tuple[int, int] | None] = []
    live_there = live_ranges(graph) if not graph.elsewhere else _live_on_device(graph)
    for t, live in enumerate(live_there):
        if graph.elsewhere and live is None and graph.users[t]:
            held.append(None)
            continue
        if t in initial:
            first = 0
        elif live is not None:
            first = live[0]
        else:
            held.append(None)
            continue
        held.append((first, end if graph.survives[t] or live is None else live[1]))
    return held


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
