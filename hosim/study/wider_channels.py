"""Give some channels more bandwidth, and their fabrics as much more, so that these do not limit
them as before.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

from hosim.hardware import Hardware


def widened(
    hardware: Hardware, more: Mapping[str, int], kept: Collection[str] = ()
) -> tuple[Hardware, tuple[str, ...]]:
    """Return the machine whose channels have ``more`` bytes per second, and the names of the
    fabrics that were raised with them.

    A fabric gets the sum of what its channels get, for each device that shares it. Fabrics in
    ``kept`` are unchanged.
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
