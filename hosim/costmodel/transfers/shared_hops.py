"""Describe how long a tensor takes along hops that share bandwidth: the chunks played through, hop
by hop (docs/contract.md, rules 6 and 7).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from hosim.costmodel.transfers.fair_sharing import NS_PER_S, Link, max_min_rates
from hosim.costmodel.transfers.transfer_time import is_pageable
from hosim.hardware import Channel, Hardware


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
        carried = {**capacity, **{hop.links[0]: hop.carries(flowing) for hop in flowing}}
        rates = max_min_rates([(1, hop.ceiling, hop.links) for hop in flowing], carried)
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
        self._pageable = is_pageable(hardware, channel, kind)

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
            self.ceiling = self.channel.ceiling(size, self._pageable)

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
