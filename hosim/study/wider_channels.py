"""A machine with more bandwidth of some channels: what they share with others carries as much more,
or it would bound them as before.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

from hosim.hardware import Hardware


def widened(
    hardware: Hardware, more: Mapping[str, int], kept: Collection[str] = ()
) -> tuple[Hardware, tuple[str, ...]]:
    """The machine whose channels have so many more bytes per second, and the names of the fabrics
    that were raised with them.

    A fabric carries as much more as all its channels together do, for each device that shares it.
    Those in ``kept`` stay as they are.
    """
    added = {
        f.name: sum(more.get(c, 0) for c in f.channels) * hardware.sharers(f.scope)
        for f in hardware.fabrics
        if f.name not in kept
    }
    channels = tuple(
        [
            replace(c, bandwidth_bytes_per_s=c.bandwidth_bytes_per_s + more.get(c.name, 0))
            for c in hardware.channels
        ]
    )
    fabrics = tuple(
        [
            replace(f, bandwidth_bytes_per_s=f.bandwidth_bytes_per_s + added.get(f.name, 0))
            for f in hardware.fabrics
        ]
    )
    return replace(hardware, channels=channels, fabrics=fabrics), tuple(
        [name for name, bandwidth in added.items() if bandwidth]
    )
