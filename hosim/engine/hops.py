"""The tiers and channels of a plan, as positions on a machine; the chunks of routes over several
channels.
"""

from collections.abc import Iterable
from functools import cache
from itertools import permutations
from typing import Any, NamedTuple

from hosim.analysis.costmodel.transfers import chunks_of, route
from hosim.cache_plan import DETACH, Plan
from hosim.errors import PlanError
from hosim.hardware import Hardware

SEVERAL = -2
"""In the place of a channel: a route over several."""


class Hop(NamedTuple):
    """The move of a cache op, or one leg of its route: tiers and channel as positions. A detach has
    destination and channel -1.

    ``channel`` is :data:`SEVERAL` where no channel joins the tiers and a route of several does.
    """

    op: str
    source: int
    destination: int
    channel: int


def resolve_hop(
    op: str, source: str, destination: str | None, hardware: Hardware, where: str
) -> Hop:
    """Resolve the tiers and the channel of a cache op; raises :class:`PlanError` with ``where`` if
    there are none.
    """
    tiers = hardware.tier_index
    for label, tier in (("from", source), ("to", destination)):
        if tier is not None and tier not in tiers:
            raise PlanError(
                f"no tier {tier!r} on {hardware.name} (tiers: {', '.join(tiers)})",
                where=f"{where}.{label}",
            )
    if op == DETACH:
        return Hop(op, tiers[source], -1, -1)
    if destination is None:
        raise PlanError(f"a {op} needs a tier to copy to", where=f"{where}.to")
    channel = hardware.channel_between.get((source, destination))
    if channel is None:
        if route(hardware, source, destination, 0):
            return Hop(op, tiers[source], tiers[destination], SEVERAL)
        raise PlanError(
            f"no channels lead from {source} to {destination} on {hardware.name}", where=where
        )
    return Hop(op, tiers[source], tiers[destination], hardware.channels.index(channel))


class Chunk(NamedTuple):
    """A chunk of a cache op on one hop of its route (rule 7); tiers, channel and tensor as positions.

    ``move`` is the place of the cache op. ``first_on_hop`` is the number of its first chunk on this
    hop, ``onward`` that of this chunk on the next hop (-1: it arrives). Chunks are numbered cache op
    by cache op, then hop by hop.
    """

    move: int
    tensor: int
    source: int
    target: int
    channel: int
    size: int
    first_on_hop: int
    onward: int


def routed_chunks(
    moves: Iterable[tuple[int, int, int, int, int]], machine: Hardware
) -> list[Chunk]:
    """The chunks of cache ops, each given by its place, its tensor, its tiers and its bytes."""
    names, tiers = [tier.name for tier in machine.tiers], machine.tier_index

    @cache
    def way(source: int, target: int, size: int) -> tuple[list[tuple[int, int, int]], list[int]]:
        hops = route(machine, names[source], names[target], size)
        return [
            (tiers[c.source], tiers[c.destination], machine.channels.index(c)) for c in hops
        ], chunks_of(machine, size)

    found: list[Chunk] = []
    for k, t, source, target, size in moves:
        hops, parts = way(source, target, size)
        for left, hop in zip(reversed(range(len(hops))), hops, strict=True):
            first = len(found)
            for n, part in enumerate(parts):
                onward = first + n + len(parts) if left else -1
                found.append(Chunk(k, t, *hop, part, first, onward))
    return found


def has_routes(machine: Hardware) -> bool:
    """Return whether no channel joins some two tiers."""
    names = [tier.name for tier in machine.tiers]
    return any([pair not in machine.channel_between for pair in permutations(names, 2)])


def initial_tiers(plan: Plan, hardware: Hardware) -> dict[int, tuple[int, ...]]:
    """The tiers in which tensors are at time 0, by the tensor's position; raises :class:`PlanError`
    if there is none of the name.
    """
    at, known = hardware.tier_index, dict[tuple[str, ...], tuple[int, ...]]()
    found: dict[int, Any] = plan.residency(hardware.device_tier)
    count = len(plan.graph.tensors)
    for t in [t for t in found if not 0 <= t < count]:
        raise PlanError(
            f"expected the position of a tensor, below {count}, got {t}", where="initial"
        )
    for t, tiers in found.items():
        if tiers not in known:
            missing = [tier for tier in tiers if tier not in at]
            if missing:
                text = (
                    f"tensor {plan.graph.tensors[t].name!r} starts in tier {missing[0]!r}, "
                    f"which {hardware.name} has not"
                )
                raise PlanError(f"{text} (tiers: {', '.join(at)})", where="initial")
            known[tiers] = tuple([at[tier] for tier in tiers])
        found[t] = known[tiers]
    return found
