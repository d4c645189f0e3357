"""The channels that a sweep reserves: the rates that fabrics leave them, and which ones take turns."""

from __future__ import annotations

from collections.abc import Mapping

from hosim.analysis.costmodel.transfers import channel_bandwidth
from hosim.hardware import Hardware

_WORTH = 10
"""Fabrics share their bandwidth among channels. A channel whose share is less than a tenth of the
fastest one's takes turns with it.
"""


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
) -> tuple[dict[str, str], dict[str, int]]:
    """The first tier whose channel has the same timeline as that of each tier, and by such a tier
    the shortest free interval of it that counts: what half a tensor of ``usual_bytes`` takes.

    Tiers share a timeline where their channel is the same, or a fabric leaves the other next to
    nothing.
    """
    left = left_rates(hardware, channels)
    first = {
        tier: next(other for other in channels if channels[other] == channel)
        for tier, channel in channels.items()
    }
    for fabric in hardware.fabrics:
        sharing = [tier for tier, channel in channels.items() if channel in fabric.channels]
        if (
            sum({channels[tier]: left[tier] for tier in sharing}.values())
            > fabric.bandwidth_bytes_per_s
        ):
            first |= dict.fromkeys(sharing, first[sharing[0]])
    return first, {tier: usual_bytes * 10**9 // left[tier] // 2 for tier in first.values()}
