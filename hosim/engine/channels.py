"""Channels: first-in first-out queues of transfers in front of DMA engines, and the simpy processes that end them.

Channels that share a fabric, and a channel with several engines, form a :class:`LinkGroup`: its transfers flow at max-min fair rates, and one
simpy process wakes when the next one ends. A channel of its own with one engine needs no sharing: its transfer's end is known at its start.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from fractions import Fraction

import simpy

from hosim.engine.alarm import Alarm
from hosim.engine.clock import Clock
from hosim.engine.flow import NS_PER_S, max_min_rates
from hosim.engine.program import Way


class Transfer:
    """One issued copy, from its issue to its end. Times in nanoseconds; ``sequence`` is its place in the order of issue.

    ``flowing_since``, ``remaining`` (bytes) and ``rate`` (bytes a nanosecond) are the :class:`LinkGroup`'s, once it has started.
    """

    flowing_since: int
    remaining: Fraction
    rate: Fraction

    __slots__ = (
        "alone_ns",
        "cache_op",
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
        self.start_ns = -1
        self.end_ns = -1
        self.alone_ns = 0


class Channel:
    """One channel of one device: its queue, its engines and its figures.

    ``bandwidth`` is what a transfer gets alone: the least of the channel's and its fabrics'.
    """

    def __init__(self, index: int, name: str, bandwidth: int, latency: int, engines: int) -> None:
        self.index = index
        self.name = name
        self.bandwidth = bandwidth
        self.latency = latency
        self.engines = engines
        self.driver: LoneChannel | LinkGroup | None = None
        self.links: tuple[object, ...] = ()
        self.queue: deque[Transfer] = deque()
        self.running = 0
        self.busy_since = 0
        self.transfers = 0
        self.bytes = 0
        self.busy_ns = 0
        self.queue_ns = 0
        self.contention_ns = 0
        self.exposed_ns = 0

    def begin(self, transfer: Transfer, now: int) -> None:
        """Take an engine for the head of the queue and note its figures; the caller makes it flow."""
        self.queue.popleft()
        if not self.running:
            self.busy_since = now
        self.running += 1
        transfer.start_ns = now
        transfer.alone_ns = self.latency - (-transfer.size * NS_PER_S // self.bandwidth)
        self.transfers += 1
        self.bytes += transfer.size
        self.queue_ns += now - transfer.issue_ns

    def end(self, transfer: Transfer, now: int) -> None:
        """Give the engine back and note the figures."""
        transfer.end_ns = now
        self.contention_ns += now - transfer.start_ns - transfer.alone_ns
        self.running -= 1
        if not self.running:
            self.busy_ns += now - self.busy_since


class LoneChannel:
    """The simpy process of a channel that shares nothing: sleeps until the one transfer's end."""

    def __init__(self, env: Clock, ended: Callable[[Transfer], None]) -> None:
        self._env = env
        self._ended = ended
        self._alarm = Alarm(env)
        self._current: Transfer | None = None
        env.process(self._run())

    def start(self, transfer: Transfer) -> None:
        """Let the transfer flow: it ends after its time alone."""
        self._current = transfer
        self._alarm.ring_after(transfer.alone_ns)

    def settle(self) -> None:
        """Nothing is shared, so rates never change."""

    def _run(self) -> Generator[simpy.Event, None, None]:
        env, ended = self._env, self._ended
        while True:
            yield self._alarm
            self._alarm = Alarm(env)
            transfer = self._current
            assert transfer is not None
            ended(transfer)


class LinkGroup:
    """Channels that share bandwidth with one another, and the simpy process that ends their transfers.

    ``capacity`` is bytes per second by link. Rates are computed anew once an instant, after everything has ended and started at it.
    """

    def __init__(self, env: Clock, capacity: dict[object, int], ended: Callable[[Transfer], None]) -> None:
        self._env = env
        self._capacity = capacity
        self._ended = ended
        self._latent: list[Transfer] = []
        self._flowing: list[Transfer] = []
        self._since = 0
        self._dirty = False
        self._alarm = Alarm(env)
        self._alarm_at: int | None = None
        self._process = env.process(self._run())

    def start(self, transfer: Transfer) -> None:
        """Begin the transfer's latency; its bytes flow after it."""
        transfer.flowing_since = self._env.time + transfer.channel.latency
        transfer.remaining = Fraction(transfer.size)
        self._latent.append(transfer)
        self._dirty = True

    def settle(self) -> None:
        """If anything started or ended at this instant, set the rates anew and the alarm to the next change."""
        if not self._dirty:
            return
        self._dirty = False
        now = self._env.time
        self._advance(now)
        due = [x for x in self._latent if x.flowing_since <= now]
        if due:
            self._latent = [x for x in self._latent if x.flowing_since > now]
            self._flowing.extend(due)
        rates = max_min_rates([x.channel.links for x in self._flowing], self._capacity)
        wake: list[int] = [x.flowing_since for x in self._latent]
        for transfer, rate in zip(self._flowing, rates, strict=True):
            transfer.rate = rate
            wake.append(now - int(-transfer.remaining // rate))
        if wake:
            self._set_alarm(min(wake))

    def _set_alarm(self, at: int) -> None:
        if self._alarm_at is not None:
            if self._alarm_at <= at:
                return  # it wakes early, finds nothing due and sets the alarm anew
            self._alarm = Alarm(self._env)
            self._process.interrupt()
        self._alarm_at = at
        self._alarm.ring_after(at - self._env.time)

    def _advance(self, now: int) -> None:
        elapsed = now - self._since
        if elapsed:
            for transfer in self._flowing:
                transfer.remaining -= transfer.rate * elapsed
            self._since = now

    def _run(self) -> Generator[simpy.Event, None, None]:
        env = self._env
        while True:
            try:
                yield self._alarm
            except simpy.Interrupt:
                continue  # an earlier alarm has been set
            self._alarm = Alarm(env)
            self._alarm_at = None
            self._dirty = True
            env.unsettled = True
            self._advance(env.time)
            done = [x for x in self._flowing if x.remaining <= 0]
            if done:
                self._flowing = [x for x in self._flowing if x.remaining > 0]
                for transfer in sorted(done, key=lambda x: x.sequence):
                    self._ended(transfer)
