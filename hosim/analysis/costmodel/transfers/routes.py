"""Routes between tiers that no channel joins (docs/contract.md, rule 7): which channels, and how
long alone.

A tensor goes hop by hop in chunks of :attr:`hosim.hardware.Hardware.chunk_bytes`, the last one of
what is left. A chunk takes a hop when it has passed the one before and the chunk ahead of it has
passed this one, so that all hops carry at once. It takes one engine of a channel, however many
there are. The times here are those of a replay in which nothing else moves; the time to pin host
memory is no part of them (:func:`hosim.analysis.costmodel.transfers.transfer_time.pin_ns`).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate

from hosim.analysis.costmodel.transfers.fair_sharing import NS_PER_S, Link, max_min_rates
from hosim.analysis.costmodel.transfers.transfer_time import alone_ns, ceiling, named_channel
from hosim.hardware import Channel, Hardware

# -- shared hops -----------------------------------------------------------------------------------


def shares_bandwidth(hardware: Hardware, channels: Sequence[Channel]) -> bool:
    """Return whether one of these hops can get less while another one carries: by a fabric that is
    too small for both, or beside it.
    """
    names = {c.name for c in channels}
    for fabric in hardware.fabrics:
        wanted = [c.bandwidth_bytes_per_s for c in channels if c.name in fabric.channels]
        if len(wanted) > 1 and sum(wanted) > fabric.bandwidth_bytes_per_s:
            return True
    return any(other in names for c in channels for other, _ in c.beside)


def shared_route_ns(
    hardware: Hardware, channels: Sequence[Channel], chunks: Sequence[int], kind: str | None = None
) -> int:
    """Nanoseconds from the start of the first chunk to the end of the last one, when nothing else
    moves.

    ``chunks`` are bytes, in the order in which they go. Costs O(chunks x hops): use it where
    :func:`shares_bandwidth`.
    """
    hops = [_Hop(hardware, c, chunks, kind) for c in channels]
    capacity = {hop.links[0]: Fraction(hop.channel.bandwidth_bytes_per_s) for hop in hops}
    capacity |= {("fabric", f.name, 0): Fraction(f.bandwidth_bytes_per_s) for f in hardware.fabrics}
    hops[0].arrived = len(chunks)
    now = 0
    while hops[-1].passed < len(chunks):
        for hop, following in zip(hops, [*hops[1:], None], strict=True):
            if hop.ends(now) and following is not None:
                following.arrived += 1
        for hop in hops:
            hop.start(now)
        flowing = [hop for hop in hops if hop.running and hop.flows_from <= now]
        rates = max_min_rates(
            [(1, hop.ceiling, hop.links) for hop in flowing],
            {**capacity, **{hop.links[0]: hop.carries(flowing) for hop in flowing}},
        )
        upcoming = [hop.flows_from for hop in hops if hop.running and hop.flows_from > now]
        upcoming += [now - int(-hop.left // rate) for hop, rate in zip(flowing, rates, strict=True)]
        later = min(upcoming, default=now)
        for hop, rate in zip(flowing, rates, strict=True):
            hop.left -= rate * (later - now)
        now = later
    return now


class _Hop:
    """One hop: ``arrived`` chunks are at its beginning, ``passed`` ones at its end, and the next of
    these flows if it is ``running``.
    """

    def __init__(
        self, hardware: Hardware, channel: Channel, chunks: Sequence[int], kind: str | None
    ) -> None:
        self.channel = channel
        fabrics: list[Link] = [
            ("fabric", f.name, 0) for f in hardware.fabrics if channel.name in f.channels
        ]
        self.links: list[Link] = [("channel", channel.name, 0), *fabrics]
        self.arrived = self.passed = self.flows_from = 0
        self.running = False
        self.left = Fraction(0)
        self.ceiling: Fraction | None = None
        self._chunks = chunks
        self._hardware, self._kind = hardware, kind

    def ends(self, now: int) -> bool:
        """Return whether its chunk ends now; then it has passed."""
        if not self.running or self.flows_from > now or self.left > 0:
            return False
        self.running = False
        self.passed += 1
        return True

    def start(self, now: int) -> None:
        """Begin the next chunk if it is there: first the latency."""
        if not self.running and self.passed < self.arrived:
            size = self._chunks[self.passed]
            self.running = True
            self.flows_from = now + self.channel.latency_ns
            self.left = Fraction(size * NS_PER_S)
            self.ceiling = ceiling(self._hardware, self.channel, size, self._kind)

    def carries(self, flowing: Sequence[_Hop]) -> Fraction:
        """Bytes per second of the channel beside those on which bytes flow now."""
        names = {hop.channel.name for hop in flowing}
        return Fraction(
            min(
                [
                    self.channel.bandwidth_bytes_per_s,
                    *(rate for other, rate in self.channel.beside if other in names),
                ]
            )
        )


# -- routes ----------------------------------------------------------------------------------------


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
    """Return the number of full chunks that go ahead of the last one, and the bytes of that one."""
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
    played through (:mod:`hosim.analysis.costmodel.transfers.routes`). Raises
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
    paths = _paths(hardware, source, destination)
    if len(paths) == 1:
        return paths[0]
    timed = [
        (route_ns(hardware, names, size_bytes), len(names), names)
        for names in ([c.name for c in path] for path in paths)
    ]
    return min(zip(timed, paths, strict=True), default=((), ()))[1]


def _paths(hardware: Hardware, source: str, destination: str) -> list[tuple[Channel, ...]]:
    """The channels of each way between two tiers that comes to no tier twice."""
    found: list[tuple[Channel, ...]] = []
    begun: list[tuple[tuple[str, ...], tuple[Channel, ...]]] = [((source,), ())]
    while begun:
        passed, channels = begun.pop()
        for (begin, end), channel in hardware.channel_between.items():
            if begin == passed[-1] and end not in passed:
                if end == destination:
                    found.append((*channels, channel))
                else:
                    begun.append(((*passed, end), (*channels, channel)))
    return found


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
