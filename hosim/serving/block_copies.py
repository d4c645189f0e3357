"""Copies of blocks between the tiers of one engine's machine, on the channels and links of a replay (:mod:`hosim.engine.link_groups`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count

from hosim.costmodel.transfer_time import is_pageable
from hosim.engine.channels import IssuedTransfer, build_channels
from hosim.engine.clock import SteppedClock
from hosim.engine.compiled_plan import Hop
from hosim.engine.link_groups import drive_channels
from hosim.hardware import Hardware

KIND = "kv_cache"


class Awaited:
    """Something that will be ``over``: a copy, an iteration."""

    def __init__(self) -> None:
        self.over = False
        self._then: list[Callable[[], None]] = []

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


class BlockCopies:
    """The channels of an engine's machine. All devices of the engine copy the same at the same time, and share what they share evenly.

    ``copy`` moves a number of blocks at once, as one transfer: the latency of the channel is spent once. Transfers queue on a channel in
    order of issue.
    """

    def __init__(self, clock: SteppedClock, machine: Hardware, block_bytes: int) -> None:
        self.machine = machine
        self._clock = clock
        self._block_bytes = block_bytes
        self._number = count()
        self._waiting: dict[int, Awaited] = {}
        self.channels = build_channels(machine)
        for channel in self.channels:
            channel.ended = self._ended
        self._groups = list(dict.fromkeys(drive_channels(self.channels, machine, clock, divided=True).values()))
        clock.settle = self._settle

    @property
    def now_ns(self) -> int:
        """The current instant."""
        return self._clock.time

    def copy(self, source: str, destination: str, blocks: int, after: Iterable[Awaited] = ()) -> Awaited:
        """Copy so many blocks from tier to tier over the channel that joins them, once all of ``after`` are over."""
        copy = Awaited()
        missing = [one for one in dict.fromkeys(after) if not one.over]
        left = len(missing)

        def passed() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                self._issue(source, destination, blocks, copy)

        for one in missing:
            one.then(passed)
        if not missing:
            self._issue(source, destination, blocks, copy)
        return copy

    def _issue(self, source: str, destination: str, blocks: int, copy: Awaited) -> None:
        joined = self.machine.channel_between[source, destination]
        channel = self.channels[self.machine.channels.index(joined)]
        size = blocks * self._block_bytes
        if not size and not channel.latency and not channel.queue and not channel.running:
            channel.transfers += 1
            copy.end()  # it takes no time
            return
        number = next(self._number)
        index = self.machine.tier_index
        hop = Hop("", index[source], index[destination], channel.index)
        channel.queue.append(IssuedTransfer(number, number, -1, hop, channel, size, self._clock.time))
        self._waiting[number] = copy
        self._clock.unsettled.add(0)

    def _settle(self) -> None:
        """The end of an instant: transfers start in order of issue, and rates are set."""
        self._clock.unsettled.clear()
        now = self._clock.time
        free = [channel for channel in self.channels if channel.queue and channel.running < channel.engines]
        while free:
            channel = min(free, key=lambda one: one.queue[0].sequence)
            own = self.machine.channels[channel.index]
            channel.begin(now, own.ceiling(channel.queue[0].size, is_pageable(self.machine, own, KIND)) if channel.has_overheads else None)
            if not channel.queue or channel.running >= channel.engines:
                free.remove(channel)
        for group in self._groups:
            if group.dirty:
                group.settle(now)

    def _ended(self, transfer: IssuedTransfer) -> None:
        channel = transfer.channel
        channel.running -= 1
        if not channel.running:
            channel.busy_ns += self._clock.time - channel.busy_since
        self._clock.unsettled.add(0)
        self._waiting.pop(transfer.cache_op).end()
