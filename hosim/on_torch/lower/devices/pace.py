"""Paces transfers by waiting, at the bandwidth of a profile's channels.

Bytes move in slices. Each slice reserves its time on the channel and on every fabric of the
channel, and ends at the latest of these. Channels of one fabric, and engines of one channel, thus
take turns by slices, which approximates the max-min fair sharing of the replay if all want the
same.

The schedule uses the times at which transfers could have begun and ended, not those at which
threads woke up, so that a late thread delays no other.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

from hosim.analysis.costmodel.transfers import ceiling
from hosim.hardware import Channel, Hardware

SLICE_NS = 2_000_000
"""The approximate duration of a slice."""

SMALLEST_SLICE = 1 << 16
"""The bytes of the smallest slice."""

_CREDIT_NS = 50_000_000
"""The most time that a link which was woken late may catch up."""

Sleep = Callable[[float], object]
"""Waits this many seconds, or less if the run stops."""


class Link:
    """The bandwidth of a channel or a fabric, allotted slice by slice."""

    def __init__(self, bytes_per_s: int) -> None:
        self._ns_per_byte = 1e9 / bytes_per_s
        self._lock = Lock()
        self._users = 0
        self._free_ns = 0.0

    def enter(self, at_ns: float) -> None:
        """Start a transfer: an idle link has nothing to catch up."""
        with self._lock:
            if not self._users:
                self._free_ns = max(self._free_ns, at_ns)
            self._users += 1

    def leave(self) -> None:
        """End a transfer."""
        with self._lock:
            self._users -= 1

    def reserve(self, size_bytes: int) -> float:
        """The end of a slice that starts now."""
        with self._lock:
            self._free_ns = (
                max(self._free_ns, time.perf_counter_ns() - _CREDIT_NS)
                + size_bytes * self._ns_per_byte
            )
            return self._free_ns


class Pace:
    """The pace of one channel of a machine."""

    def __init__(
        self, hardware: Hardware, channel: Channel, links: tuple[Link, ...], sleep: Sleep
    ) -> None:
        self._hardware = hardware
        self._channel = channel
        self._links = links
        self._sleep = sleep
        self._engines = [0.0] * channel.engines  # when each was or will be free
        self.slice_bytes = max(SMALLEST_SLICE, channel.bandwidth_bytes_per_s * SLICE_NS // 10**9)

    @contextmanager
    def transfer(
        self, size_bytes: int, kind: str | None, ready_ns: float
    ) -> Iterator[Callable[[int], None]]:
        """One transfer of ``size_bytes`` that could begin at ``ready_ns`` if it had an engine then.

        Waits for the latency, and returns a function to call with the bytes of each slice moved.
        """
        self._engines.sort()
        end_ns = max(ready_ns, self._engines.pop(0)) + self._channel.latency_ns
        self._until(end_ns)
        most = ceiling(self._hardware, self._channel, size_bytes, kind)
        links = self._links if most is None else (*self._links, Link(max(1, int(most))))
        for link in links:
            link.enter(end_ns)

        def moved(slice_bytes: int) -> None:
            nonlocal end_ns
            self._until(max([link.reserve(slice_bytes) for link in links]))

        try:
            yield moved
        finally:
            for link in links:
                link.leave()
            self._engines.append(end_ns)

    def _until(self, end_ns: float) -> None:
        left = end_ns - time.perf_counter_ns()
        if left > 0:
            self._sleep(left / 1e9)


def paces(hardware: Hardware, sleep: Sleep) -> dict[str, Pace]:
    """The pace of each channel of a machine, by name."""
    channels = {channel.name: Link(channel.bandwidth_bytes_per_s) for channel in hardware.channels}
    fabrics = {fabric.name: Link(fabric.bandwidth_bytes_per_s) for fabric in hardware.fabrics}
    made = {}
    for channel in hardware.channels:
        shared = [
            fabrics[fabric.name] for fabric in hardware.fabrics if channel.name in fabric.channels
        ]
        made[channel.name] = Pace(hardware, channel, (channels[channel.name], *shared), sleep)
    return made
