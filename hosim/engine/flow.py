"""How transfers share bandwidth: max-min fair rates, exact to the nanosecond.

A *link* is anything with a bandwidth that flows share: a channel with several engines, a fabric. Max-min fairness by progressive
filling: raise all rates together; when a link is full, the flows that cross it keep their rate and the rest go on (Bertsekas and
Gallager, Data Networks, section 6.5.2).

Flows that cross the same links, and may go equally fast on what is theirs alone, always have the same rate: they form a
:class:`FlowClass`. What has flowed to each of them since a given instant is then one number for all, and the one with the least to come
ends first whatever the rates will be. So a change takes as much time as there are classes, not flows: hundreds of devices that share
a pool are one class a direction.

Nothing drifts: a rate is a whole number of parts of a byte a second, of which a class takes as many as its rates need.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from heapq import heappush
from math import lcm
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hosim.engine.channels import Transfer

NS_PER_S = 10**9

Link = tuple[str, str, int]
"""What identifies a link: whether it is a channel or a fabric, its name, and which instance of it."""


class FlowClass:
    """Flows that have the same rate at any time: that cross the same ``links``, each at most at ``limit`` bytes per second.

    A flow's volume is its bytes times nanoseconds a second, so that bytes per second times nanoseconds give it. ``served`` is the volume
    that has flowed to one that was there all the time, in ``scale`` parts; ``step`` are the parts that flow in a nanosecond.
    ``ends`` are the flows by the ``served`` at which they are through (a heap), then in order of issue.
    """

    __slots__ = ("ends", "limit", "links", "rate", "scale", "served", "step")

    def __init__(self, limit: Fraction | None, links: tuple[Link, ...]) -> None:
        self.limit = limit
        self.links = links
        self.ends: list[tuple[int, float, Transfer]] = []
        self.served = 0
        self.scale = 1
        self.step = 0
        self.rate = Fraction(0)

    def admit(self, transfer: Transfer) -> None:
        """Let a transfer's bytes flow from now on."""
        if not self.ends:
            self.served, self.scale, self.step, self.rate = 0, 1, 0, Fraction(0)
        heappush(self.ends, (self.served + transfer.volume * self.scale, transfer.sequence, transfer))

    def set_rate(self, rate: Fraction) -> None:
        """Flow at ``rate`` bytes per second from now on."""
        if rate == self.rate:
            return
        self.rate = rate
        scale = lcm(self.scale, rate.denominator)
        if scale != self.scale:
            factor = scale // self.scale
            self.scale = scale
            self.served *= factor
            self.ends = [(end * factor, sequence, transfer) for end, sequence, transfer in self.ends]  # still a heap
        self.step = rate.numerator * (scale // rate.denominator)

    def nanoseconds_left(self) -> int:
        """Whole nanoseconds until the first flow is through, at the present rate."""
        return -((self.served - self.ends[0][0]) // self.step)


def max_min_rates(classes: Sequence[tuple[int, Fraction | None, Sequence[Link]]], capacity: Mapping[Link, Fraction]) -> list[Fraction]:
    """The rate of each flow of each class, in bytes per second.

    ``classes`` have a number of flows, at least one, the most that each of them may take (``None``: what the links give) and the links
    that each crosses; ``capacity`` has the bytes per second of each link.
    """
    rates = [Fraction(0)] * len(classes)
    left = {link: capacity[link] for _, _, links in classes for link in links}
    flows = dict.fromkeys(left, 0)
    for count, _, links in classes:
        for link in links:
            flows[link] += count
    rising = list(range(len(classes)))
    while rising:
        shares = [(left[link] / n, link) for link, n in flows.items() if n]
        share, bottleneck = min(shares, key=lambda s: s[0]) if shares else (None, None)
        # whoever takes no more than the least share leaves the others at least as much: such limits hold whatever comes
        full = {k: limit for k in rising if (limit := classes[k][1]) is not None and (share is None or limit <= share)}
        if not full and share is not None:
            full = {k: share for k in rising if bottleneck in classes[k][2]}
        for k, rate in full.items():
            count, _, links = classes[k]
            rates[k] = rate
            for link in links:
                left[link] -= count * rate
                flows[link] -= count
        rising = [k for k in rising if k not in full]
    return rates
