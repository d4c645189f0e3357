"""The duration of one transfer on a channel that it has to itself (docs/contract.md, rule 6)."""

from collections.abc import Collection
from fractions import Fraction
from math import ceil

from hosim.errors import HardwareError
from hosim.hardware import Channel, Hardware, Tier
from hosim.units import human_rate

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
    return min(
        [
            named_channel(hardware, channel_name).bandwidth_bytes_per_s,
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
    pinned). What a small transfer reaches is part of it (:func:`ceiling`), the time to pin host
    memory is not: that is :func:`pin_ns`. Raises :class:`HardwareError` if the profile has no such
    channel.
    """
    channel = named_channel(hardware, channel_name)
    bandwidth: int | Fraction = channel_bandwidth(hardware, channel_name)
    most = ceiling(hardware, channel, size_bytes, kind)
    return transfer_ns(
        size_bytes, bandwidth if most is None else min(bandwidth, most), channel.latency_ns
    )


def ceiling(
    hardware: Hardware, channel: Channel, size_bytes: int, kind: str | None
) -> Fraction | None:
    """The largest bandwidth (bytes per second) of a transfer of a tensor of ``kind`` on
    ``channel``, however much is free; ``None``: no limit.

    By its size and by its host memory (:meth:`hosim.hardware.Channel.ceiling`). Where the runtime
    moves a cache in copies (``cache_copy``), all of it reaches what one copy does, each of which
    takes ``copy_time`` beside its bytes (docs/contract.md, rule 14).
    """
    pageable, runtime = is_pageable(hardware, channel, kind), hardware.software
    copied = runtime is not None and kind == "kv_cache" and round(runtime.cache_copy.value)
    if runtime is None or not copied or not size_bytes:
        return channel.ceiling(size_bytes, pageable)
    copied = min(copied, size_bytes)
    reached = channel.ceiling(copied, pageable)
    own = Fraction(channel.bandwidth_bytes_per_s)
    flows_ns = copied * _NS_PER_S / (own if reached is None else min(own, reached))
    return Fraction(ceil(copied * _NS_PER_S / (flows_ns + round(runtime.copy_time.value))))


def may_be_slower(hardware: Hardware, channel: Channel) -> bool:
    """Return whether some transfers on a channel have a :func:`ceiling`."""
    runtime = hardware.software
    in_copies = runtime is not None and runtime.cache_copy.value > 0
    ends = [
        hardware.tiers[hardware.tier_index[end]] for end in (channel.source, channel.destination)
    ]
    slow = channel.pageable_bytes_per_s is not None and any([tier.pageable for tier in ends])
    return bool(channel.curve) or slow or in_copies


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
    """Return a note on host memory whose copies are timed as pinned ones, with the rates that the
    profile has for others or the places where it lacks them; empty where nothing of it moves.

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
    if missing:
        return (
            f"copies of {tier.name} are timed as pinned, and {hardware.name} has no rate for "
            f"pageable ones ({missing})"
        )
    rates = [f"{human_rate(c.pageable_bytes_per_s or 0)} over {c.name}" for c in links]
    return (
        f"copies of {tier.name} are timed as pinned; pageable ones (the key pageable of a runtime) "
        f"reach {' and '.join(rates)}"
        if rates
        else ""
    )
