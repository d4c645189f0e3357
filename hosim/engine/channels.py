"""Channels: first-in first-out queues of transfers in front of DMA engines, and the processes that end them.

Channels that share a fabric, and a channel with several engines, form a :class:`LinkGroup`: its transfers flow at max-min fair
rates, and one process wakes when the next one ends. A channel of its own with one engine needs no sharing: its transfer's end is
known at its start.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from fractions import Fraction

from hosim.engine.clock import Alarm, Clock, Process
from hosim.engine.flow import NS_PER_S, max_min_rates
from hosim.engine.program import Way
from hosim.hardware import Hardware


class Transfer:
    """One issued copy, from its issue to its end. Times in nanoseconds; ``sequence`` is its place in the order of issue.

    ``flowing_since``, ``remaining`` (bytes) and ``rate`` (bytes a nanosecond) are the :class:`LinkGroup`'s, once it has started;
    ``ceiling`` is the most bytes per second that it can reach, if it is less than its channel's.
    """

    start_ns: int
    end_ns: int
    alone_ns: int
    flowing_since: int
    remaining: Fraction
    rate: Fraction
    ceiling: Fraction | None

    __slots__ = (
        "alone_ns",
        "cache_op",
        "ceiling",
        "channel",
        "end_ns",
        "flowing_since",
        "issue_ns",
        "rate",
        "remaining",
        "sequence",
        "size",
        "start_ns",
        "tensor",
        "way",
    )

    def __init__(self, sequence: int, cache_op: int, tensor: int, way: Way, channel: Channel, size: int, now: int) -> None:
        self.sequence = sequence
        self.cache_op = cache_op
        self.tensor = tensor
        self.way = way
        self.channel = channel
        self.size = size
        self.issue_ns = now


class Channel:
    """One channel of one device: its queue, its engines and its figures.

    ``bandwidth`` is what a transfer gets alone: the least of the channel's and its fabrics'. ``links`` are what its transfers
    share with others in their ``group``, the channel itself first, and ``beside`` what that one carries while another link does
    something, as (the other one, bytes per second). A channel that shares nothing has no group: its own process, which ``alarm``
    wakes, ends its one transfer, ``current``. ``uneven`` says whether some transfers begin otherwise than others: what begins
    them has to give ``begin`` a ceiling and the time to pin memory then.
    """

    alarm: Alarm
    current: Transfer
    group: LinkGroup | None = None
    beside: tuple[tuple[str, int], ...] = ()
    uneven = False

    def __init__(self, index: int, name: str, bandwidth: int, latency: int, engines: int, links: tuple[str, ...]) -> None:
        self.index = index
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
        size = transfer.size
        if ceiling is None or ceiling >= self.bandwidth:
            transfer.ceiling = None
            transfer.alone_ns = alone = pin_ns + self.latency - (-size * NS_PER_S // self.bandwidth)
        else:
            transfer.ceiling = ceiling
            transfer.alone_ns = alone = pin_ns + self.latency - int(-size * NS_PER_S // ceiling)
        self.transfers += 1
        self.bytes += size
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

    def run_alone(self, ended: Callable[[Transfer], None]) -> Process:
        """The process of a channel that shares nothing: sleeps until its one transfer's end, which is known at its start."""
        while True:
            yield
            ended(self.current)


class LinkGroup:
    """Channels that share bandwidth with one another, and the process that ends their transfers.

    ``capacity`` is bytes per second by link, while no channel is disturbed by another. A transfer with a ceiling of its own crosses
    one more link, itself. Rates are computed anew once an instant, after everything has ended and started at it.
    """

    def __init__(self, clock: Clock, capacity: Mapping[Hashable, int | Fraction], ended: Callable[[Transfer], None]) -> None:
        self._clock = clock
        self._capacity = capacity
        self._latent: list[Transfer] = []
        self._flowing: list[Transfer] = []
        self._since = 0
        self._alarm = Alarm(clock, self._run(ended))
        self.dirty = False

    def start(self, transfer: Transfer, flowing_since: int) -> None:
        """Begin the transfer's latency; its bytes flow from the instant given on."""
        transfer.flowing_since = flowing_since
        transfer.remaining = Fraction(transfer.size)
        self._latent.append(transfer)
        self.dirty = True

    def settle(self, now: int) -> None:
        """After something started or ended at this instant: set the rates anew, and the alarm to the next change."""
        self.dirty = False
        self._advance(now)
        rates = self._rates()
        changes: list[int] = [x.flowing_since for x in self._latent]
        for transfer, rate in zip(self._flowing, rates, strict=True):
            transfer.rate = rate
            changes.append(now - int(-transfer.remaining // rate))
        if changes:
            self._alarm.move_to(min(changes))

    def _rates(self) -> list[Fraction]:
        """Rates of the flowing transfers, under their own ceilings and what their channels carry beside one another."""
        flowing = self._flowing
        disturbed = {x.channel.links[0]: x.channel.beside for x in flowing if x.channel.beside}
        if not disturbed and all(x.ceiling is None for x in flowing):
            return max_min_rates([x.channel.links for x in flowing], self._capacity)
        active = {x.channel.links[0] for x in flowing}
        capacity = dict(self._capacity)
        for link, beside in disturbed.items():
            capacity[link] = min([self._capacity[link], *(carried for other, carried in beside if other in active)])
        paths: list[tuple[Hashable, ...]] = []
        for transfer in flowing:
            if transfer.ceiling is None:
                paths.append(transfer.channel.links)
            else:
                capacity[transfer] = transfer.ceiling
                paths.append((*transfer.channel.links, transfer))
        return max_min_rates(paths, capacity)

    def _advance(self, now: int) -> None:
        """Let bytes flow until now, and what has spent its latency begin to."""
        elapsed = now - self._since
        if elapsed:
            for transfer in self._flowing:
                transfer.remaining -= transfer.rate * elapsed
            self._since = now
        for transfer in [x for x in self._latent if x.flowing_since <= now]:
            self._latent.remove(transfer)
            self._flowing.append(transfer)

    def _run(self, ended: Callable[[Transfer], None]) -> Process:
        while True:
            yield
            self.dirty = True
            self._clock.unsettled = True
            now = self._clock.time
            self._advance(now)
            done = [x for x in self._flowing if x.remaining <= 0]
            self._flowing = [x for x in self._flowing if x.remaining > 0]
            for transfer in sorted(done, key=lambda x: x.sequence):
                transfer.channel.contention_ns += now - transfer.start_ns - transfer.alone_ns
                ended(transfer)


def build_channels(hardware: Hardware) -> list[Channel]:
    """One device's channels, in the machine's order; :func:`drive_channels` makes them run."""
    channels = []
    for k, c in enumerate(hardware.channels):
        fabrics = [f for f in hardware.fabrics if c.name in f.channels]
        alone = min([c.bandwidth_bytes_per_s, *(f.bandwidth_bytes_per_s for f in fabrics)])
        links = (f"channel {c.name}", *(f"fabric {f.name}" for f in fabrics))
        channel = Channel(k, c.name, alone, c.latency_ns, c.engines, links)
        channel.beside = tuple((f"channel {other}", bandwidth) for other, bandwidth in c.beside)
        ends = [hardware.tiers[hardware.tier_index[name]] for name in (c.source, c.destination)]
        channel.uneven = bool(c.curve) or c.pageable_bytes_per_s is not None or any(tier.pin_ns for tier in ends)
        channels.append(channel)
    return channels


def drive_channels(channels: Sequence[Channel], hardware: Hardware, clock: Clock, ended: Callable[[Transfer], None]) -> list[LinkGroup]:
    """Give each channel the process that ends its transfers, by calling ``ended``; returns those that several share."""
    capacity: dict[Hashable, int | Fraction] = {f"channel {c.name}": c.bandwidth_bytes_per_s for c in hardware.channels}
    capacity |= {f"fabric {f.name}": f.bandwidth_bytes_per_s for f in hardware.fabrics}
    component = _components(hardware)
    groups: dict[int, LinkGroup] = {}
    for channel, number in zip(channels, component, strict=True):
        if channel.engines == 1 and component.count(number) == 1:
            channel.alarm = Alarm(clock, channel.run_alone(ended))
            continue
        if number not in groups:
            groups[number] = LinkGroup(clock, capacity, ended)
        channel.group = groups[number]
    return list(groups.values())


def _components(hardware: Hardware) -> list[int]:
    """For each channel, a number that it shares with the channels it is joined to through fabrics, or by disturbing them."""
    index = {c.name: k for k, c in enumerate(hardware.channels)}
    component = list(range(len(index)))
    joined = [fabric.channels for fabric in hardware.fabrics]
    joined += [(c.name, *(other for other, _ in c.beside)) for c in hardware.channels if c.beside]
    for names in joined:
        members = {component[index[name]] for name in names}
        component = [min(members) if c in members else c for c in component]
    return component
