"""The hardware profile: compute, tiers, channels and fabrics, as frozen integers.

Bytes, bytes per second, nanoseconds and FLOP per second throughout; files and their units are
:mod:`hosim.io.hardware`'s business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from hosim.errors import HardwareError

SCOPES = ("device", "host", "global")
"""Who shares a tier: one device, the devices of a host, or all of a supernode."""


@dataclass(frozen=True, slots=True)
class Tier:
    """A memory with a capacity. ``bandwidth_bytes_per_s`` is that of the memory itself, not of a channel to it."""

    name: str
    capacity_bytes: int
    bandwidth_bytes_per_s: int
    scope: str = "host"


@dataclass(frozen=True, slots=True)
class Channel:
    """A one-way DMA path from tier ``source`` to tier ``destination`` with ``engines`` transfers at once.

    ``bandwidth_bytes_per_s`` is shared by the engines; ``latency_ns`` is spent once a transfer, before its bytes flow.
    """

    name: str
    source: str
    destination: str
    bandwidth_bytes_per_s: int
    latency_ns: int = 0
    engines: int = 1


@dataclass(frozen=True, slots=True)
class Fabric:
    """Bandwidth that several channels share: a PCIe root, a pool switch, a host DRAM bus."""

    name: str
    bandwidth_bytes_per_s: int
    channels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Compute:
    """What the cost model needs of the processor.

    ``peak_flops`` is FLOP per second by dtype, dense; ``efficiency`` the fraction of the peak (of FLOP and of device
    bandwidth) that kernels reach; ``launch_ns`` the fixed time of an op.
    """

    peak_flops: Mapping[str, int]
    efficiency: float = 1.0
    launch_ns: int = 0


@dataclass(frozen=True)
class Hardware:
    """A machine as the engine sees it. Checked when made; raises :class:`HardwareError`.

    ``inspect_ns`` is the CPU time that a runtime policy spends per op. ``devices`` share the fabrics and run the same program.
    """

    name: str
    tiers: tuple[Tier, ...]
    channels: tuple[Channel, ...]
    compute: Compute
    device_tier: str = "hbm"
    fabrics: tuple[Fabric, ...] = ()
    inspect_ns: int = 0
    devices: int = 1
    source: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        _check(self)

    @cached_property
    def tier_index(self) -> Mapping[str, int]:
        """Position of each tier by name."""
        return {tier.name: i for i, tier in enumerate(self.tiers)}

    @property
    def device(self) -> Tier:
        """The device tier."""
        return self.tiers[self.tier_index[self.device_tier]]

    @cached_property
    def channel_between(self) -> Mapping[tuple[str, str], Channel]:
        """The channel that joins two tiers directly, by (source, destination); the fastest where several do."""
        joined: dict[tuple[str, str], Channel] = {}
        for channel in self.channels:
            ends = (channel.source, channel.destination)
            if ends not in joined or channel.bandwidth_bytes_per_s > joined[ends].bandwidth_bytes_per_s:
                joined[ends] = channel
        return joined


def _check(hardware: Hardware) -> None:
    """Raise :class:`HardwareError` at the first contradiction, with its path as in the file format."""
    tiers: set[str] = set()
    for tier in hardware.tiers:
        where = f"tiers.{tier.name}"
        if tier.name in tiers:
            raise HardwareError("tier is listed twice", where=where)
        tiers.add(tier.name)
        if tier.scope not in SCOPES:
            raise HardwareError(f"unknown scope {tier.scope!r}; expected one of {', '.join(SCOPES)}", where=f"{where}.scope")
        if tier.capacity_bytes <= 0:
            raise HardwareError("expected a capacity above 0 B", where=f"{where}.capacity")
        if tier.bandwidth_bytes_per_s <= 0:
            raise HardwareError("expected a bandwidth above 0 B/s", where=f"{where}.bandwidth")
    if hardware.device_tier not in tiers:
        known = ", ".join(sorted(tiers)) or "none"
        raise HardwareError(f"no tier {hardware.device_tier!r} (tiers: {known})", where="device_tier")
    channels: set[str] = set()
    for channel in hardware.channels:
        where = f"channels.{channel.name}"
        if channel.name in channels:
            raise HardwareError("channel is listed twice", where=where)
        channels.add(channel.name)
        for label, end in (("from", channel.source), ("to", channel.destination)):
            if end not in tiers:
                raise HardwareError(f"no tier {end!r} (tiers: {', '.join(sorted(tiers))})", where=f"{where}.{label}")
        if channel.source == channel.destination:
            raise HardwareError("a channel joins two different tiers", where=f"{where}.to")
        if channel.bandwidth_bytes_per_s <= 0:
            raise HardwareError("expected a bandwidth above 0 B/s", where=f"{where}.bandwidth")
        if channel.latency_ns < 0:
            raise HardwareError("expected a latency of at least 0 ns", where=f"{where}.latency")
        if channel.engines < 1:
            raise HardwareError("expected at least 1 engine", where=f"{where}.engines")
    for fabric in hardware.fabrics:
        where = f"fabrics.{fabric.name}"
        if fabric.bandwidth_bytes_per_s <= 0:
            raise HardwareError("expected a bandwidth above 0 B/s", where=f"{where}.bandwidth")
        for j, member in enumerate(fabric.channels):
            if member not in channels:
                known = ", ".join(sorted(channels)) or "none"
                raise HardwareError(f"no channel {member!r} (channels: {known})", where=f"{where}.channels[{j}]")
        if len(set(fabric.channels)) != len(fabric.channels):
            raise HardwareError("a channel is listed twice", where=f"{where}.channels")
    if len({fabric.name for fabric in hardware.fabrics}) != len(hardware.fabrics):
        raise HardwareError("a fabric is listed twice", where="fabrics")
    if hardware.devices < 1:
        raise HardwareError("expected at least 1 device", where="devices")
    compute = hardware.compute
    for dtype, peak in compute.peak_flops.items():
        if peak <= 0:
            raise HardwareError("expected a peak above 0 FLOP/s", where=f"compute.peak.{dtype}")
    if not 0 < compute.efficiency <= 1:
        raise HardwareError(f"expected an efficiency above 0 and at most 1, got {compute.efficiency}", where="compute.efficiency")
    if compute.launch_ns < 0:
        raise HardwareError("expected a launch time of at least 0 ns", where="compute.launch")
    if hardware.inspect_ns < 0:
        raise HardwareError("expected an inspection time of at least 0 ns", where="runtime.inspect")
