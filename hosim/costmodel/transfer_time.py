"""How long one transfer takes on a channel that it has for itself (design.md section 3, rule 6)."""

from __future__ import annotations

from hosim.errors import HardwareError
from hosim.hardware import Channel, Hardware

_NS_PER_S = 10**9


def transfer_ns(size_bytes: int, bandwidth_bytes_per_s: int, latency_ns: int = 0) -> int:
    """Nanoseconds from the start of a transfer to the first whole one at which its bytes are through.

    The latency comes first and moves nothing; then the bytes flow at ``bandwidth_bytes_per_s``, which must be above 0.

    >>> transfer_ns(40, 10**9), transfer_ns(10, 3 * 10**9, latency_ns=5), transfer_ns(0, 10**9, latency_ns=5)
    (40, 9, 5)
    """
    return latency_ns - (-size_bytes * _NS_PER_S // bandwidth_bytes_per_s)


def channel_bandwidth(hardware: Hardware, channel_name: str) -> int:
    """Bytes per second that a transfer alone on the machine gets: the least of its channel's and its fabrics'.

    Raises :class:`HardwareError` if the profile has no such channel.
    """
    own = _channel(hardware, channel_name).bandwidth_bytes_per_s
    return min([own, *(fabric.bandwidth_bytes_per_s for fabric in hardware.fabrics if channel_name in fabric.channels)])


def alone_ns(hardware: Hardware, channel_name: str, size_bytes: int) -> int:
    """Nanoseconds that a transfer of ``size_bytes`` takes on ``channel_name`` when nothing else moves.

    Raises :class:`HardwareError` if the profile has no such channel.
    """
    return transfer_ns(size_bytes, channel_bandwidth(hardware, channel_name), _channel(hardware, channel_name).latency_ns)


def _channel(hardware: Hardware, name: str) -> Channel:
    for channel in hardware.channels:
        if channel.name == name:
            return channel
    known = ", ".join(sorted(channel.name for channel in hardware.channels)) or "none"
    raise HardwareError(f"no channel {name!r} in {hardware.name!r} (channels: {known})", where="channels")
