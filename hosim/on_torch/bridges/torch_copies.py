"""What the bridges to torch's own activation offload share: which saved activations go down, and the
plan in a graph with torch's copies. Imports torch 2.13 or later.

torch copies by the ops ``ao.offload``, ``ao.reload`` and ``ao.wait_tensor``
(``torch._functorch._activation_offloading``). Passes of others insert them too. A wait for a copy
down releases the device's storage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
import torch._functorch._activation_offloading.offload_ops  # makes the ops
from torch.fx import GraphModule, Node

from hosim.analysis import static_curve
from hosim.cache_plan import DETACH, PREFETCH, STORE, CacheOp, Plan
from hosim.engine import replay
from hosim.errors import InfeasibleError, InputError
from hosim.hardware import Hardware
from hosim.on_torch.lower import TorchProgram
from hosim.result import IN_PROGRAM_ORDER, Result
from hosim.units import human_size

_OFFLOAD, _RELOAD = torch.ops.ao.offload.default, torch.ops.ao.reload.default
_WAIT, _MOVE = torch.ops.ao.wait_tensor.default, torch.ops.prims.device_put.default


@dataclass(frozen=True)
class IdleActivation:
    """A saved activation that can be offloaded: idle after op ``after`` up to op ``before``."""

    node: str
    tensor: int
    after: int
    before: int


def tier_below(hardware: Hardware) -> str:
    """The tier that torch copies to: the host's memory, below the device's own.

    Raises :class:`InputError` for a machine with no channel down from the device, or none back up.
    """
    device = hardware.device_tier
    for channel in hardware.channels:
        if channel.source == device and (channel.destination, device) in hardware.channel_between:
            return channel.destination
    raise InputError(
        f"{hardware.name} has no channels from {device!r} to a tier and back, over which torch "
        "could offload; add them to its profile",
        where="channels",
    )


def chosen(
    program: TorchProgram, candidates: Sequence[IdleActivation], device: str, budget: int
) -> frozenset[str]:
    """The nodes to offload: while the peak is above the budget, the largest candidate that is idle
    there.

    Raises :class:`InfeasibleError` where none is.
    """
    graph = program.graph
    curve = static_curve(graph, device)
    left = sorted(candidates, key=lambda c: (-graph.tensors[c.tensor].size_bytes, c.after))
    nodes: list[str] = []
    while (peak := max(curve, default=0)) > budget:
        at = curve.index(peak)
        found = next((c for c in left if c.after < at < c.before), None)
        if found is None:
            raise InfeasibleError(
                f"forward and backward hold {human_size(peak)} at op {graph.ops[at].name!r}, "
                "where nothing is idle that torch can offload, and the budget is "
                f"{human_size(budget)}"
            )
        left.remove(found)
        nodes.append(found.node)
        for k in range(found.after + 1, found.before):
            curve[k] -= graph.tensors[found.tensor].size_bytes
    return frozenset(nodes)


def positions(modules: Sequence[GraphModule], program: TorchProgram) -> Iterator[tuple[Node, int]]:
    """Each node of modules that run one after the other, with the last op at or before it."""
    last = -1
    for module in modules:
        for node in module.graph.nodes:
            last = program.op_of.get(node.name, last)
            yield node, last


def copies(
    modules: Sequence[GraphModule], program: TorchProgram, hardware: Hardware
) -> Iterator[CacheOp]:
    """The cache ops that the copies in modules are."""
    device, below = hardware.device_tier, tier_below(hardware)
    of: dict[str, str] = {}  # what a copy is of, by its node's name
    for node, last in positions(modules, program):
        if node.target not in (_OFFLOAD, _RELOAD, _WAIT, _MOVE):
            continue
        source = cast(Node, node.args[0])
        down = node.target is _OFFLOAD or (node.target is _MOVE and source.name not in of)
        of[node.name] = of.get(source.name, source.name)
        t = program.tensor_of[of[node.name]]
        if down:
            yield CacheOp(STORE, t, device, below, last)
        elif node.target is not _WAIT:
            yield CacheOp(PREFETCH, t, below, device, last)
        if (down and node.target is _MOVE) or (node.target is _WAIT and source.target is _OFFLOAD):
            yield CacheOp(DETACH, t, device, None, last)


def replayed(
    program: TorchProgram, ops: Sequence[CacheOp], policy: str, hardware: Hardware, budget: int
) -> tuple[Plan, Result]:
    """The plan that torch's copies are, and its replay in program order.

    torch copies in both directions on one stream. Raises :class:`InfeasibleError` if it does not
    stay within the budget.
    """
    ends = {hardware.device_tier, tier_below(hardware)}
    channels = [
        replace(c, engines=1, queue="transfer stream") if {c.source, c.destination} == ends else c
        for c in hardware.channels
    ]
    hardware = replace(hardware, channels=tuple(channels))
    plan = Plan(program.graph, policy, tuple(ops))
    result = replay(plan, hardware, budget, account=IN_PROGRAM_ORDER)
    if not result.feasible:
        raise InfeasibleError(f"where torch copies back what is marked: {result.error}")
    return plan, result
