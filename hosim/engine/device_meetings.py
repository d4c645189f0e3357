"""Collectives: devices wait for one another, and their bytes share links with copies (docs/contract.md, rule 19).

A collective that crosses no fabric takes its duration from when the last of its devices has started it. One that crosses some is a flow
there, which alone would take that long, beside those of transfers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from fractions import Fraction

from hosim.costmodel.transfers import NS_PER_S, Link, bytes_per_s_over_links, first_of_group
from hosim.engine.channels import ChannelQueue, IssuedTransfer
from hosim.engine.clock import Clock
from hosim.engine.compiled_plan import Hop
from hosim.engine.recorder import TimelineRecorder
from hosim.engine.stream import Stream
from hosim.hardware import Hardware

_NO_HOP = Hop("", -1, -1, -1)


class Collectives:
    """What the collectives of all devices of a replay have in common.

    ``arrived`` are the devices that have started a collective which others have not, by the op and the first of its devices, or by the
    message of stages.
    """

    def __init__(self, clock: Clock, hardware: Hardware, sequence: Iterator[int]) -> None:
        self.clock = clock
        self.sequence = sequence
        self.devices = hardware.devices
        self.fabrics = [fabric for fabric in hardware.fabrics if fabric.collectives]
        self.fastest = bytes_per_s_over_links(hardware) or 1
        self.arrived: dict[tuple[int, int] | str, list[tuple[DeviceCollectives, Started]]] = {}

    def crossed(self, hardware: Hardware, device: int) -> tuple[Link, ...]:
        """The links that collectives of a device cross, each as often as their bytes do."""
        return tuple(
            [("fabric", fabric.name, hardware.instance(fabric.scope, device)) for fabric in self.fabrics for _ in range(fabric.collectives)]
        )


class Started:
    """A collective that a stream of a device has started; ``since`` is when the exchange begins."""

    __slots__ = ("duration", "op", "since", "start", "stream")

    def __init__(self, stream: Stream, op: int, start: int, duration: int) -> None:
        self.stream = stream
        self.op = op
        self.start = self.since = start
        self.duration = duration


class DeviceCollectives:
    """The collectives of one device, and what its streams lose by them, by name of the stream.

    ``ranks`` are those of the ops for which devices wait for one another, ``sent`` the bytes of those that cross fabrics, of which
    ``at_once`` can flow at the same time: one a stream. ``waited_ns`` is for how long it waited for other devices, ``slowed_ns`` how much
    longer the exchange took beside transfers. ``queue`` stands for the links that they cross, if there are any. ``proceed`` says when an
    op ends that nothing but copies can slow down.
    """

    proceed: Callable[[Stream, int, int, int], int]

    def __init__(
        self,
        everyones: Collectives,
        ranks: Mapping[int, int],
        sent: Mapping[int, int],
        at_once: int,
        hardware: Hardware,
        device: int,
        channels: int,
        recorder: TimelineRecorder | None,
    ) -> None:
        self.everyones = everyones
        self.ranks = ranks
        self.sent = sent
        self.ops: Collection[int] = ranks.keys() | sent.keys()
        self.waited_ns: dict[str, int] = {}
        self.slowed_ns: dict[str, int] = {}
        self.device = device
        self._recorder = recorder
        self._flowing: dict[IssuedTransfer, Started] = {}
        links = everyones.crossed(hardware, device) if sent else ()
        self.queue = ChannelQueue(channels, "collectives", 0, 0, at_once, links, device) if links else None
        if self.queue is not None:
            self.queue.ended = self._passed

    def begin(self, stream: Stream, i: int, now: int, duration: int) -> int | None:
        """Collective ``i`` starts on this device: when it ends, if that is known by now; else the stream's alarm is set once it is."""
        stream.began = -1  # copies do not slow it down before the exchange begins
        started = Started(stream, i, now, duration)
        everyones = self.everyones
        if i in self.ranks:
            ranks = self.ranks[i]
            first = first_of_group(ranks, self.device)
            here = everyones.arrived.setdefault((i, first), [])
            here.append((self, started))
            if len(here) < min(ranks or everyones.devices, everyones.devices - first):
                return None
            del everyones.arrived[i, first]
            for other, waiting in here[:-1]:
                end = other._exchange(waiting, now)
                if end is not None:
                    waiting.stream.alarm.ring_at(end)
        return self._exchange(started, now)

    def _exchange(self, started: Started, now: int) -> int | None:
        """The exchange begins now: when it ends, if no flow says so."""
        self._begins(started, now, started.duration)
        if self._flows(started, now, started.duration):
            return None
        return self.proceed(started.stream, started.op, now, started.duration)

    def _begins(self, started: Started, now: int, duration: int) -> None:
        started.since = now
        name = started.stream.name
        self.waited_ns[name] = self.waited_ns.get(name, 0) + now - started.start
        if self._recorder is not None:
            self._recorder.op_ended(started.op, now + duration)

    def _flows(self, started: Started, now: int, duration: int) -> bool:
        """Let the bytes flow of an exchange that takes so long alone, if they cross something: whether they do."""
        sent, queue = self.sent.get(started.op, 0), self.queue
        if not sent or queue is None or queue.share is None or not duration:
            return False
        transfer = IssuedTransfer(next(self.everyones.sequence), -1, -1, _NO_HOP, queue, sent, now)
        rate = min(-(-sent * NS_PER_S // duration), self.everyones.fastest)
        transfer.start_ns, transfer.alone_ns = now, duration
        transfer.volume, transfer.ceiling = rate * duration, Fraction(rate)
        self._flowing[transfer] = started
        queue.share(transfer, now)
        self.everyones.clock.unsettled.add(self.device)  # rates are to be set
        return True

    def _passed(self, transfer: IssuedTransfer) -> None:
        started, now = self._flowing.pop(transfer), self.everyones.clock.time
        self._over(started, now)
        started.stream.alarm.ring_at(now)

    def _over(self, started: Started, end: int) -> None:
        """The exchange ends at ``end``, which may be later than it would alone."""
        name = started.stream.name
        self.slowed_ns[name] = self.slowed_ns.get(name, 0) + end - started.since - started.duration
        if self._recorder is not None:
            self._recorder.op_ended(started.op, end)
