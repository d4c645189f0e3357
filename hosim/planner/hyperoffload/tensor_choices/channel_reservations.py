"""Reservations of a channel: the intervals in which it is busy, and the earliest and latest fits
between them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping

from hosim.analysis.costmodel.transfers import channel_bandwidth
from hosim.hardware import Hardware

_FAR = 256
"""Free intervals that a search looks at before it gives up; a channel with more that are too short
is as good as full.
"""
_MANY, _EVERY = 32, 8
"""Where a search passes over more than so many busy intervals, it notes at every so many of them
how far it went.
"""
_WORTH = 10
"""Fabrics share their bandwidth among channels. A channel whose share is less than a tenth of the
fastest one's takes turns with it.
"""


class ChannelTimeline:
    """Disjoint busy intervals ``[start, end)`` of one channel, in nanoseconds; neighbours that
    touch are merged.

    Free intervals shorter than ``smallest`` count as busy: nothing would fit, and every search
    would look at them.
    """

    def __init__(self, smallest: int = 1) -> None:
        self._smallest = smallest
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._full: dict[int, int] = {}  # by length: no free interval of that length starts before
        self._passed: dict[
            int, dict[int, int]
        ] = {}  # by length and the end of a busy interval: none starts from there until then

    def reserve(self, start: int, length: int) -> None:
        """Mark ``[start, start + length)`` busy; it must be free."""
        if length <= 0:
            return
        end = start + length
        k = bisect_left(self._starts, start)
        joins_left = k > 0 and start - self._ends[k - 1] < self._smallest
        joins_right = k < len(self._starts) and self._starts[k] - end < self._smallest
        if joins_left and joins_right:
            self._ends[k - 1] = self._ends[k]
            del self._starts[k], self._ends[k]
        elif joins_left:
            self._ends[k - 1] = end
        elif joins_right:
            self._starts[k] = start
        else:
            self._starts.insert(k, start)
            self._ends.insert(k, end)

    def earliest(self, release: int, length: int) -> int:
        """Earliest start at or after ``release`` of a free interval of ``length``."""
        starts, ends = self._starts, self._ends
        known = self._full.get(length, 0)
        start = max(release, known)
        k, count = bisect_right(ends, start), len(starts)
        steps, passed, noted = 0, self._passed.get(length), []
        while k < count and starts[k] - start < length:
            start = ends[k]  # as they are in order, and the first one ends after the release
            k += 1
            if passed is not None and start in passed:  # what was too short then is no longer now
                start = passed[start]
                k = bisect_right(ends, start)
            steps += 1
            if not steps % _EVERY:
                noted.append(start)
        if steps > _MANY:
            self._passed.setdefault(length, {}).update(dict.fromkeys(noted, start))
        if release <= known:
            self._full[length] = start
        return start

    def latest(self, deadline: int, length: int, release: int) -> int | None:
        """Latest start, from ``release`` on, of a free interval of ``length`` that ends by
        ``deadline``; None if there is none.
        """
        starts, ends = self._starts, self._ends
        start = deadline - length
        k = bisect_left(starts, deadline) - 1
        for _ in range(_FAR):
            if start < release:
                return None
            if k < 0 or ends[k] <= start:
                return start
            start = (
                starts[k] - length
            )  # before the deadline, as k is the last one that starts there
            k -= 1
        return None


def least_size_that_counts(sizes: list[int]) -> int:
    """The size below which tensors make up a twentieth of all bytes."""
    left = sum(sizes) // 20
    for size in sorted(sizes):
        left -= size
        if left <= 0:
            return size
    return 0


def left_rates(hardware: Hardware, channels: Mapping[str, str]) -> dict[str, int]:
    """Bytes per second of each tier's channel while those of tiers with faster ones are busy: what
    fabrics that both cross leave it.

    Where that is less than a tenth of the fastest rate, the rate is the channel's own: such a tier
    takes turns with the others.
    """
    rate = {channel: channel_bandwidth(hardware, channel) for channel in channels.values()}
    left = {tier: rate[channel] for tier, channel in channels.items()}
    for fabric in hardware.fabrics:
        sharing = sorted(
            set(channels.values()) & set(fabric.channels), key=lambda name: (-rate[name], name)
        )
        free = fabric.bandwidth_bytes_per_s
        for name in sharing:
            share = min(rate[name], free)
            free -= share
            for tier, channel in channels.items():
                if channel == name:
                    left[tier] = min(left[tier], share)
    fastest = max(rate[channel] for channel in channels.values()) if channels else 0
    return {
        tier: share if share >= fastest // _WORTH else rate[channels[tier]]
        for tier, share in left.items()
    }


def timelines(
    hardware: Hardware, channels: Mapping[str, str], usual_bytes: int
) -> dict[str, ChannelTimeline]:
    """A timeline for the channel of each tier; one for both where it is the same, or a fabric
    leaves the other next to nothing.

    Free intervals too short for half a tensor of ``usual_bytes`` count as busy.
    """
    left = left_rates(hardware, channels)
    found = {tier: ChannelTimeline(usual_bytes * 10**9 // left[tier] // 2) for tier in channels}
    for tier, channel in channels.items():
        found[tier] = found[next(other for other in channels if channels[other] == channel)]
    for fabric in hardware.fabrics:
        sharing = [tier for tier, channel in channels.items() if channel in fabric.channels]
        if (
            sum({channels[tier]: left[tier] for tier in sharing}.values())
            > fabric.bandwidth_bytes_per_s
        ):
            for tier in sharing:
                found[tier] = found[sharing[0]]
    return found
