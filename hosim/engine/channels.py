"""Channels of one device: first-in first-out queues of transfers in front of DMA engines.

A transfer waits on a channel, and a channel queues transfers. A cache op between tiers that no channel joins takes a :class:`Route` of
several channels; each of its chunks is a transfer of each of them. How fast bytes flow, and when a transfer ends, is decided in
:mod:`hosim.engine.link_groups`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from fractions import Fraction

from hosim.costmodel.transfers import NS_PER_S, Link
from hosim.engine.clock import Alarm, Process
from hosim.engine.compiled_plan import Hop
from hosim.hardware import Hardware


class IssuedTransfer:
    """One issued copy, from its issue to its end. Times in nanoseconds; ``sequence`` is its place in the order of issue.

    ``volume`` is what has to flow, in bytes times nanoseconds a second, and ``ceiling`` the most bytes per second that it can reach, if
    that is less than its channel's. A :class:`Chunk` has a ``route``.
    """

    route: Route | None
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
        "hop",
        "issue_ns",
        "route",
        "sequence",
        "size",
        "start_ns",
        "tensor",
        "volume",
    )

    def __init__(self, sequence: int, cache_op: int, tensor: int, hop: Hop, channel: ChannelQueue, size: int, now: int) -> None:
        self.route = None
        self.sequence = sequence
        self.cache_op = cache_op
        self.tensor = tensor
        self.hop = hop
        self.channel = channel
        self.size = size
        self.volume = size * NS_PER_S
        self.issue_ns = now


class Route:
    """One issued cache op over several channels: ``left`` chunks have not arrived.

    ``under_way`` are the hops, by number, on which one of its chunks holds an engine. ``factor`` is jitter's on the time for which the
    bytes of each chunk flow, on every hop.
    """

    __slots__ = ("cache_op", "factor", "hops", "left", "tensor", "under_way")

    def __init__(self, cache_op: int, tensor: int, hops: tuple[Hop, ...], chunks: int) -> None:
        self.cache_op = cache_op
        self.tensor = tensor
        self.hops = hops
        self.left = chunks
        self.under_way: set[int] = set()
        self.factor = 1.0


class Chunk(IssuedTransfer):
    """One chunk of a route on its hop number ``leg``: a transfer of that hop's channel.

    ``staged_ns`` is when its bytes were reserved in the tier that this hop leaves, if that is one in between.
    """

    route: Route

    __slots__ = ("leg", "staged_ns")

    def __init__(self, sequence: int, route: Route, leg: int, channel: ChannelQueue, size: int, now: int, staged_ns: int) -> None:
        super().__init__(sequence, route.cache_op, route.tensor, route.hops[leg], channel, size, now)
        self.route = route
        self.leg = leg
        self.staged_ns = staged_ns

    def __lt__(self, other: Chunk) -> bool:
        """Among chunks that went ahead of the same cache op."""
        return (self.issue_ns, self.cache_op) < (other.issue_ns, other.cache_op)

    @property
    def arrives(self) -> bool:
        """Whether this is its last hop."""
        return self.leg == len(self.route.hops) - 1


class ChannelQueue:
    """One channel of one device: its queue, its engines and its figures.

    ``bandwidth`` is what a transfer gets alone: the least of the channel's and its fabrics'. ``links`` are what its transfers
    share with others, ``limit`` is what each gets at most of the others, and ``beside`` what its own link, the first one, carries
    while another link does something, as (the other one, bytes per second). It is ``undivided`` if a transfer that is alone in it and in
    what it shares gets all of ``bandwidth``. A channel that shares bandwidth hands a transfer that begins,
    and the instant from which its bytes flow, to ``share``. One that shares nothing has no ``share``: its own process, which ``alarm``
    wakes, ends its one transfer, ``current``. ``ended`` is told of every end. ``has_overheads`` says whether some transfers take longer
    than their bytes alone: then ``begin`` needs a ceiling and the time to pin memory.
    """

    alarm: Alarm
    current: IssuedTransfer
    ended: Callable[[IssuedTransfer], None]

    def __init__(self, index: int, name: str, bandwidth: int, latency: int, engines: int, links: tuple[Link, ...], device: int) -> None:
        self.share: Callable[[IssuedTransfer, int], None] | None = None  # in the object, where looking them up is quickest
        self.limit: Fraction | None = None
        self.beside: tuple[tuple[Link, int], ...] = ()
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
        if self.share is None:
            self.current = transfer
            self.alarm.ring_at(now + alone)
        else:
            self.share(transfer, now + pin_ns + self.latency)

    def run_alone(self) -> Process:
        """The process of a channel that shares nothing: sleeps until its one transfer's end, which is known at its start."""
        ended = self.ended
        while True:
            yield
            ended(self.current)


def build_channels(hardware: Hardware, device: int = 0) -> list[ChannelQueue]:
    """The channels of one device, in the machine's order; :func:`hosim.engine.link_groups.drive_channels` makes them run."""
    own: dict[str, Link] = {c.name: ("channel", c.name, hardware.instance(hardware.channel_scope(c), device)) for c in hardware.channels}
    channels = []
    for k, c in enumerate(hardware.channels):
        fabrics = [f for f in hardware.fabrics if c.name in f.channels]
        alone = min([c.bandwidth_bytes_per_s, *(f.bandwidth_bytes_per_s for f in fabrics)])
        links = (own[c.name], *(("fabric", f.name, hardware.instance(f.scope, device)) for f in fabrics))
        channel = ChannelQueue(k, c.name, alone, c.latency_ns, c.engines, links, device)
        channel.beside = tuple((own[other], bandwidth) for other, bandwidth in c.beside)
        ends = [hardware.tiers[hardware.tier_index[name]] for name in (c.source, c.destination)]
        channel.has_overheads = bool(c.curve) or c.pageable_bytes_per_s is not None or any(tier.pin_ns for tier in ends)
        channels.append(channel)
    return channels
