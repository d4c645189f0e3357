"""The bytes of the device tier that a lowered graph holds in program order, step by step. Imports
torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torch.fx import Node

from hosim.cache_plan import DETACH, Plan
from hosim.data.allocator_blocks import in_blocks

if TYPE_CHECKING:
    from hosim.on_torch.lower.insert import Lowered


def resident_bytes(plan: Plan, device_tier: str) -> int:
    """The bytes of blocks of what the device tier holds at time 0."""
    return sum(
        in_blocks(plan.graph.tensors[t].size_bytes)
        for t, tiers in plan.residency(device_tier).items()
        if device_tier in tiers
    )


def levels(lowered: Lowered, steps: Sequence[Node], device_tier: str) -> Mapping[Node, int]:
    """For each step that allocates in the device tier, the bytes held there once it has, in this
    order of the steps.

    An op's outputs and workspace count from that op on, the bytes of a prefetch from its issue, and
    those of a detached or dead tensor up to where it is dropped (docs/contract.md, rule 10), all in
    blocks of the caching allocator.
    """
    plan, graph = lowered.plan, lowered.plan.graph
    sizes = [in_blocks(tensor.size_bytes) for tensor in graph.tensors]
    there = {t for t, tiers in plan.residency(device_tier).items() if device_tier in tiers}
    left = [len(users) for users in graph.users]
    held = resident_bytes(plan, device_tier)
    found: dict[Node, int] = {}
    for node in steps:
        if node.name in lowered.op_of:
            op = graph.ops[lowered.op_of[node.name]]
            made = [t for t in op.writes if t not in there]
            there.update(made)
            held += sum(sizes[t] for t in made)
            if made or op.workspace_bytes:
                found[node] = held + in_blocks(op.workspace_bytes)
            for t in op.uses:
                left[t] -= 1
                if not left[t] and not graph.survives[t] and t in there:
                    there.discard(t)
                    held -= sizes[t]
        elif node.name in lowered.cache_op_of:
            cache_op = plan.cache_ops[lowered.cache_op_of[node.name]]
            t = cache_op.tensor
            if cache_op.op == DETACH and cache_op.source == device_tier and t in there:
                there.discard(t)
                held -= sizes[t]
            elif cache_op.destination == device_tier and t not in there:
                there.add(t)
                held += sizes[t]
                found[node] = held
    return found
