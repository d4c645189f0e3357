"""The tiers and channels of a plan, as positions on a machine."""

from typing import Any, NamedTuple

from hosim.analysis.costmodel.transfers import route
from hosim.cache_plan import DETACH, Plan
from hosim.errors import PlanError
from hosim.hardware import Hardware

SEVERAL = -2
"""In the place of a channel: a route over several."""

ROUTES = "routes of several channels"
"""The words of the loop for those."""


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
