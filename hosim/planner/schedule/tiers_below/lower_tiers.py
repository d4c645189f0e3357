"""Lower tiers: where tensors go that leave the device tier, the routes there and back, and how much
room there is.

Every policy asks here, so policies differ in what they move and when, not in where to. By default a
tensor goes to the fastest tier that a route joins to the device tier both ways. What does not fit
there goes to the next. A route has one channel or several (docs/contract.md, rule 7). Other rules:
:mod:`hosim.planner.schedule.tiers_below.placement`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise

from hosim.analysis.costmodel import machine_of_copies
from hosim.analysis.costmodel.transfers import alone_ns, slowest_hop
from hosim.cache_plan import AT_START, DETACH, PREFETCH, CacheOp, plain_cache_op
from hosim.errors import InfeasibleError
from hosim.graph import Graph
from hosim.hardware import Channel, Hardware
from hosim.planner.schedule.tiers_below.placement import Placement, TierSpace

NEAREST_FIRST = ("ddr", "pool", "nvme")
"""Tiers below the device, the preferred one first; others come after them, the quickest to read
first.
"""

_CHUNK = 64 * 2**20
"""Bytes whose transfer time measures a hop (docs/contract.md, rule 7)."""

_CHUNKS = 64
"""At most so many chunks of them show the pace of a route: where its hops share bandwidth, each
chunk is played through.
"""


@dataclass(frozen=True, slots=True)
class LowerTier:
    """A tier below the device tier with a route each way; ``up`` leads to the device tier, ``down``
    away from it.

    For a route over several channels the slowest one stands for all: it sets the pace, and
    transfers wait for each other there.
    """

    name: str
    capacity_bytes: int
    up: Channel
    down: Channel


def _lower_tiers(hardware: Hardware) -> Iterator[LowerTier]:
    """The tiers with a route to the device tier and back, in the machine's order."""
    device = hardware.device_tier
    probe = min(_CHUNK, _CHUNKS * hardware.chunk_bytes)
    for tier in hardware.tiers:
        if tier.name == device:
            continue
        up, down = (
            slowest_hop(hardware, tier.name, device, probe),
            slowest_hop(hardware, device, tier.name, probe),
        )
        if up is not None and down is not None:
            yield LowerTier(tier.name, tier.capacity_bytes, up, down)


def has_hops(hardware: Hardware, tier: LowerTier) -> bool:
    """Return whether the route to or from the tier has more than one channel."""
    device, joined = hardware.device_tier, hardware.channel_between
    return (tier.name, device) not in joined or (device, tier.name) not in joined


def nearest_tiers(hardware: Hardware) -> tuple[LowerTier, ...]:
    """The lower tiers in the order of the rule ``nearest``: :data:`NEAREST_FIRST`, then the
    quickest to read.

    Tiers that one channel joins to the device tier come before those that a route of several does.
    """
    rank = {name: k for k, name in enumerate(NEAREST_FIRST)}

    def order(tier: LowerTier) -> tuple[bool, int, int, str]:
        return (
            has_hops(hardware, tier),
            rank.get(tier.name, len(rank)),
            -tier.up.bandwidth_bytes_per_s,
            tier.name,
        )

    return tuple(sorted(_lower_tiers(hardware), key=order))


def fastest_tiers(hardware: Hardware) -> tuple[LowerTier, ...]:
    """The lower tiers by the time of a round trip of 64 MiB, the fastest first; those that one
    channel joins come before others.
    """

    def order(tier: LowerTier) -> tuple[bool, int, str]:
        round_trip = alone_ns(hardware, tier.up.name, _CHUNK) + alone_ns(
            hardware, tier.down.name, _CHUNK
        )
        return (
            has_hops(hardware, tier),
            round_trip,
            tier.name,
        )  # equally fast ones not as the profile happens to list them

    return tuple(sorted(_lower_tiers(hardware), key=order))


def space_below(
    graph: Graph,
    hardware: Hardware,
    initial: Mapping[int, Sequence[str]],
    placement: Placement | None = None,
) -> TierSpace:
    """Room in all lower tiers, by default the fastest one first; ``initial`` has what is where at
    time 0.
    """
    return TierSpace(
        graph,
        hardware,
        [tier.name for tier in nearest_tiers(machine_of_copies(graph, hardware))],
        initial,
        placement,
    )


def route(hardware: Hardware, sources: Iterable[str], destination: str) -> tuple[str, ...]:
    """Tiers from the nearest of ``sources`` to ``destination``, both included, along the quickest
    hops: a cache op for each pair.

    Where no channel joins the two ends they are all there is: one cache op goes the whole way, in
    chunks and with no copy in between. Raises :class:`InfeasibleError` if no channels lead there.
    """
    pending: list[tuple[int, tuple[str, ...]]] = []
    for source in set(sources):
        heappush(pending, (0, (source,)))
    reached: set[str] = set()
    while pending:
        spent, way = heappop(pending)
        if way[-1] == destination:
            return (
                way if (way[0], destination) in hardware.channel_between else (way[0], destination)
            )
        if way[-1] in reached:
            continue
        reached.add(way[-1])
        for (start, end), channel in hardware.channel_between.items():
            if start == way[-1] and end not in reached:
                heappush(pending, (spent + alone_ns(hardware, channel.name, _CHUNK), (*way, end)))
    raise InfeasibleError(
        f"no channels of {hardware.name} lead from {' or '.join(sorted(set(sources)))} to "
        f"{destination}"
    )


Route = Callable[[Iterable[str], str], Sequence[str]]
"""The tiers from one of some to another one, both included: a cache op for each pair."""


def known_routes(hardware: Hardware) -> Route:
    """The quickest routes on a machine, each of them looked for once."""
    known: dict[tuple[str, ...], Sequence[str]] = {}

    def routes(sources: Iterable[str], destination: str) -> Sequence[str]:
        key = (*sources, destination)
        if key not in known:
            known[key] = route(hardware, key[:-1], destination)
        return known[key]

    return routes


def copies_along(
    hops: Sequence[str], op: str, tensor: int, device: str, after: int = AT_START
) -> list[CacheOp]:
    """A cache op for each hop of a copy, and detaches of the copies in between."""
    if len(hops) == 2:  # of most machines: the planner asks for many
        reached = hops[1]
        moved = PREFETCH if reached == device else op
        return [plain_cache_op(moved, tensor, hops[0], reached, after)]
    return [
        cache_op
        for hop in pairwise(hops)
        for cache_op in copies_along(hop, op, tensor, device, after)
    ] + [CacheOp(DETACH, tensor, passed, None, after) for passed in hops[1:-1]]


def starts(
    graph: Graph, hardware: Hardware, budget: int, placement: Placement | None = None
) -> dict[int, tuple[str, ...]]:
    """``Plan.initial`` of a policy that keeps tensors where they are at home if it can: empty if it
    can.

    If what is at home in the device tier exceeds ``budget`` at time 0, or what must be there at the
    end of the step does, all of it starts below instead, in the first tier with room (and, if it is
    persistent, ends there). What has room nowhere, and what the step writes before it reads, stays.
    """
    device = hardware.device_tier
    homes = {t: graph.tensors[t].home or device for t in graph.initial}
    sizes = [tensor.size_bytes for tensor in graph.tensors]
    at_start = sum(sizes[t] for t, home in homes.items() if home == device)
    stays = (t for t, survives in enumerate(graph.survives) if survives)
    at_end = sum(
        sizes[t] for t in stays if homes.get(t) == device or (t not in homes and graph.users[t])
    )
    if at_start <= budget and at_end <= budget:
        return {}
    away = {t: (home,) for t, home in homes.items() if home != device}
    space = space_below(graph, hardware, away, placement)
    moved: dict[int, tuple[str, ...]] = {}
    for t, home in homes.items():
        if home == device:
            tier = space.place(t, 0)
            if tier is not None:
                moved[t] = (tier,)
    return moved
