"""Flows that always have the same rate, as one number for all of them.

Flows that cross the same links, and may go equally fast on what is theirs alone, form a
:class:`FlowClass`. What has flowed to each of them since a given instant is then one number, and
the one with the least to come ends first whatever the rates will be.

Nothing drifts: a rate is a whole number of parts of a byte a second, of which a class takes as many
as its rates need.
"""

from __future__ import annotations

from fractions import Fraction
from heapq import heappush
from math import lcm

from hosim.costmodel.transfers import Link
from hosim.serving.links.channel_queue import IssuedTransfer


class FlowClass:
    """Flows that have the same rate at any time: that cross the same ``links``, each at most at
    ``limit`` bytes per second.

    A flow's volume is its bytes times nanoseconds a second, so that bytes per second times
    nanoseconds give it. ``served`` is the volume that has flowed to one that was there all the
    time, in ``scale`` parts; ``step`` are the parts that flow in a nanosecond. ``ends`` are the
    flows by the ``served`` at which they are through (a heap), then in order of issue.
    """

    __slots__ = ("ends", "limit", "links", "rate", "scale", "served", "step")

    def __init__(self, limit: Fraction | None, links: tuple[Link, ...]) -> None:
        self.limit = limit
        self.links = links
        self.ends: list[tuple[int, int, IssuedTransfer]] = []
        self.served = 0
        self.scale = 1
        self.step = 0
        self.rate = Fraction(0)

    def admit(self, transfer: IssuedTransfer) -> None:
        """Let a transfer's bytes flow from now on; the rate is to be set before time moves on."""
        if not self.ends:
            self.served, self.step, self.scale = 0, self.rate.numerator, self.rate.denominator
        heappush(self.ends, (self.served + transfer.volume * self.scale, transfer.number, transfer))

    def set_rate(self, rate: Fraction) -> None:
        """Flow at ``rate`` bytes per second from now on."""
        if rate is self.rate:  # those found once are kept: no need to compare fractions
            return
        self.rate = rate
        scale = lcm(self.scale, rate.denominator)
        if scale != self.scale:
            factor = scale // self.scale
            self.scale = scale
            self.served *= factor
            self.ends = [
                (end * factor, sequence, transfer) for end, sequence, transfer in self.ends
            ]  # still a heap
        self.step = rate.numerator * (scale // rate.denominator)

    def nanoseconds_left(self) -> int:
        """Whole nanoseconds until the first flow is through, at the present rate."""
        return -((self.served - self.ends[0][0]) // self.step)
