"""The channels that the copies of a plan take, and the parts into which they are split, computed
once for all runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hosim.analysis.costmodel import machine_of_copies
from hosim.analysis.costmodel.transfers import chunks_of, route
from hosim.cache_plan import DETACH, Plan
from hosim.hardware import Channel, Hardware
from hosim.on_torch.lower.tiers.transfers import Label


def copy_ways(
    plan: Plan, hardware: Hardware
) -> Iterator[tuple[int, tuple[tuple[Channel, ...], tuple[Label, ...]]]]:
    """For each cache op that moves bytes, the channels that it takes, and its parts: chunks where
    there are several.
    """
    machine = machine_of_copies(plan.graph, hardware)
    for k, cache_op in enumerate(plan.cache_ops):
        if cache_op.op != DETACH:
            tensor = plan.graph.tensors[cache_op.tensor]
            hops = route(machine, cache_op.source, str(cache_op.destination), tensor.size_bytes)
            sizes = chunks_of(hardware, tensor.size_bytes) if len(hops) > 1 else [tensor.size_bytes]
            text = (
                f"{cache_op.op} of {tensor.name!r} from {cache_op.source} to {cache_op.destination}"
            )
            yield (
                k,
                (
                    hops,
                    tuple(
                        Label(text, cache_op=k, kind=tensor.kind, size_bytes=size) for size in sizes
                    ),
                ),
            )


def tiers_used(
    plan: Plan, ways: Mapping[int, tuple[tuple[Channel, ...], tuple[Label, ...]]]
) -> list[str]:
    """The tiers that a plan has tensors in at time 0, or takes them through."""
    used = [tier for tiers in plan.initial.values() for tier in tiers]
    used += [
        tier for hops, _ in ways.values() for hop in hops for tier in (hop.source, hop.destination)
    ]
    return list(dict.fromkeys(used))
