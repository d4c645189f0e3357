"""How long transfers take: the processes that end them, for channels that share bandwidth and for those that do not.

Channels that share a fabric, on one device or across devices, and a channel with several engines, form a :class:`LinkGroup`: its
transfers flow at max-min fair rates, and one process wakes when the next one ends. A channel of its own with one engine needs no
sharing: its transfer's end is known at its start.

Flows that cross the same links, and may go equally fast on what is theirs alone, always have the same rate: they form a
:class:`FlowClass`. What has flowed to each of them since a given instant is then one number for all, and the one with the least to come
ends first whatever the rates will be. So a change takes as much time as there are classes, not flows: hundreds of devices that share
a pool are one class a direction.

Nothing drifts: a rate is a whole number of parts of a byte a second, of which a class takes as many as its rates need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from heapq import heappop, heappush
from math import lcm

from hosim.costmodel.fair_sharing import Link, max_min_rates
from hosim.engine.channels import ChannelQueue, IssuedTransfer
from hosim.engine.clock import Alarm, Clock, Process
from hosim.hardware import Hardware

NEVER = 2**62
"""Later than anything, in nanoseconds."""

KEPT_RATES = 10_000
"""How many of the rates found for some numbers of flows are kept to be found again."""


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
        self.ends: list[tuple[int, float, IssuedTransfer]] = []
        self.served = 0
        self.scale = 1
        self.step = 0
        self.rate = Fraction(0)

    def admit(self, transfer: IssuedTransfer) -> None:
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


class LinkGroup:
    """Channels that share bandwidth with one another, and the process that ends their transfers.

    ``capacity`` is bytes per second by link, while no channel is disturbed by another; ``beside`` what a link carries at most while
    another one does something. Rates are computed anew once an instant, after everything has ended and started at it. The alarm never
    rings too late: where rates fall it stays as it was, rings too soon and is set again. ``watch``, if there is one, is told of new rates.
    """

    def __init__(self, clock: Clock, capacity: Mapping[Link, Fraction], beside: Mapping[Link, Sequence[tuple[Link, Fraction]]]) -> None:
        self._clock = clock
        self._capacity = capacity
        self._beside = beside
        self._classes: dict[tuple[Fraction | None, tuple[Link, ...]], FlowClass] = {}
        self._flowing: list[FlowClass] = []
        self._latent: list[tuple[int, float, IssuedTransfer]] = []
        self._known_rates: dict[tuple[tuple[FlowClass, int], ...], list[Fraction]] = {}
        self._since = 0
        self._rings_at = NEVER
        self._alarm = Alarm(clock, self._run())
        self._changed = False
        self.dirty = False
        self.watch: Callable[[LinkGroup, int], None] | None = None

    def start(self, transfer: IssuedTransfer, flowing_since: int) -> None:
        """Begin the transfer's latency; its bytes flow from the instant given on."""
        heappush(self._latent, (flowing_since, transfer.sequence, transfer))
        self.dirty = True

    def settle(self, now: int) -> None:
        """After something started or ended at this instant: set the rates anew, and the alarm to the next change."""
        self.dirty = False
        self._advance(now)
        latent, flowing = self._latent, self._flowing
        if self._changed:
            self._changed = False
            key = self.key
            rates = self._known_rates.get(key)
            if rates is None:
                if len(self._known_rates) > KEPT_RATES:
                    self._known_rates.clear()
                rates = self._known_rates[key] = max_min_rates([(n, c.limit, c.links) for c, n in key], self._carried())
            for flow_class, rate in zip(flowing, rates, strict=True):
                flow_class.set_rate(rate)
            if self.watch is not None:
                self.watch(self, now)
        change = latent[0][0] if latent else NEVER
        for flow_class in flowing:
            end = now + flow_class.nanoseconds_left()
            if end < change:
                change = end
        if change < self._rings_at:
            if self._rings_at == NEVER:
                self._alarm.ring_at(change)
            else:
                self._alarm.move_to(change)
            self._rings_at = change

    @property
    def key(self) -> tuple[tuple[FlowClass, int], ...]:
        """What flows: rates are the same for the same."""
        return tuple([(flow_class, len(flow_class.ends)) for flow_class in self._flowing])

    def rates(self) -> Iterator[tuple[ChannelQueue, Fraction]]:
        """The channel and the bytes per second of each transfer that flows."""
        for flow_class in self._flowing:
            for _, _, transfer in flow_class.ends:
                yield transfer.channel, flow_class.rate

    def _carried(self) -> Mapping[Link, Fraction]:
        """What each link carries now, beside the others."""
        if not self._beside:
            return self._capacity
        active = {link for flow_class in self._flowing for link in flow_class.links}
        lessened = {
            link: min([self._capacity[link], *(carried for other, carried in beside if other in active)])
            for link, beside in self._beside.items()
        }
        return {**self._capacity, **lessened}

    def _advance(self, now: int) -> None:
        """Let bytes flow until now, and what has spent its latency begin to."""
        elapsed = now - self._since
        if elapsed:
            for flow_class in self._flowing:
                flow_class.served += flow_class.step * elapsed
            self._since = now
        latent = self._latent
        while latent and latent[0][0] <= now:
            transfer = heappop(latent)[2]
            channel, ceiling = transfer.channel, transfer.ceiling
            limit = channel.limit if ceiling is None or (channel.limit is not None and channel.limit <= ceiling) else ceiling
            key = limit, channel.links
            if key not in self._classes:
                self._classes[key] = FlowClass(*key)
            flow_class = self._classes[key]
            if not flow_class.ends:
                self._flowing.append(flow_class)
            flow_class.admit(transfer)
            self._changed = True

    def _run(self) -> Process:
        while True:
            yield
            self._rings_at = NEVER
            now = self._clock.time
            self._advance(now)
            done = []
            for flow_class in self._flowing:
                ends = flow_class.ends
                while ends and ends[0][0] <= flow_class.served:
                    done.append(heappop(ends)[1:])
            if not done:
                self.settle(now)
                continue
            self.dirty = self._changed = True
            self._flowing = [flow_class for flow_class in self._flowing if flow_class.ends]
            done.sort()  # in order of issue
            for _, transfer in done:
                channel = transfer.channel
                channel.contention_ns += now - transfer.start_ns - transfer.alone_ns
                self._clock.unsettled.add(channel.device)
                channel.ended(transfer)


def drive_channels(
    channels: Sequence[ChannelQueue], hardware: Hardware, clock: Clock, divided: bool = False, grouped: bool = False
) -> dict[ChannelQueue, LinkGroup]:
    """Give the channels of all devices the processes that end their transfers; returns the group of each that shares bandwidth.

    With ``divided``, the channels are those of one device, and get its part of each link while all that share it do the same. With
    ``grouped``, every channel is in a group, so that the rates of all transfers can be watched.
    """
    bandwidth = {("channel", c.name): c.bandwidth_bytes_per_s for c in hardware.channels}
    bandwidth |= {("fabric", f.name): f.bandwidth_bytes_per_s for f in hardware.fabrics}
    scope = {("channel", c.name): hardware.channel_scope(c) for c in hardware.channels} | {
        ("fabric", f.name): f.scope for f in hardware.fabrics
    }

    def part(whole: int, link: Link) -> Fraction:
        return Fraction(whole, hardware.sharers(scope[link[:2]]) if divided else 1)

    capacity: dict[Link, Fraction] = {}
    wanted: dict[Link, int] = {}
    crossing: dict[Link, int] = {}
    beside: dict[Link, list[tuple[Link, Fraction]]] = {}
    for channel in channels:
        own = channel.links[0]
        for link in channel.links:
            capacity[link] = part(bandwidth[link[:2]], link)
            wanted[link] = wanted.get(link, 0) + bandwidth[own[:2]]
            crossing[link] = crossing.get(link, 0) + 1
        if channel.beside:
            beside.setdefault(own, []).extend([(other, part(carried, own)) for other, carried in channel.beside])
    watched = {*beside, *(other for others in beside.values() for other, _ in others)}
    for channel in channels:
        alone = [link for link in channel.links if crossing[link] == channel.engines == 1 and link not in watched]
        channel.limit = min([capacity[link] for link in alone], default=None)
        wide = [link for link in channel.links if link[0] == "fabric" and wanted[link] <= capacity[link]]  # never the bottleneck
        channel.links = tuple([link for link in channel.links if link not in alone and link not in wide])
    groups: dict[ChannelQueue, LinkGroup] = {}
    for members in _joined(channels, beside):
        first = members[0]
        if not grouped and not first.links and first.limit == first.bandwidth:
            first.alarm = Alarm(clock, first.run_alone())
            continue
        links = {link for channel in members for link in channel.links}
        group = LinkGroup(clock, {link: capacity[link] for link in links}, {link: beside[link] for link in links if link in beside})
        for channel in members:
            channel.share = group.start
            groups[channel] = group
    return groups


def _joined(channels: Sequence[ChannelQueue], beside: Mapping[Link, Sequence[tuple[Link, Fraction]]]) -> Iterable[list[ChannelQueue]]:
    """The channels that are joined through links, or by disturbing one another, together; in the order of their first ones."""
    above: dict[Link, Link] = {}

    def root(link: Link) -> Link:
        while (up := above.setdefault(link, link)) != link:
            above[link] = link = above[up]
        return link

    for channel in channels:
        for link in channel.links[1:]:
            above[root(link)] = root(channel.links[0])
    for link, others in beside.items():
        for other, _ in others:
            above[root(other)] = root(link)
    together: dict[Link | int, list[ChannelQueue]] = {}
    for k, channel in enumerate(channels):
        together.setdefault(root(channel.links[0]) if channel.links else k, []).append(channel)
    return together.values()
