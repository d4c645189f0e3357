"""The duration of one transfer on a channel that it has to itself (docs/contract.md, rule 6)."""

from __future__ import annotations

from collections.abc import Collection
from fractions import Fraction

from hosim.errors import HardwareError
from hosim.hardware import Channel, Hardware, Tier

_NS_PER_S = 10**9


def transfer_ns(size_bytes: int, bandwidth_bytes_per_s: int | Fraction, latency_ns: int = 0) -> int:
    """Nanoseconds from the start of a transfer to the first whole one at which its bytes are
    through.

    The latency comes first and moves nothing; then the bytes flow at ``bandwidth_bytes_per_s``,
    which must be above 0.

    >>> (
    ...     transfer_ns(40, 10**9),
    ...     transfer_ns(10, 3 * 10**9, latency_ns=5),
    ...     transfer_ns(0, 10**9, latency_ns=5),
    ... )
    (40, 9, 5)
    """
    return latency_ns - int(-size_bytes * _NS_PER_S // bandwidth_bytes_per_s)


def channel_bandwidth(hardware: Hardware, channel_name: str) -> int:
    """Bytes per second that a transfer alone on the machine gets: the least of its channel's and
    its fabrics'.

    Raises :class:`HardwareError` if the profile has no such channel.
    """
    own = named_channel(hardware, channel_name).bandwidth_bytes_per_s
    return min(
        [
            own,
            *(
                fabric.bandwidth_bytes_per_s
                for fabric in hardware.fabrics
                if channel_name in fabric.channels
            ),
        ]
    )


def alone_ns(
    hardware: Hardware, channel_name: str, size_bytes: int, kind: str | None = None
) -> int:
    """Nanoseconds that a transfer of ``size_bytes`` takes on ``channel_name`` when nothing else
    moves.

    That of a tensor of ``kind``, which decides whether its host memory is pageable (``None``:
    pinned). What a small transfer reaches is part of it (:meth:`hosim.hardware.Channel.ceiling`),
    the time to pin host memory is not: that is :func:`pin_ns`. Raises :class:`HardwareError` if the
    profile has no such channel.
    """
    channel = named_channel(hardware, channel_name)
    bandwidth: int | Fraction = channel_bandwidth(hardware, channel_name)
    ceiling = channel.ceiling(size_bytes, is_pageable(hardware, channel, kind))
    return transfer_ns(
        size_bytes, bandwidth if ceiling is None else min(bandwidth, ceiling), channel.latency_ns
    )


def is_pageable(hardware: Hardware, channel: Channel, kind: str | None) -> bool:
    """Return whether a tensor of ``kind`` lies in pageable memory at an end of ``channel``."""
    return any(
        kind in hardware.tiers[hardware.tier_index[end]].pageable
        for end in (channel.source, channel.destination)
    )


def pin_ns(hardware: Hardware, tier_name: str, kind: str) -> int:
    """Nanoseconds to allocate a tensor of ``kind`` in a tier as pinned memory, if it is not taken
    from a pool there.
    """
    tier = hardware.tiers[hardware.tier_index[tier_name]]
    return 0 if kind in tier.pageable else tier.pin_ns


def named_channel(hardware: Hardware, name: str) -> Channel:
    """The channel of this name. Raises :class:`HardwareError` if the profile has none."""
    for channel in hardware.channels:
        if channel.name == name:
            return channel
    known = ", ".join(sorted(channel.name for channel in hardware.channels)) or "none"
    raise HardwareError(
        f"no channel {name!r} in {hardware.name!r} (channels: {known})", where="channels"
    )


def taken_as_pinned(hardware: Hardware, tier: Tier, moved: Collection[str]) -> str:
    """Return a note on host memory whose copies are timed as pinned ones where the profile has no
    rate for others; empty where it has.

    ``moved`` are the channels that carry something.
    """
    if tier.name == hardware.device_tier or tier.scope != "host" or tier.pageable:
        return ""
    links = [
        c
        for c in hardware.channels
        if c.name in moved and {c.source, c.destination} == {tier.name, hardware.device_tier}
    ]
    missing = ", ".join(
        [f"channels.{c.name}.pageable" for c in links if c.pageable_bytes_per_s is None]
    )
    return (
        f"copies of {tier.name} are timed as pinned, and {hardware.name} has no rate for pageable "
        f"ones ({missing})"
        if missing
        else ""
    )
