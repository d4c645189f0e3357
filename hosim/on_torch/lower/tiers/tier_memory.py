"""The memory of the tiers below the device tier, on a real machine: host memory, or files where a
folder is named.
"""

import os
from collections.abc import Mapping

from hosim.errors import InputError
from hosim.hardware import Hardware
from hosim.on_torch.lower.tiers.file_tier import FileTier, Later
from hosim.on_torch.lower.tiers.host_pool import HostPool, Pinning


def memory_of_tiers(
    hardware: Hardware,
    directories: Mapping[str, str | os.PathLike[str]],
    later: Later,
    *,
    direct: bool,
    pinning: Pinning | None = None,
) -> dict[str, HostPool | FileTier]:
    """Return the memory that holds the bytes of each tier but the device tier, by name.

    Raises :class:`InputError` for a folder of no such tier and for one that cannot be used, and for
    channels that share a queue, as each is run by itself here; nothing stays open then.
    """
    for channel in hardware.channels:
        if channel.queue is not None:
            raise InputError(
                f"{hardware.name} says that channels share a queue, and plans run here with one for "
                "each; leave that out of the profile",
                where=f"channels.{channel.name}.queue",
            )
    below = {
        tier.name: tier.capacity_bytes
        for tier in hardware.tiers
        if tier.name != hardware.device_tier
    }
    for name in directories:
        if name not in below:
            known = ", ".join(below) or "none"
            raise InputError(
                f"no tier {name!r} below the device tier of {hardware.name} (tiers: {known})",
                source="directories",
            )
    made: dict[str, HostPool | FileTier] = {}
    try:
        for name, capacity in below.items():
            if name in directories:
                made[name] = FileTier(name, directories[name], capacity, later, direct)
            else:
                made[name] = HostPool(name, capacity, later, pinning)
    except BaseException:
        for tier in made.values():
            tier.close()
        raise
    return made


def shrink_host_memory(tiers: Mapping[str, HostPool | FileTier]) -> None:
    """Give host memory that holds nothing back to the system."""
    for tier in tiers.values():
        if isinstance(tier, HostPool):
            tier.shrink()
