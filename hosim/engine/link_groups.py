"""How long transfers take: the processes that end them, for channels that share bandwidth and for those that do not.

Channels that share a fabric, on one device or across devices, and a channel with several engines, form a :class:`LinkGroup`: its
transfers flow at max-min fair rates, and one process wakes when the next one ends. A channel of its own with one engine needs no
sharing: its transfer's end is known at its start. So it is in a group while only one transfer is under way.

A change takes as much time as there are classes of flows (:mod:`hosim.engine.flow_class`), not flows: hundreds of devices that share
a pool are one class a direction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from heapq import heappop, heappush

from hosim.costmodel.transfers import Link, max_min_rates
from hosim.engine.channels import ChannelQueue, IssuedTransfer
from hosim.engine.clock import NEVER, Alarm, Clock, Process
from hosim.engine.flow_class import FlowClass
from hosim.hardware import Hardware

KEPT_RATES = 10_000
"""How many of the rates found for some numbers of flows are kept to be found again."""

Flows = tuple[tuple[FlowClass, int], ...]
"""Which classes flow, and how many flows each has."""


class LinkGroup:
    """Channels that share bandwidth with one another, and the process that ends their transfers.

    ``capacity`` is bytes per second by link, while no channel is disturbed by another; ``beside`` what a link carries at most while
    another one does something. Rates are computed anew once an instant, after everything has ended and started at it. The alarm never
    rings too late: where rates fall it stays as it was, rings too soon and is set again. ``watch``, if there is one, is told of new rates.

    A transfer that begins while no other is under way is ``_lone`` until another one joins it. Its bytes flow from ``_lone_since`` on, and
    it ends at ``_lone_end`` unless that happens; ``_lone_flows`` is what the watch knows to flow of it. ``ordered`` knows no lone
    transfers: it also keeps the order of what ends at one instant in several groups, which recordings and allocators can tell.
    """

    def __init__(
        self, clock: Clock, capacity: Mapping[Link, Fraction], beside: Mapping[Link, Sequence[tuple[Link, Fraction]]], ordered: bool
    ) -> None:
        self._clock = clock
        self._ordered = ordered
        self._capacity = capacity
        self._beside = beside
        self._classes: dict[tuple[Fraction | None, tuple[Link, ...], int], FlowClass] = {}
        self._class_of_channel: dict[ChannelQueue, FlowClass] = {}
        self._flowing: list[FlowClass] = []
        self._latent: list[tuple[int, float, IssuedTransfer]] = []
        self._lone: IssuedTransfer | None = None
        self._lone_since = 0
        self._lone_end = 0
        self._lone_flows: Flows = ()
        self._flows_of_one: dict[ChannelQueue, Flows] = {}
        self._known_rates: dict[Flows, list[Fraction]] = {}
        self._since = 0
        self._alarm = Alarm(clock, self._run())
        self._changed = False
        self.dirty = False
        self.watch: Callable[[LinkGroup, int], None] | None = None

    def start(self, transfer: IssuedTransfer, flowing_since: int) -> None:
        """Begin the transfer's latency; its bytes flow from the instant given on."""
        if self._lone is None and not self._latent and not self._flowing and not self._ordered:
            self._lone, self._lone_since = transfer, flowing_since
            undivided = transfer.channel.undivided
            self._lone_end = transfer.start_ns + transfer.alone_ns if undivided else flowing_since + self._alone_ns(transfer)
            self._alarm.ring_at(self._lone_end if self.watch is None else flowing_since)
            return
        if self._lone is not None:
            self._join(self._lone)
        heappush(self._latent, (flowing_since, transfer.sequence, transfer))
        self.dirty = True

    def settle(self, now: int) -> None:
        """After something started or ended at this instant: set the rates anew, and the alarm to the next change."""
        self.dirty = False
        if self._lone is not None:  # it has begun after the last of the others has ended: nothing flows
            self._changed = False
            if self.watch is not None:
                self.watch(self, now)
            return
        self._advance(now)
        latent, flowing = self._latent, self._flowing
        if self._changed:
            self._changed = False
            self._set_rates()
            if self.watch is not None:
                self.watch(self, now)
        change = latent[0][0] if latent else NEVER
        for flow_class in flowing:
            end = now + flow_class.nanoseconds_left()
            if end < change:
                change = end
        if change < self._alarm.rings_at:
            if self._alarm.rings_at == NEVER:
                self._alarm.ring_at(change)
            else:
                self._alarm.move_to(change)

    @property
    def flows(self) -> Flows:
        """What flows: rates are the same for the same."""
        if not self._flowing:
            return self._lone_flows
        return tuple([(flow_class, len(flow_class.ends)) for flow_class in self._flowing])

    def rates(self) -> Iterator[tuple[ChannelQueue, Fraction]]:
        """The channel and the bytes per second of each transfer that flows."""
        if self._lone is not None and self._lone_flows:
            yield self._lone.channel, self._rates_of(self._lone_flows)[0]
        for flow_class in self._flowing:
            for _, _, transfer in flow_class.ends:
                yield transfer.channel, flow_class.rate

    def _set_rates(self) -> None:
        for flow_class, rate in zip(self._flowing, self._rates_of(self.flows), strict=True):
            flow_class.set_rate(rate)

    def _rates_of(self, flows: Flows) -> list[Fraction]:
        """The rate of each class if so many of each flow; the same object again for the same ones."""
        rates = self._known_rates.get(flows)
        if rates is None:
            if len(self._known_rates) > KEPT_RATES:
                self._known_rates.clear()
            carried = self._carried([flow_class for flow_class, _ in flows])
            rates = self._known_rates[flows] = max_min_rates([(n, c.limit, c.links) for c, n in flows], carried)
        return rates

    def _carried(self, flowing: Sequence[FlowClass]) -> Mapping[Link, Fraction]:
        """What each link carries while these flow, beside the others."""
        if not self._beside:
            return self._capacity
        active = {link for flow_class in flowing for link in flow_class.links}
        lessened = {
            link: min([self._capacity[link], *(carried for other, carried in beside if other in active)])
            for link, beside in self._beside.items()
        }
        return {**self._capacity, **lessened}

    def _class_of(self, transfer: IssuedTransfer) -> FlowClass:
        """The class of a transfer's flow; transfers without a ceiling of their own are of their channel's class."""
        channel, ceiling = transfer.channel, transfer.ceiling
        known = self._class_of_channel.get(channel) if ceiling is None else None
        if known is None:
            limit = channel.limit if ceiling is None or (channel.limit is not None and channel.limit <= ceiling) else ceiling
            # who watches wants to know of which tiers the rates are: there each channel has classes of its own
            key = limit, channel.links, -1 if self.watch is None else channel.index
            if key not in self._classes:
                self._classes[key] = FlowClass(limit, channel.links)
            known = self._classes[key]
            if ceiling is None:
                self._class_of_channel[channel] = known
        return known

    def _alone_ns(self, transfer: IssuedTransfer) -> int:
        """Nanoseconds for which the bytes of a transfer flow if it stays alone."""
        rate = self._rates_of(((self._class_of(transfer), 1),))[0]
        return -(-transfer.volume * rate.denominator // rate.numerator)

    def _join(self, lone: IssuedTransfer) -> None:
        """Another one begins: the transfer that was alone is one of several from now on, with what has flowed of it so far."""
        self._lone, self._lone_flows = None, ()
        heappush(self._latent, (self._lone_since, lone.sequence, lone))
        if self._lone_since <= self._clock.time:
            self._since = self._lone_since
            self._advance(self._lone_since)
            self._set_rates()

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
            flow_class = self._class_of(transfer)
            if not flow_class.ends:
                self._flowing.append(flow_class)
            flow_class.admit(transfer)
            self._changed = True

    def _run(self) -> Process:
        while True:
            yield
            self._alarm.rings_at = NEVER
            lone = self._lone
            if lone is not None:
                if self.watch is None or not self._lone_flows_on(lone, self.watch):
                    self._lone, self._lone_flows = None, ()
                    if self.watch is not None:
                        self.watch(self, self._lone_end)
                    channel = lone.channel
                    if not channel.undivided:
                        channel.contention_ns += self._lone_end - lone.start_ns - lone.alone_ns
                    channel.ended(lone)
                continue
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

    def _lone_flows_on(self, lone: IssuedTransfer, watch: Callable[[LinkGroup, int], None]) -> bool:
        """Tell the watch that the latency of the transfer that is alone is over. False if the transfer is over, too, by the clock."""
        clock, end = self._clock, self._lone_end
        if clock.time == end:
            return False
        flows = self._flows_of_one.get(lone.channel) if lone.ceiling is None else None
        if flows is None:
            flows = ((self._class_of(lone), 1),)
            if lone.ceiling is None:
                self._flows_of_one[lone.channel] = flows
        self._lone_flows = flows
        watch(self, clock.time)
        if not clock.unsettled and (not clock.to_come or clock.to_come[0][0] > end):  # nothing else happens until it ends
            clock.time = end
            return False
        self._alarm.ring_at(end)
        return True


def drive_channels(
    channels: Sequence[ChannelQueue], hardware: Hardware, clock: Clock, divided: bool = False, grouped: bool = False, ordered: bool = False
) -> dict[ChannelQueue, LinkGroup]:
    """Give the channels of all devices the processes that end their transfers; returns the group of each that shares bandwidth.

    With ``divided``, the channels are those of one device, and get its part of each link while all that share it do the same. With
    ``grouped``, every channel is in a group, so that the rates of all transfers can be watched. ``ordered`` is that of the groups.
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
            # the engines of a channel share its bandwidth; collectives have none but that of fabrics, and each may want all of it
            wanted[link] = wanted.get(link, 0) + bandwidth[own[:2]] * (channel.engines if own[0] == "fabric" else 1)
            crossing[link] = crossing.get(link, 0) + 1
        if channel.beside:
            beside.setdefault(own, []).extend([(other, part(carried, own)) for other, carried in channel.beside])
    watched = {*beside, *(other for others in beside.values() for other, _ in others)}
    for channel in channels:
        alone = [link for link in channel.links if crossing[link] == channel.engines == 1 and link not in watched]
        channel.limit = min([capacity[link] for link in alone], default=None)
        wide = [link for link in channel.links if link[0] == "fabric" and wanted[link] <= capacity[link]]  # never the bottleneck
        channel.links = tuple([link for link in channel.links if link not in alone and link not in wide])
        channel.undivided = min([capacity[link] for link in (*alone, *channel.links)], default=channel.bandwidth) == channel.bandwidth
    groups: dict[ChannelQueue, LinkGroup] = {}
    for members in _joined(channels, beside):
        first = members[0]
        if not grouped and not first.links and first.limit == first.bandwidth:
            first.alarm = Alarm(clock, first.run_alone())
            continue
        links = {link for channel in members for link in channel.links}
        ordered = ordered or any(
            channel.device != first.device for channel in members
        )  # several devices begin together more often than not
        group = LinkGroup(
            clock, {link: capacity[link] for link in links}, {link: beside[link] for link in links if link in beside}, ordered
        )
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
