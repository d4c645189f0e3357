"""Copies of blocks between the tiers of engines' machines, on the channels and links of a replay
(:mod:`hosim.serving.blocks.links`).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import count

from hosim.analysis.costmodel import with_memories
from hosim.analysis.costmodel.transfers import ceiling
from hosim.hardware import Channel, Fabric, Hardware
from hosim.serving.blocks.links import (
    ChannelQueue,
    IssuedTransfer,
    SteppedClock,
    build_channels,
    drive_channels,
)

KIND = "kv_cache"
_OUT, _IN = "links to engines", "links from engines"


@dataclass(eq=False)
class Awaited:
    """Something that will be ``over``: a copy, an iteration."""

    over: bool = False
    layers_ns: list[int] = field(default_factory=list)
    """When the parts of a copy by layers were there; of other copies nothing."""
    _then: list[Callable[[], None]] = field(default_factory=list)

    def then(self, call: Callable[[], None]) -> None:
        """Call when it is over, or now if it is."""
        if self.over:
            call()
        else:
            self._then.append(call)

    def end(self) -> None:
        """It is over now."""
        self.over = True
        calls, self._then = self._then, []
        for call in calls:
            call()


def when_over(after: Iterable[Awaited], call: Callable[[], None]) -> None:
    """Call once all of ``after`` are over."""
    missing = [one for one in dict.fromkeys(after) if not one.over]
    left = len(missing)

    def passed() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            call()

    for one in missing:
        one.then(passed)
    if not missing:
        call()


@dataclass(frozen=True)
class Peers:
    """The first ``senders`` engines send to those that follow.

    They do so over links of ``bandwidth`` bytes per second a device, in each direction, or through
    ``tier``. What a sender ``sends`` is another rate if it has other devices: bytes per second for
    each device of a receiver.
    """

    senders: int
    bandwidth: int | None = None
    tier: str = ""
    sends: int | None = None


class EngineChannels:
    """The channels of several engines' devices, by engine; ``machine`` has the devices of one
    engine.

    All devices of an engine copy the same at the same time, and share what they share evenly. Each
    host has ``per_host`` engines (``None``: one host has all), which share the links of the host;
    all share those of all hosts, and the bandwidth of tiers (docs/contract.md, rule 13). Transfers
    start in order of issue. With ``peers`` there is a way
    from each that sends to each that receives: it takes its part of a sender's way out and of a
    receiver's way in, or of the channels to and from the tier, beside their own copies.
    """

    def __init__(
        self,
        clock: SteppedClock,
        machine: Hardware,
        engines: int = 1,
        per_host: int | None = None,
        peers: Peers | None = None,
    ) -> None:
        if peers is not None and peers.bandwidth is not None:
            rates = {_OUT: peers.sends or peers.bandwidth, _IN: peers.bandwidth}
            links = (Fabric(name, rate, (), "device") for name, rate in rates.items())
            machine = replace(machine, fabrics=(*machine.fabrics, *links))
        self.machine = machine = with_memories(machine)
        self.clock = clock
        self.places = replace(machine, devices=engines, devices_per_host=per_host)
        """Each engine as one device, by which shared tiers and links are found."""
        self.channels = [build_channels(self.places, engine) for engine in range(engines)]
        self.ways: dict[tuple[int, int], ChannelQueue] = {}
        """The channel from a sender to a receiver."""
        self._legs: list[tuple[Channel, ...]] = [(channel,) for channel in machine.channels]
        self._number = count()
        self._waiting: dict[int, tuple[Awaited, str]] = {}
        if peers is not None:
            self._join(peers)
        every = [channel for own in self.channels for channel in own] + list(self.ways.values())
        self._of_engine = [
            [*own, *(way for (sender, _), way in self.ways.items() if sender == i)]
            for i, own in enumerate(self.channels)
        ]
        for channel in every:
            channel.ended = self._ended
        self._groups = drive_channels(every, machine, clock)
        clock.settle = self._settle

    def _join(self, peers: Peers) -> None:
        """Make a way from each sender to each receiver; their ``index`` stands behind those of the
        machine's channels.
        """
        index = len(self._legs)
        legs: tuple[Channel, ...] = ()
        if peers.bandwidth is None:
            joined, device = self.machine.channel_between, self.machine.device_tier
            legs = joined[device, peers.tier], joined[peers.tier, device]
        self._legs.append(legs)
        places = [self.machine.channels.index(leg) for leg in legs]
        for sender in range(peers.senders):
            for receiver in range(peers.senders, len(self.channels)):
                if peers.bandwidth is None:
                    ends = [
                        self.channels[engine][place]
                        for engine, place in zip((sender, receiver), places, strict=True)
                    ]
                    links = tuple(dict.fromkeys(link for end in ends for link in end.links))
                    bandwidth, latency = (
                        min(end.bandwidth for end in ends),
                        sum(end.latency for end in ends),
                    )
                else:
                    links, latency = (("fabric", _OUT, sender), ("fabric", _IN, receiver)), 0
                    bandwidth = min(peers.bandwidth, peers.sends or peers.bandwidth)
                way = ChannelQueue(index, "", bandwidth, latency, 1, links, sender)
                way.has_overheads = any(self.channels[0][place].has_overheads for place in places)
                self.ways[sender, receiver] = way

    def between(self, engine: int, source: str, destination: str) -> ChannelQueue:
        """The channel of an engine that joins two tiers."""
        return self.channels[engine][
            self.machine.channels.index(self.machine.channel_between[source, destination])
        ]

    def issue(self, channel: ChannelQueue, size: int, copy: Awaited, kind: str = KIND) -> None:
        """Queue a transfer of ``size`` bytes of a kind of tensors, which ends ``copy``."""
        is_idle = not any(one.queue or one.running for one in channel.sharing)
        if not size and not channel.latency and is_idle:
            channel.transfers += 1
            copy.end()  # it takes no time
            return
        number = next(self._number)
        channel.queue.append(IssuedTransfer(number, channel, size, self.clock.now))
        self._waiting[number] = copy, kind
        self.clock.unsettled.add(channel.device)

    def _settle(self) -> None:
        """The end of an instant: transfers start in order of issue, and rates are set."""
        engines, now = sorted(self.clock.unsettled), self.clock.now
        self.clock.unsettled.clear()
        free = [channel for i in engines for channel in self._of_engine[i] if channel.is_ready]
        while free:
            channel = min(free, key=lambda one: one.queue[0].number)
            channel.begin(now, self._ceiling(channel) if channel.has_overheads else None)
            free = [one for one in free if one.is_ready]
        for group in self._groups:
            if group.dirty:
                group.settle(now)

    def _ceiling(self, channel: ChannelQueue) -> Fraction | None:
        """Return the highest rate that the head of a queue reaches."""
        head = channel.queue[0]
        kind = self._waiting[head.number][1]
        found = [ceiling(self.machine, leg, head.size, kind) for leg in self._legs[channel.index]]
        return min([most for most in found if most is not None], default=None)

    def _ended(self, transfer: IssuedTransfer) -> None:
        channel = transfer.channel
        channel.running -= 1
        if not channel.running:
            channel.busy_ns += self.clock.now - channel.busy_since
        self.clock.unsettled.add(channel.device)
        self._waiting.pop(transfer.number)[0].end()


class BlockCopies:
    """Copies of blocks of ``block_bytes`` on each device of one engine, which is number ``engine``
    of those that have channels.

    ``copy`` moves a number of blocks at once, as one transfer: the latency of the channel is spent
    once. Transfers queue on a channel in order of issue.
    """

    def __init__(self, channels: EngineChannels, block_bytes: int, engine: int = 0) -> None:
        self.machine = channels.machine
        self.channels: Sequence[ChannelQueue] = channels.channels[engine]
        self._shared = channels
        self.block_bytes = block_bytes
        self._engine = engine

    @property
    def now_ns(self) -> int:
        """The current instant."""
        return self._shared.clock.now

    def copy(
        self, source: str, destination: str, blocks: int, after: Iterable[Awaited] = ()
    ) -> Awaited:
        """Copy so many blocks from tier to tier over the channel that joins them, once all of
        ``after`` are over.
        """
        channel, copy = self._shared.between(self._engine, source, destination), Awaited()
        when_over(after, lambda: self._shared.issue(channel, blocks * self.block_bytes, copy))
        return copy

    def copy_layers(
        self, source: str, destination: str, blocks: int, layers: int, after: Iterable[Awaited] = ()
    ) -> Awaited:
        """As :meth:`copy`, with a transfer for each layer: the latency of the channel is spent for
        each.
        """
        copy = Awaited()
        when_over(
            after,
            lambda: self._issue_layers(
                source, destination, blocks * self.block_bytes, layers, copy
            ),
        )
        return copy

    def fetch(
        self, source: str, destination: str, size: int, layers: int, together: bool
    ) -> Awaited:
        """As :meth:`copy_layers`, so many bytes now. ``together``: one after the other, and whoever
        waits for a layer waits for all.
        """
        copy = Awaited()
        if together:
            copy.then(lambda: copy.layers_ns.__delitem__(slice(-1)))
        self._issue_layers(source, destination, size, layers, copy, chained=together)
        return copy

    def _issue_layers(
        self,
        source: str,
        destination: str,
        size: int,
        layers: int,
        copy: Awaited,
        chained: bool = False,
    ) -> None:
        channel = self._shared.between(self._engine, source, destination)

        def there() -> None:
            copy.layers_ns.append(self.now_ns)
            if len(copy.layers_ns) == layers:
                copy.end()
            elif chained:
                issue(len(copy.layers_ns))

        def issue(layer: int) -> None:
            part = Awaited()
            part.then(there)
            self._shared.issue(channel, size * (layer + 1) // layers - size * layer // layers, part)

        for layer in range(1 if chained else layers):
            issue(layer)
