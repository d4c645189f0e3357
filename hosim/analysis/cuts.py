"""What a machine's channels can carry at most: routes for one tensor, cuts for many.

Both are floors: no replay is faster, under any plan. They are what the lower
bounds on the makespan are made of.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hosim.costmodel.transfer_time import channel_bandwidth, transfer_ns
from hosim.hardware import Channel, Hardware

_NS_PER_S = 10**9


@dataclass(frozen=True, slots=True)
class Cut:
    """Channels that together are the only way from some tiers to the others.

    ``bandwidth_bytes_per_s`` is at least what they carry together, ``latency_ns`` the least latency of one.
    ``engine_bytes_per_s`` is what their engines would carry if each had its channel's whole bandwidth, and
    ``latency_loss`` (bytes per second times nanoseconds) the least that one loses of it in the latency of a transfer.
    """

    bandwidth_bytes_per_s: int
    latency_ns: int
    engine_bytes_per_s: int
    latency_loss: int

    def earliest_ns(self, size_bytes: int, transfers: int = 1) -> int:
        """Nanoseconds that ``size_bytes`` in at least ``transfers`` transfers need to cross, with nothing in the way.

        The first byte flows after a latency, and from then on all flow at the cut's bandwidth at best. And an engine with
        n transfers loses n latencies: summed over the engines, what flows and what is lost is at most what they would carry.
        """
        if not transfers:
            return 0
        engines = -(-(size_bytes * _NS_PER_S + transfers * self.latency_loss) // self.engine_bytes_per_s)
        return max(transfer_ns(size_bytes, self.bandwidth_bytes_per_s, self.latency_ns), engines)


def cut_of(hardware: Hardware, channels: Sequence[Channel]) -> Cut | None:
    """The cut that ``channels`` of ``hardware`` form; ``None`` if there are none, so that nothing crosses."""
    if not channels:
        return None
    alone = {channel.name: channel_bandwidth(hardware, channel.name) for channel in channels}
    return Cut(
        bandwidth_bytes_per_s=_together(hardware, alone),
        latency_ns=min(channel.latency_ns for channel in channels),
        engine_bytes_per_s=sum(channel.engines * alone[channel.name] for channel in channels),
        latency_loss=min(channel.latency_ns * alone[channel.name] for channel in channels),
    )


def _together(hardware: Hardware, alone: dict[str, int]) -> int:
    """An upper bound on the bytes per second of these channels together.

    Each channel is counted once, in a fabric that carries less than those of its members not yet counted, or by itself. Any
    such count is an upper bound; taking the fabrics that save most first makes it exact where no channel is in two.
    """
    left, total = dict(alone), 0

    def saved(members: Iterable[str], bandwidth: int) -> int:
        return sum(left[name] for name in members if name in left) - bandwidth

    fabrics = list(hardware.fabrics)
    while fabrics:
        best = max(fabrics, key=lambda fabric: saved(fabric.channels, fabric.bandwidth_bytes_per_s))
        if saved(best.channels, best.bandwidth_bytes_per_s) <= 0:
            break
        fabrics.remove(best)
        total += best.bandwidth_bytes_per_s
        for name in best.channels:
            left.pop(name, None)
    return total + sum(left.values())


def fastest_ns(hardware: Hardware, source: str, destination: str, size_bytes: int) -> int | None:
    """Nanoseconds that ``size_bytes`` need from tier to tier along the fastest route, hop by hop in chunks however small.

    The first byte passes every latency of the route, and all of them pass its narrowest hop. ``None`` if there is no route.
    """
    times = [transfer_ns(size_bytes, bandwidth, latency) for latency, bandwidth in routes(hardware, source, destination)]
    return min(times, default=None)


def routes(hardware: Hardware, source: str, destination: str) -> list[tuple[int, int]]:
    """The routes between two tiers as (sum of latencies in ns, narrowest bandwidth in bytes per second), none worse in both."""
    found: list[tuple[int, int]] = []
    best: dict[str, list[tuple[int, int]]] = {}
    pending: list[tuple[str, int, int | None]] = [(source, 0, None)]
    while pending:
        tier, latency, bandwidth = pending.pop()
        if bandwidth is not None:
            known = found if tier == destination else best.setdefault(tier, [])
            if any(other <= latency and wide >= bandwidth for other, wide in known):
                continue
            known[:] = [(other, wide) for other, wide in known if other < latency or wide > bandwidth]
            known.append((latency, bandwidth))
            if tier == destination:
                continue
        for channel in hardware.channels:
            if channel.source == tier and channel.destination != source:
                own = channel_bandwidth(hardware, channel.name)
                pending.append((channel.destination, latency + channel.latency_ns, own if bandwidth is None else min(own, bandwidth)))
    return sorted(found)
