"""Routes between tiers that no channel joins (docs/contract.md, rule 7): which channels, and how
long alone.

A tensor goes hop by hop in chunks of :attr:`hosim.hardware.Hardware.chunk_bytes`, the last one of
what is left. A chunk takes a hop when it has passed the one before and the chunk ahead of it has
passed this one, so that all hops carry at once. It takes one engine of a channel, however many
there are. The times here are those of a replay in which nothing else moves; the time to pin host
memory is no part of them (:func:`hosim.costmodel.transfers.transfer_time.pin_ns`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from hosim.costmodel.transfers.shared_hops import shared_route_ns, shares_bandwidth
from hosim.costmodel.transfers.transfer_time import alone_ns, named_channel
from hosim.hardware import Channel, Hardware


def chunks_of(hardware: Hardware, size_bytes: int) -> list[int]:
    """Bytes of each chunk of a tensor, in the order in which they go; one of 0 bytes if there are
    none.

    >>> from hosim.hardware import Compute, Tier
    >>> chunks_of(Hardware("h", (Tier("hbm", 1, 1),), (), Compute({}), chunk_bytes=40), 100)
    [40, 40, 20]
    """
    full, last = _full_and_last(hardware, size_bytes)
    return [hardware.chunk_bytes] * full + [last]


def _full_and_last(hardware: Hardware, size_bytes: int) -> tuple[int, int]:
    """Return how many full chunks go ahead of the last one, and the bytes of that."""
    full = max(0, -(-size_bytes // hardware.chunk_bytes) - 1)
    return full, size_bytes - full * hardware.chunk_bytes


def route_ns(
    hardware: Hardware, channel_names: Sequence[str], size_bytes: int, kind: str | None = None
) -> int:
    """Nanoseconds that a tensor takes along these channels, one after the other, when nothing else
    moves.

    The chunks but the last are alike: the first passes every hop, and the others follow it at the
    pace of the slowest hop passed so far. The last one is the smaller; it follows the one ahead of
    it on some hop, and from there on waits for nothing. Where hops share bandwidth, the chunks are
    played through (:mod:`hosim.costmodel.transfers.shared_hops`). Raises
    :class:`hosim.errors.HardwareError` if the profile has no such channel.
    """
    channels = [named_channel(hardware, name) for name in channel_names]
    if shares_bandwidth(hardware, channels):
        return shared_route_ns(hardware, channels, chunks_of(hardware, size_bytes), kind)
    count, rest = _full_and_last(hardware, size_bytes)
    last = [alone_ns(hardware, name, rest, kind) for name in channel_names]
    if not count:
        return sum(last)
    full = [alone_ns(hardware, name, hardware.chunk_bytes, kind) for name in channel_names]
    ahead = [
        passed + (count - 1) * slowest
        for passed, slowest in zip(accumulate(full), accumulate(full, max), strict=True)
    ]
    return max(before + sum(last[hop:]) for hop, before in enumerate(ahead))


def route(
    hardware: Hardware, source: str, destination: str, size_bytes: int
) -> tuple[Channel, ...]:
    """The channels that a tensor takes from tier to tier: the one that joins them, else those of
    the shortest path by :func:`route_ns`.

    Among equally short routes it is the one with fewer hops, and then the first by the names of its
    channels. Empty if no path leads there.
    """
    joined = hardware.channel_between
    if (source, destination) in joined:
        return (joined[source, destination],)
    import networkx  # here, as it takes longer to import than most replays take

    graph = networkx.DiGraph(list(joined))
    if source not in graph or destination not in graph:
        return ()
    paths = [
        tuple(joined[hop] for hop in pairwise(path))
        for path in networkx.all_simple_paths(graph, source, destination)
    ]
    timed = [
        (route_ns(hardware, names, size_bytes), len(names), names)
        for names in ([c.name for c in path] for path in paths)
    ]
    return min(zip(timed, paths, strict=True), default=((), ()))[1]


def way_ns(hardware: Hardware, source: str, destination: str, size_bytes: int) -> int | None:
    """Nanoseconds that a tensor takes from tier to tier, by channel or route, when nothing else
    moves; ``None`` without a way.
    """
    names = [c.name for c in route(hardware, source, destination, size_bytes)]
    if len(names) == 1:
        return alone_ns(hardware, names[0], size_bytes)
    return route_ns(hardware, names, size_bytes) if names else None


def slowest_hop(
    hardware: Hardware, source: str, destination: str, size_bytes: int
) -> Channel | None:
    """The channel that takes longest for a chunk on the way from tier to tier: what a long transfer
    waits for. ``None`` without a way.
    """
    chunk = min(size_bytes, hardware.chunk_bytes)
    return max(
        route(hardware, source, destination, size_bytes),
        key=lambda c: alone_ns(hardware, c.name, chunk),
        default=None,
    )
