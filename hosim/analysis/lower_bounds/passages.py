"""The channels into and out of the device tier, which tiers they serve, and what they carry
together at most.

Each :class:`PassageLimit` is a floor: under any plan the transfers that it counts take at least
that long together. Latencies and what small or pageable transfers reach count on the channel alone;
fabrics, and memories where copies share their bandwidth, count bytes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from hosim.analysis.costmodel.transfers import alone_ns, channel_bandwidth
from hosim.graph import Tensor
from hosim.hardware import Channel, Hardware

_NS_PER_S = 10**9


@dataclass(frozen=True, slots=True)
class PassageLimit:
    """Transfers over ``channels`` take at least this long together.

    ``engines`` above 0: the sum of their times alone, over so many engines of the queue that they
    share. Otherwise their bytes at ``bandwidth_bytes_per_s``, which ``sharers`` devices share.
    """

    channels: tuple[str, ...]
    engines: int = 0
    bandwidth_bytes_per_s: int = 0
    sharers: int = 1


class Passages:
    """Passages of a machine; ``hardware`` has the memories as fabrics where copies share their
    bandwidth.
    """

    def __init__(self, hardware: Hardware) -> None:
        self.hardware = hardware
        self.device = hardware.device_tier
        self.lower = tuple(tier.name for tier in hardware.tiers if tier.name != self.device)
        self.into = {c.name: c for c in hardware.channels if c.destination == self.device}
        self.out = {c.name: c for c in hardware.channels if c.source == self.device}
        joined = hardware.channel_between
        self.direct = all(
            [(tier, self.device) in joined and (self.device, tier) in joined for tier in self.lower]
        )
        """Whether a channel joins each tier below to the device tier in both directions: then
        nothing comes up or goes down in chunks.
        """
        self.through_device = not all(
            [(a, b) in joined for a in self.lower for b in self.lower if a != b]
        )
        """Whether chunks may cross the device tier on their way between tiers below."""
        self._times: dict[tuple[str, int, str], float] = {}

    @cached_property
    def _onward(self) -> Mapping[str, frozenset[str]]:
        """By lower tier, those that its contents can get to without passing the device tier, itself
        included.
        """
        found = {}
        for tier in self.lower:
            reached, pending = {tier}, [tier]
            while pending:
                here = pending.pop()
                for c in self.hardware.channels:
                    if (
                        c.source == here
                        and c.destination not in reached
                        and c.destination != self.device
                    ):
                        reached.add(c.destination)
                        pending.append(c.destination)
            found[tier] = frozenset(reached)
        return found

    def reached_by(self, out: str) -> frozenset[str]:
        """The tiers that what leaves over a channel can get to without passing the device tier."""
        return self._onward[self.out[out].destination]

    def reaching(self, into: str) -> frozenset[str]:
        """The tiers whose contents can come in over a channel without having passed the device
        tier.
        """
        source = self.into[into].source
        return frozenset(tier for tier in self.lower if source in self._onward[tier])

    def time(self, channel: str, tensor: Tensor) -> float:
        """Nanoseconds for which a tensor occupies an engine of the channel at least."""
        key = channel, tensor.size_bytes, tensor.kind
        if key not in self._times:
            self._times[key] = self._time(self.into.get(channel) or self.out[channel], tensor)
        return self._times[key]

    def _time(self, channel: Channel, tensor: Tensor) -> float:
        if self.direct and not (
            channel.curve and self.through_device
        ):  # chunks may reach more by a curve than the whole does
            return float(alone_ns(self.hardware, channel.name, tensor.size_bytes, tensor.kind))
        flow = tensor.size_bytes * _NS_PER_S / channel_bandwidth(self.hardware, channel.name)
        return flow + channel.latency_ns

    @cached_property
    def limits(self) -> Sequence[PassageLimit]:
        """Every limit that is not implied by the others."""
        found = []
        ours = {**self.into, **self.out}
        queue_of = self.hardware.queue_of
        for name, channel in ours.items():
            if queue_of[name] == name:
                sharing = tuple(one for one in ours if queue_of[one] == name)
                found.append(PassageLimit(sharing, engines=channel.engines))
            if channel.engines > 1:
                found.append(
                    PassageLimit(
                        (name,), bandwidth_bytes_per_s=channel_bandwidth(self.hardware, name)
                    )
                )
        for fabric in self.hardware.fabrics:
            members = tuple(name for name in ours if name in fabric.channels)
            carried = sum(channel_bandwidth(self.hardware, name) for name in members)
            sharers = self.hardware.sharers(fabric.scope)
            if members and carried > fabric.bandwidth_bytes_per_s:
                found.append(
                    PassageLimit(members, bandwidth_bytes_per_s=fabric.bandwidth_bytes_per_s)
                )
            if members and sharers > 1 and sharers * carried > fabric.bandwidth_bytes_per_s:
                found.append(
                    PassageLimit(
                        members, bandwidth_bytes_per_s=fabric.bandwidth_bytes_per_s, sharers=sharers
                    )
                )
        return found
