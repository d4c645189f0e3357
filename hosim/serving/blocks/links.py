"""The channels and links of a serving run: transfers that queue, and flow at max-min fair rates, on
simpy's clock.

Channels that share a fabric, of one engine or of several, form a :class:`LinkGroup`, and so does a
channel that shares none: its transfers flow at max-min fair rates, and an alarm rings when the next
one ends.

A change takes as much time as there are classes of flows, not flows: hundreds of devices that share
a pool are one class a direction.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from heapq import heappop, heappush
from math import ceil
from typing import TYPE_CHECKING

import simpy

from hosim.analysis.costmodel.transfers import (
    NS_PER_S,
    Link,
    channel_bandwidth,
    max_min_rates,
    may_be_slower,
    transfer_ns,
)
from hosim.hardware import Hardware

# -- the clock -------------------------------------------------------------------------------------


NEVER = 2**62
"""Later than anything, in nanoseconds."""


class SteppedClock(simpy.Environment):
    """simpy's environment whose ``settle`` is called at the end of each instant that asked for it,
    and clears ``unsettled``.

    ``unsettled`` are the positions of engines at which something is left to be done at this
    instant. ``end_ns`` is the last instant at which something happened; alarms that were moved ring
    for nothing, and later.
    """

    if TYPE_CHECKING:

        @property
        def now(self) -> int:
            """The current instant: whole, as all delays are."""

    def __init__(self) -> None:
        super().__init__()
        self.unsettled: set[int] = set()
        self.settle: Callable[[], None] = self.unsettled.clear
        self.end_ns = 0
        self.rung_for_nothing = 0

    def step(self) -> None:
        """Process the next event, after all is settled that has to be before it."""
        while self.unsettled and self.peek() > self.now:
            self.settle()
        before = self.rung_for_nothing
        super().step()
        if self.rung_for_nothing == before:
            self.end_ns = self.now


class Alarm:
    """Calls again and again, at times that others set: ``rings_at`` is the next one."""

    def __init__(self, clock: SteppedClock, call: Callable[[], None]) -> None:
        self._clock = clock
        self._call = call
        self.rings_at = NEVER
        self._set = 0

    def ring_at(self, time: int) -> None:
        """Call at ``time``, and not when it was set to before."""
        self.rings_at = time
        self._set += 1
        self._clock.timeout(time - self._clock.now, self._set).callbacks.append(self._ring)

    def _ring(self, event: simpy.Event) -> None:
        if event.value == self._set:
            self.rings_at = NEVER
            self._call()
        else:
            self._clock.rung_for_nothing += 1


# -- channels: first-in first-out queues of transfers in front of DMA engines ----------------------


@dataclass(eq=False, slots=True)
class IssuedTransfer:
    """One issued copy, from its issue to its end. Times in nanoseconds; ``number`` is its place in
    the order of issue.

    ``ceiling`` is the most bytes per second that it can reach, if that is less than its channel's;
    ``alone_ns`` what it takes alone.
    """

    number: int
    channel: ChannelQueue
    size: int
    issue_ns: int
    start_ns: int = -1
    alone_ns: int = -1
    ceiling: Fraction | None = None


@dataclass(eq=False)
class ChannelQueue:
    """One channel of one engine: its queue, its engines and its figures.

    ``bandwidth`` is what a transfer gets alone: the least of the channel's and its fabrics'.
    ``links`` are what its transfers share with others, ``limit`` is what each gets at most of the
    others, and ``beside`` what its own link, the first one, carries while another link does
    something, as (the other one, bytes per second). ``sharing`` are the channels whose transfers take
    its engines, with itself (docs/contract.md, rule 24). A transfer that begins goes to ``share``,
    with the instant from which its bytes flow; ``ended`` is told of every end. ``has_overheads``
    says whether some transfers reach less than ``bandwidth``: then ``begin`` needs a ceiling.
    """

    index: int
    name: str
    bandwidth: int
    latency: int
    engines: int
    links: tuple[Link, ...]
    device: int
    limit: Fraction | None = None
    beside: tuple[tuple[Link, int], ...] = ()
    has_overheads: bool = False
    queue: deque[IssuedTransfer] = field(default_factory=deque)
    running: int = 0
    busy_since: int = 0
    transfers: int = 0
    bytes: int = 0
    busy_ns: int = 0
    queue_ns: int = 0
    contention_ns: int = 0
    sharing: tuple[ChannelQueue, ...] = field(init=False)
    share: Callable[[IssuedTransfer, int], None] = field(init=False)
    ended: Callable[[IssuedTransfer], None] = field(init=False)

    def __post_init__(self) -> None:
        self.sharing = (self,)

    @property
    def is_ready(self) -> bool:
        """Return whether something waits, and an engine is free."""
        return bool(self.queue) and sum([one.running for one in self.sharing]) < self.engines

    def begin(self, now: int, ceiling: Fraction | None = None) -> None:
        """Take an engine for the head of the queue, and let it flow after the latency, at
        ``ceiling`` bytes per second at most.
        """
        transfer = self.queue.popleft()
        if not self.running:
            self.busy_since = now
        self.running += 1
        transfer.start_ns = now
        if ceiling is not None and ceiling < self.bandwidth:
            transfer.ceiling = ceiling
        transfer.alone_ns = transfer_ns(
            transfer.size, transfer.ceiling or self.bandwidth, self.latency
        )
        self.transfers += 1
        self.bytes += transfer.size
        self.queue_ns += now - transfer.issue_ns
        self.share(transfer, now + self.latency)


def build_channels(hardware: Hardware, device: int = 0) -> list[ChannelQueue]:
    """The channels of one engine, in the machine's order;
    :func:`hosim.serving.blocks.links.drive_channels` makes them run.
    """
    own: dict[str, Link] = {
        c.name: ("channel", c.name, hardware.instance(hardware.channel_scope(c), device))
        for c in hardware.channels
    }
    channels = []
    for k, c in enumerate(hardware.channels):
        fabrics = [f for f in hardware.fabrics if c.name in f.channels]
        links = (
            own[c.name],
            *(("fabric", f.name, hardware.instance(f.scope, device)) for f in fabrics),
        )
        channel = ChannelQueue(
            k, c.name, channel_bandwidth(hardware, c.name), c.latency_ns, c.engines, links, device
        )
        channel.beside = tuple((own[other], bandwidth) for other, bandwidth in c.beside)
        channel.has_overheads = may_be_slower(hardware, c)
        channels.append(channel)
    for channel in channels:
        first = hardware.queue_of[channel.name]
        channel.sharing = tuple(one for one in channels if hardware.queue_of[one.name] == first)
    return channels


# -- classes of flows ------------------------------------------------------------------------------


@dataclass(eq=False, slots=True)
class FlowClass:
    """Flows that have the same rate at any time: that cross the same ``links``, each at most at
    ``limit`` bytes per second.

    A flow's volume is its bytes times nanoseconds a second, so that bytes per second times
    nanoseconds give it. ``served`` is the volume that has flowed to one that was there all the
    time. ``ends`` are the flows by the ``served`` at which they are through (a heap), then in order
    of issue.
    """

    limit: Fraction | None
    links: tuple[Link, ...]
    ends: list[tuple[Fraction, int, IssuedTransfer]] = field(default_factory=list)
    served: Fraction = Fraction(0)
    rate: Fraction = Fraction(0)

    def admit(self, transfer: IssuedTransfer) -> None:
        """Let a transfer's bytes flow from now on; the rate is to be set before time moves on."""
        if not self.ends:
            self.served = Fraction(0)  # the sum of many rates gets long
        heappush(self.ends, (self.served + transfer.size * NS_PER_S, transfer.number, transfer))

    def nanoseconds_left(self) -> int:
        """Whole nanoseconds until the first flow is through, at the present rate."""
        return ceil((self.ends[0][0] - self.served) / self.rate)


# -- groups of links -------------------------------------------------------------------------------


KEPT_RATES = 10_000
"""The number of solved rates, by numbers of flows, that are kept to be found again."""

Flows = tuple[tuple[FlowClass, int], ...]
"""The classes that flow, and the number of flows of each."""


class LinkGroup:
    """Channels that share bandwidth with one another, and the alarm that ends their transfers.

    ``capacity`` is bytes per second by link, while no channel is disturbed by another; ``beside``
    what a link carries at most while another one does something. Rates are computed anew once an
    instant, after everything has ended and started at it. The alarm never rings too late: where
    rates fall it stays as it was, rings too soon and is set again.
    """

    def __init__(
        self,
        clock: SteppedClock,
        capacity: Mapping[Link, Fraction],
        beside: Mapping[Link, Sequence[tuple[Link, Fraction]]],
    ) -> None:
        self._clock = clock
        self._capacity = capacity
        self._beside = beside
        self._classes: dict[tuple[Fraction | None, tuple[Link, ...]], FlowClass] = {}
        self._flowing: list[FlowClass] = []
        self._latent: list[tuple[int, int, IssuedTransfer]] = []
        self._rates_of = lru_cache(KEPT_RATES)(self._found_rates)
        self._since = 0
        self._alarm = Alarm(clock, self._rung)
        self._changed = False
        self.dirty = False

    def start(self, transfer: IssuedTransfer, flowing_since: int) -> None:
        """Begin the transfer's latency; its bytes flow from the instant given on."""
        heappush(self._latent, (flowing_since, transfer.number, transfer))
        self.dirty = True

    def settle(self, now: int) -> None:
        """After something started or ended at this instant: set the rates anew, and the alarm to
        the next change.
        """
        self.dirty = False
        self._advance(now)
        if self._changed:
            self._changed = False
            self._set_rates()
        ends = [now + flow_class.nanoseconds_left() for flow_class in self._flowing]
        change = min([*ends, *[since for since, _, _ in self._latent[:1]]], default=NEVER)
        if change < self._alarm.rings_at:
            self._alarm.ring_at(change)

    def _set_rates(self) -> None:
        flows = tuple([(flow_class, len(flow_class.ends)) for flow_class in self._flowing])
        for flow_class, rate in zip(self._flowing, self._rates_of(flows), strict=True):
            flow_class.rate = rate

    def _found_rates(self, flows: Flows) -> list[Fraction]:
        """The rate of each class if so many of each flow."""
        return max_min_rates(
            [(n, c.limit, c.links) for c, n in flows],
            self._carried([flow_class for flow_class, _ in flows]),
        )

    def _carried(self, flowing: Sequence[FlowClass]) -> Mapping[Link, Fraction]:
        """Return the bandwidth of each link while these flow, beside the others."""
        if not self._beside:
            return self._capacity
        active = {link for flow_class in flowing for link in flow_class.links}
        lessened = {
            link: min(
                [self._capacity[link], *(carried for other, carried in beside if other in active)]
            )
            for link, beside in self._beside.items()
        }
        return {**self._capacity, **lessened}

    def _class_of(self, transfer: IssuedTransfer) -> FlowClass:
        """The class of a transfer's flow."""
        channel, ceiling = transfer.channel, transfer.ceiling
        limit = (
            channel.limit
            if ceiling is None or (channel.limit is not None and channel.limit <= ceiling)
            else ceiling
        )
        key = limit, channel.links
        if key not in self._classes:
            self._classes[key] = FlowClass(limit, channel.links)
        return self._classes[key]

    def _advance(self, now: int) -> None:
        """Let bytes flow until now, and what has spent its latency begin to."""
        elapsed = now - self._since
        if elapsed:
            for flow_class in self._flowing:
                flow_class.served += flow_class.rate * elapsed
            self._since = now
        latent = self._latent
        while latent and latent[0][0] <= now:
            transfer = heappop(latent)[2]
            flow_class = self._class_of(transfer)
            if not flow_class.ends:
                self._flowing.append(flow_class)
            flow_class.admit(transfer)
            self._changed = True

    def _rung(self) -> None:
        now = self._clock.now
        self._advance(now)
        done = []
        for flow_class in self._flowing:
            ends = flow_class.ends
            while ends and ends[0][0] <= flow_class.served:
                done.append(heappop(ends)[1:])
        if not done:
            self.settle(now)
            return
        self.dirty = self._changed = True
        self._flowing = [flow_class for flow_class in self._flowing if flow_class.ends]
        done.sort()  # in order of issue
        for _, transfer in done:
            transfer.channel.contention_ns += now - transfer.start_ns - transfer.alone_ns
            transfer.channel.ended(transfer)


def drive_channels(
    channels: Sequence[ChannelQueue], hardware: Hardware, clock: SteppedClock
) -> list[LinkGroup]:
    """Give the channels of all engines what ends their transfers: the groups of those that share
    bandwidth.
    """
    capacity, beside = _parts(channels, hardware)
    groups: list[LinkGroup] = []
    for members in _joined(channels, beside):
        links = {link for channel in members for link in channel.links}
        group = LinkGroup(
            clock,
            {link: capacity[link] for link in links},
            {link: beside[link] for link in links if link in beside},
        )
        groups.append(group)
        for channel in members:
            channel.share = group.start
    return groups


def _parts(
    channels: Sequence[ChannelQueue], hardware: Hardware
) -> tuple[Mapping[Link, Fraction], Mapping[Link, Sequence[tuple[Link, Fraction]]]]:
    """The bandwidth of each link, and what it carries beside others. Channels get the links that
    they share and their limit by the others.

    The channels of an engine stand for those of all its devices: they get one device's part of each
    link.
    """
    bandwidth = {("channel", c.name): c.bandwidth_bytes_per_s for c in hardware.channels}
    bandwidth |= {("fabric", f.name): f.bandwidth_bytes_per_s for f in hardware.fabrics}
    scope = {("channel", c.name): hardware.channel_scope(c) for c in hardware.channels} | {
        ("fabric", f.name): f.scope for f in hardware.fabrics
    }

    def part(whole: int, link: Link) -> Fraction:
        return Fraction(whole, hardware.sharers(scope[link[:2]]))

    capacity: dict[Link, Fraction] = {}
    wanted: Counter[Link] = Counter()
    crossing: Counter[Link] = Counter()
    beside: dict[Link, list[tuple[Link, Fraction]]] = {}
    for channel in channels:
        own = channel.links[0]
        for link in channel.links:
            capacity[link] = part(bandwidth[link[:2]], link)
            # the engines of a channel share its bandwidth; ways between engines have none but that
            # of fabrics
            wanted[link] += bandwidth[own[:2]] * (channel.engines if own[0] == "fabric" else 1)
            crossing[link] += 1
        if channel.beside:
            beside.setdefault(own, []).extend(
                [(other, part(carried, own)) for other, carried in channel.beside]
            )
    watched = {*beside, *(other for others in beside.values() for other, _ in others)}
    for channel in channels:
        alone = [
            link
            for link in channel.links
            if crossing[link] == channel.engines == 1 and link not in watched
        ]
        channel.limit = min([capacity[link] for link in alone], default=None)
        wide = [
            link for link in channel.links if link[0] == "fabric" and wanted[link] <= capacity[link]
        ]  # never the bottleneck
        channel.links = tuple(
            [link for link in channel.links if link not in alone and link not in wide]
        )
    return capacity, beside


def _joined(
    channels: Sequence[ChannelQueue], beside: Mapping[Link, Sequence[tuple[Link, Fraction]]]
) -> Iterable[list[ChannelQueue]]:
    """The channels that are joined through links, or by disturbing one another, together; in the
    order of their first ones.
    """
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
