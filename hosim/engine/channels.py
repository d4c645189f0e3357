"""Channels: first-in first-out queues of transfers in front of DMA engines, and the processes that end them.

Channels that share a fabric, on one device or across devices, and a channel with several engines, form a :class:`LinkGroup`: its
transfers flow at max-min fair rates, and one process wakes when the next one ends. A channel of its own with one engine needs no
sharing: its transfer's end is known at its start.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from hosim.engine.clock import Alarm, Clock, Process
from hosim.engine.flow import NS_PER_S, FlowClass, Link, max_min_rates
from hosim.engine.program import Way
from hosim.hardware import Hardware

if TYPE_CHECKING:
    from hosim.engine.multi_hop import Route

NEVER = 2**62
"""Later than anything, in nanoseconds."""

KEPT_RATES = 10_000
"""How many of the rates found for some numbers of flows are kept to be found again."""


class Transfer:
    """One issued copy, from its issue to its end. Times in nanoseconds; ``sequence`` is its place in the order of issue.

    ``volume`` is what has to flow, in bytes times nanoseconds a second, and ``ceiling`` the most bytes per second that it can reach, if
    that is less than its channel's. ``route`` is there if it is one chunk on one hop of several (:class:`hosim.engine.multi_hop.Chunk`).
    """

    route: Route | None = None
    sequence: float
    start_ns: int
    end_ns: int
    alone_ns: int
    ceiling: Fraction | None

    __slots__ = (
        "alone_ns",
        "cache_op",
        "ceiling",
        "channel",
        "end_ns",
        "issue_ns",
        "sequence",
        "size",
        "start_ns",
        "tensor",
        "volume",
        "way",
    )

    def __init__(self, sequence: int, cache_op: int, tensor: int, way: Way, channel: Channel, size: int, now: int) -> None:
        self.sequence = sequence
        self.cache_op = cache_op
        self.tensor = tensor
        self.way = way
        self.channel = channel
        self.size = size
        self.volume = size * NS_PER_S
        self.issue_ns = now


class Channel:
    """One channel of one device: its queue, its engines and its figures.

    ``bandwidth`` is what a transfer gets alone: the least of the channel's and its fabrics'. ``links`` are what its transfers
    share with others in their ``group``, ``limit`` is what each gets at most of the others, and ``beside`` what its own link, the first
    one, carries while another link does something, as (the other one, bytes per second). A channel that shares nothing has no group:
    its own process, which ``alarm`` wakes, ends its one transfer, ``current``. ``ended`` is told of every end. ``uneven`` says whether
    some transfers begin otherwise than others: what begins them has to give ``begin`` a ceiling and the time to pin memory then.
    """

    alarm: Alarm
    current: Transfer
    ended: Callable[[Transfer], None]
    group: LinkGroup | None = None
    limit: Fraction | None = None
    beside: tuple[tuple[Link, int], ...] = ()
    uneven = False

    def __init__(self, index: int, name: str, bandwidth: int, latency: int, engines: int, links: tuple[Link, ...], device: int) -> None:
        self.index = index
        self.device = device
        self.name = name
        self.bandwidth = bandwidth
        self.latency = latency
        self.engines = engines
        self.links = links
        self.queue: deque[Transfer] = deque()
        self.running = 0
        self.busy_since = 0
        self.transfers = 0
        self.bytes = 0
        self.busy_ns = 0
        self.queue_ns = 0
        self.contention_ns = 0

    def begin(self, now: int, ceiling: Fraction | None = None, pin_ns: int = 0) -> None:
        """Take an engine for the head of the queue, and let it flow after ``pin_ns`` and the latency.

        It flows at ``ceiling`` bytes per second at most, if there is one.
        """
        transfer = self.queue.popleft()
        if not self.running:
            self.busy_since = now
        self.running += 1
        transfer.start_ns = now
        if ceiling is None or ceiling >= self.bandwidth:
            transfer.ceiling = None
            transfer.alone_ns = alone = pin_ns + self.latency - (-transfer.volume // self.bandwidth)
        else:
            transfer.ceiling = ceiling
            transfer.alone_ns = alone = pin_ns + self.latency - int(-transfer.volume // ceiling)
        self.transfers += 1
        self.bytes += transfer.size
        self.queue_ns += now - transfer.issue_ns
        if self.group is None:
            self.current = transfer
            self.alarm.ring_at(now + alone)
        else:
            self.group.start(transfer, now + pin_ns + self.latency)

    def end(self, transfer: Transfer, now: int) -> None:
        """Give the engine back and note the figures."""
        transfer.end_ns = now
        self.running -= 1
        if not self.running:
            self.busy_ns += now - self.busy_since

    def run_alone(self) -> Process:
        """The process of a channel that shares nothing: sleeps until its one transfer's end, which is known at its start."""
        ended = self.ended
        while True:
            yield
            ended(self.current)


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
        self._latent: list[tuple[int, float, Transfer]] = []
        self._known_rates: dict[tuple[tuple[FlowClass, int], ...], list[Fraction]] = {}
        self._since = 0
        self._rings_at = NEVER
        self._alarm = Alarm(clock, self._run())
        self._changed = False
        self.dirty = False
        self.watch: Callable[[LinkGroup, int], None] | None = None

    def start(self, transfer: Transfer, flowing_since: int) -> None:
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

    def rates(self) -> Iterator[tuple[Channel, Fraction]]:
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


def build_channels(hardware: Hardware, device: int = 0) -> list[Channel]:
    """The channels of one device, in the machine's order; :func:`drive_channels` makes them run."""
    own: dict[str, Link] = {c.name: ("channel", c.name, hardware.instance(hardware.channel_scope(c), device)) for c in hardware.channels}
    channels = []
    for k, c in enumerate(hardware.channels):
        fabrics = [f for f in hardware.fabrics if c.name in f.channels]
        alone = min([c.bandwidth_bytes_per_s, *(f.bandwidth_bytes_per_s for f in fabrics)])
        links = (own[c.name], *(("fabric", f.name, hardware.instance(f.scope, device)) for f in fabrics))
        channel = Channel(k, c.name, alone, c.latency_ns, c.engines, links, device)
        channel.beside = tuple((own[other], bandwidth) for other, bandwidth in c.beside)
        ends = [hardware.tiers[hardware.tier_index[name]] for name in (c.source, c.destination)]
        channel.uneven = bool(c.curve) or c.pageable_bytes_per_s is not None or any(tier.pin_ns for tier in ends)
        channels.append(channel)
    return channels


def drive_channels(channels: Sequence[Channel], hardware: Hardware, clock: Clock, divided: bool = False, grouped: bool = False) -> None:
    """Give the channels of all devices the processes that end their transfers.

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
    for members in _joined(channels, beside):
        first = members[0]
        if not grouped and not first.links and first.limit == first.bandwidth:
            first.alarm = Alarm(clock, first.run_alone())
            continue
        links = {link for channel in members for link in channel.links}
        group = LinkGroup(clock, {link: capacity[link] for link in links}, {link: beside[link] for link in links if link in beside})
        for channel in members:
            channel.group = group


def _joined(channels: Sequence[Channel], beside: Mapping[Link, Sequence[tuple[Link, Fraction]]]) -> Iterable[list[Channel]]:
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
    together: dict[Link | int, list[Channel]] = {}
    for k, channel in enumerate(channels):
        together.setdefault(root(channel.links[0]) if channel.links else k, []).append(channel)
    return together.values()
