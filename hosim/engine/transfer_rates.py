"""The rates of transfers and collectives: each channel alone, or max-min fairly with those that it
shares bandwidth with.

The figures are those of docs/contract.md, rules 6, 11, 13, 14, 19, 20 and 22, exact: a rate that is
no whole number of bytes per second is a fraction. While all devices of a machine do the same, each
has its part of what they share.
"""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from hosim.analysis.costmodel import HELD_BYTES_PER_S
from hosim.analysis.costmodel.transfers import (
    Link,
    ceiling,
    crossed_fabrics,
    max_min_rates,
    may_be_slower,
)
from hosim.graph import Graph, Tensor
from hosim.hardware import Fabric, Hardware
from hosim.units import LARGEST

COLLECTIVE = -1
"""The number of the links of collectives, in place of a channel: the last one."""


class TransferRates:
    """The rates of transfers of ``graph`` on ``hardware``, whose fabrics include memories if copies
    share their bandwidth.

    A flow class is a channel with the ceiling of some of its transfers, or :data:`COLLECTIVE` with
    that of some collectives, which ``cross`` fabrics.
    """

    def __init__(self, graph: Graph, hardware: Hardware, cross: bool = False) -> None:
        self._graph, self._hardware = graph, hardware
        self._capacity: dict[Link, Fraction] = {}
        self._links = self._binding_links(cross)
        self._beside = {
            ("channel", c.name, 0): [
                (
                    ("channel", other, 0),
                    Fraction(bandwidth, hardware.sharers(hardware.channel_scope(c))),
                )
                for other, bandwidth in c.beside
            ]
            for c in hardware.channels
            if c.beside
        }
        self._classes: dict[tuple[int, Fraction | None], int] = {}
        self.classes: list[tuple[int, Fraction | None]] = []
        self.parts: list[Fraction] = [
            *self._capacity.values(),
            *[part for others in self._beside.values() for _, part in others],
        ]
        self._alone = [
            min(
                [
                    Fraction(c.bandwidth_bytes_per_s),
                    *(
                        Fraction(f.bandwidth_bytes_per_s)
                        for f in hardware.fabrics
                        if c.name in f.channels
                    ),
                ]
            )
            for c in hardware.channels
        ]

    def _binding_links(self, cross: bool) -> list[tuple[Link, ...]]:
        """The links of each channel, and of collectives, that can bind."""
        hardware, wanted, links = self._hardware, dict[Link, int](), list[tuple[Link, ...]]()
        for channel in hardware.channels:
            own: Link = ("channel", channel.name, 0)
            self._capacity[own] = Fraction(
                channel.bandwidth_bytes_per_s, hardware.sharers(hardware.channel_scope(channel))
            )
            shared = [self._shared(f) for f in hardware.fabrics if channel.name in f.channels]
            for link in shared:
                wanted[link] = wanted.get(link, 0) + channel.bandwidth_bytes_per_s
            links.append((own, *shared))
        crossed = [
            self._shared(fabric)
            for fabric in (crossed_fabrics(hardware) if cross else ())
            for _ in range(fabric.collectives)
        ]
        wanted |= dict.fromkeys(crossed, LARGEST)
        narrow = {link for link, most in wanted.items() if most > self._capacity[link]}
        return [
            tuple([link for link in of if link[0] == "channel" or link in narrow])
            for of in (*links, tuple(crossed))
        ]

    def _shared(self, fabric: Fabric) -> Link:
        """The link that a fabric is, with its capacity."""
        link: Link = ("fabric", fabric.name, 0)
        self._capacity[link] = Fraction(
            fabric.bandwidth_bytes_per_s, self._hardware.sharers(fabric.scope)
        )
        return link

    def _class_of(self, channel: int, tensor: Tensor) -> int:
        """The flow class of a tensor's transfer on a channel."""
        return self.class_of(channel, tensor.size_bytes, tensor.kind)

    def class_of(self, channel: int, size: int, kind: str) -> int:
        """The flow class of a transfer of so many bytes of a tensor of a kind on a channel."""
        c = self._hardware.channels[channel]
        most = ceiling(self._hardware, c, size, kind)
        return self._numbered(
            channel, None if most is None or most >= self._alone[channel] else most
        )

    def _numbered(self, channel: int, most: Fraction | None) -> int:
        """The number of a flow class, a new one if there is none."""
        known = channel, most
        if known not in self._classes:
            self._classes[known] = len(self.classes)
            self.classes.append(known)
        return self._classes[known]

    def classes_of(self, channel: int) -> Sequence[int]:
        """The flow class of each tensor's transfer on a channel."""
        where, tensors = self._hardware.channels[channel], self._graph.tensors
        if not may_be_slower(self._hardware, where):
            return (
                np.broadcast_to(
                    np.array([self._class_of(channel, tensors.alike[0])], "i"), len(tensors)
                ).data
                if tensors
                else []
            )  # one number
        return tensors.column(lambda tensor: self._class_of(channel, tensor))

    def collective(self, most: int) -> int:
        """The flow class of a collective that sends at most so many bytes per second."""
        return self._numbered(COLLECTIVE, Fraction(most))

    def alone(self, k: int) -> int:
        """Bytes per second of a transfer of a class that shares nothing."""
        channel, ceiling = self.classes[k]
        return int(self._alone[channel] if ceiling is None else ceiling)

    def of(self, flowing: Sequence[int]) -> list[Fraction]:
        """The rate of each of what flows, given by its classes."""
        carried = self._capacity
        if self._beside:
            active = {link for k in flowing for link in self._links[self.classes[k][0]]}
            carried = carried | {
                link: min(
                    [carried[link], *(bandwidth for other, bandwidth in beside if other in active)]
                )
                for link, beside in self._beside.items()
            }
        return max_min_rates(
            [(1, self.classes[k][1], self._links[self.classes[k][0]]) for k in flowing], carried
        )

    def taken(self, flowing: Sequence[int], rates: Sequence[Fraction], tier: str) -> Fraction:
        """Return the part that transfers at these rates take of the bandwidth of the ops that run
        in a tier.

        If devices share it, each has a part; all of them copy the same, so that each loses
        what one takes.
        """
        return sum(
            [
                self._taken_by(self.classes[k][0], rate, tier)
                for k, rate in zip(flowing, rates, strict=True)
            ],
            Fraction(0),
        )

    def _taken_by(self, channel: int, rate: Fraction, tier: str) -> Fraction:
        if channel == COLLECTIVE:
            return Fraction(0)
        if tier == self._hardware.device_tier and self._hardware.copied_by_ops[channel]:
            return Fraction(HELD_BYTES_PER_S)
        c = self._hardware.channels[channel]
        return rate if tier in (c.source, c.destination) else Fraction(0)
