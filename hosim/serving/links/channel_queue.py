"""Channels of one engine's devices: first-in first-out queues of transfers in front of DMA engines.

How fast bytes flow, and when a transfer ends, is decided in :mod:`hosim.serving.links.link_groups`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from hosim.analysis.costmodel.transfers import NS_PER_S, Link, may_be_slower
from hosim.hardware import Hardware
from hosim.serving.links.clock import Alarm


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

    @property
    def volume(self) -> int:
        """Return the volume that has to flow, in bytes times nanoseconds a second."""
        return self.size * NS_PER_S


class ChannelQueue:
    """One channel of one engine: its queue, its engines and its figures.

    ``bandwidth`` is what a transfer gets alone: the least of the channel's and its fabrics'.
    ``links`` are what its transfers share with others, ``limit`` is what each gets at most of the
    others, and ``beside`` what its own link, the first one, carries while another link does
    something, as (the other one, bytes per second). ``sharing`` are the channels whose transfers take
    its engines, with itself (docs/contract.md, rule 24). It is ``undivided`` if a transfer that is
    alone in it and in what it shares gets all of ``bandwidth``. A channel that shares bandwidth hands a
    transfer that begins, and the instant from which its bytes flow, to ``share``. One that shares
    nothing has no ``share``: its own ``alarm`` ends its one transfer, ``current``. ``ended`` is
    told of every end. ``has_overheads`` says whether some transfers reach less than that: then
    ``begin`` needs a ceiling.
    """

    alarm: Alarm
    current: IssuedTransfer
    ended: Callable[[IssuedTransfer], None]

    def __init__(
        self,
        index: int,
        name: str,
        bandwidth: int,
        latency: int,
        engines: int,
        links: tuple[Link, ...],
        device: int,
    ) -> None:
        self.share: Callable[[IssuedTransfer, int], None] | None = (
            None  # in the object, where looking them up is quickest
        )
        self.limit: Fraction | None = None
        self.beside: tuple[tuple[Link, int], ...] = ()
        self.sharing: tuple[ChannelQueue, ...] = (self,)
        self.undivided = True
        self.has_overheads = False
        self.index = index
        self.device = device
        self.name = name
        self.bandwidth = bandwidth
        self.latency = latency
        self.engines = engines
        self.links = links
        self.queue: deque[IssuedTransfer] = deque()
        self.running = 0
        self.busy_since = 0
        self.transfers = 0
        self.bytes = 0
        self.busy_ns = 0
        self.queue_ns = 0
        self.contention_ns = 0

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
        if ceiling is None or ceiling >= self.bandwidth:
            transfer.ceiling = None
            transfer.alone_ns = alone = self.latency - (-transfer.volume // self.bandwidth)
        else:
            transfer.ceiling = ceiling
            transfer.alone_ns = alone = self.latency - int(-transfer.volume // ceiling)
        self.transfers += 1
        self.bytes += transfer.size
        self.queue_ns += now - transfer.issue_ns
        if self.share is None:
            self.current = transfer
            self.alarm.ring_at(now + alone)
        else:
            self.share(transfer, now + self.latency)

    def end_current(self) -> None:
        """The one transfer of a channel that shares nothing ends, as was known at its start."""
        self.ended(self.current)


def build_channels(hardware: Hardware, device: int = 0) -> list[ChannelQueue]:
    """The channels of one engine, in the machine's order;
    :func:`hosim.serving.links.drive_channels` makes them run.
    """
    own: dict[str, Link] = {
        c.name: ("channel", c.name, hardware.instance(hardware.channel_scope(c), device))
        for c in hardware.channels
    }
    channels = []
    for k, c in enumerate(hardware.channels):
        fabrics = [f for f in hardware.fabrics if c.name in f.channels]
        alone = min([c.bandwidth_bytes_per_s, *(f.bandwidth_bytes_per_s for f in fabrics)])
        links = (
            own[c.name],
            *(("fabric", f.name, hardware.instance(f.scope, device)) for f in fabrics),
        )
        channel = ChannelQueue(k, c.name, alone, c.latency_ns, c.engines, links, device)
        channel.beside = tuple((own[other], bandwidth) for other, bandwidth in c.beside)
        channel.has_overheads = may_be_slower(hardware, c)
        channels.append(channel)
    for channel in channels:
        first = hardware.queue_of[channel.name]
        channel.sharing = tuple(one for one in channels if hardware.queue_of[one.name] == first)
    return channels
