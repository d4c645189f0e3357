"""The hardware profile: compute, tiers, channels and fabrics, as frozen integers.

Units are bytes, bytes per second, nanoseconds and FLOP per second;
:mod:`hosim.io.hardware_file` converts the units of files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from math import ceil

from hosim.base.in_cells import InCells
from hosim.base.whole_numbers import keep_whole, not_whole, whole
from hosim.data.field_kinds import keep_kinds
from hosim.data.runtime import Runtime
from hosim.errors import HardwareError, Rule, refuse
from hosim.graph import KINDS
from hosim.limits import limit, refusal
from hosim.plain_text import counted, named, printable, shown
from hosim.units import LARGEST, human_size

SCOPES = ("device", "host", "global")
"""The devices that share a tier or a fabric: one, those of a host, or all of a supernode; the
narrowest first.
"""


_MOST_CROSSINGS = 16
"""The most times that the bytes of a collective cross a fabric."""


@dataclass(frozen=True, slots=True)
class Tier:
    """A memory with a capacity. ``bandwidth_bytes_per_s`` is that of the memory itself, not of a
    channel to it.

    ``pageable`` are the kinds of tensors whose copies here lie in pageable memory; all others are
    pinned. ``pin_ns`` is the time to pin a tensor's bytes here: the transfer that brings the tensor
    spends it before its latency and holds its engine meanwhile. With ``pin_pool``, pinned memory is
    reused (without fragmentation): the time is spent only when the pinned bytes exceed their
    largest number so far. Tensors that are here at time 0 are pinned already.

    ``compute`` is the processor of this memory on which ops can run, if it has one, such as the CPU
    of host memory (docs/contract.md, rule 20). That of the device is :attr:`Hardware.compute`.

    Without ``dma``, the device's own processor copies to and from this tier, and its ops pause
    meanwhile (rule 22).
    """

    name: str
    capacity_bytes: int
    bandwidth_bytes_per_s: int
    scope: str = "host"
    pageable: tuple[str, ...] = ()
    pin_ns: int = 0
    pin_pool: bool = False
    compute: Compute | None = None
    dma: bool = True

    def __post_init__(self) -> None:
        _keep(self, f"tier {named(self.name)}")


@dataclass(frozen=True, slots=True)
class Channel:
    """A one-way DMA path from tier ``source`` to tier ``destination``, which runs up to ``engines``
    transfers at once.

    The engines share ``bandwidth_bytes_per_s``; each transfer spends ``latency_ns`` before its
    bytes flow. ``curve`` has the bandwidths of small transfers, as (bytes, bytes per second) with
    ascending sizes: see :meth:`ceiling`. ``pageable_bytes_per_s`` is the largest bandwidth of a
    transfer from or to pageable memory (``None``: no such limit). ``beside`` has the channel's
    bandwidth while another channel is busy, as (that channel, bytes per second), for two directions
    that disturb each other. If they only share one bandwidth, as on a half-duplex link, use a
    :class:`Fabric` over both. Channels between the same two tiers that name one ``queue`` share the
    queue and its engines (rule 24; ``None``: a queue of its own). ``spread`` is the standard
    deviation of the logarithm of measured rates of pinned memory relative to the bandwidth
    (``None``: not measured).
    """

    name: str
    source: str
    destination: str
    bandwidth_bytes_per_s: int
    latency_ns: int = 0
    engines: int = 1
    curve: tuple[tuple[int, int], ...] = ()
    pageable_bytes_per_s: int | None = None
    beside: tuple[tuple[str, int], ...] = ()
    spread: float | None = None
    queue: str | None = None

    def __post_init__(self) -> None:
        _keep(self, f"channel {named(self.name)}")

    def ceiling(self, size_bytes: int, pageable: bool = False) -> Fraction | None:
        """Return the largest bandwidth (bytes per second) of a transfer of this size, or ``None``
        if the channel's own is the only limit.

        A point (s, b) of the curve says that s bytes take s / b seconds. Between two points the
        time is linear in the size. Below the first point the bandwidth is that of the first point;
        beyond the last, each further byte takes its time at the channel's bandwidth, which the
        rate approaches. The rate by the curve is rounded up to a whole byte per second.
        """
        limits = []
        if self.curve and size_bytes:
            limits.append(Fraction(ceil(size_bytes / _seconds(self, size_bytes))))
        if pageable and self.pageable_bytes_per_s is not None:
            limits.append(Fraction(self.pageable_bytes_per_s))
        return min(limits, default=None)


@dataclass(frozen=True, slots=True)
class Fabric:
    """Bandwidth that several channels share: a PCIe root, a pool switch, a host DRAM bus, or both
    directions of a half-duplex link.

    Each device has its own channels. With ``scope`` ``device``, the channels of one device share
    the fabric; with ``host`` and ``global``, those of all devices of a host, or of all devices,
    share it. ``collectives`` is how many times the fabric carries the bytes that a device sends in
    a collective: 0 if they do not cross it, 1 if it has one direction, 2 if it has both.
    """

    name: str
    bandwidth_bytes_per_s: int
    channels: tuple[str, ...]
    scope: str = "host"
    collectives: int = 0

    def __post_init__(self) -> None:
        _keep(self, f"fabric {named(self.name)}")


@dataclass(frozen=True, slots=True)
class ProcessorFigures:
    """The vendor's figures of the processor, besides its peaks, on which kernel times depend.

    ``multiprocessors`` run blocks of threads in parallel at ``clock_hz``, the clock for which the
    peaks are stated. ``cache_bytes`` is the size of the last-level cache; ``link_bytes_per_s`` is
    the bandwidth of all links to other devices, in one direction. In a ``mesh`` of that many
    devices, each has one link to each other device, so fewer devices use fewer links (0: any two
    devices use all links). ``sustained_hz`` is the clock under long load, which power or heat limit
    (0: the same clock). ``best_flops`` is, by dtype, the FLOP per second of the fastest measured
    matrix product; no modelled one is faster.
    """

    multiprocessors: int
    clock_hz: int
    cache_bytes: int = 0
    link_bytes_per_s: int = 0
    mesh: int = 0
    sustained_hz: int = 0
    best_flops: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _keep(self, "processor")


@dataclass(frozen=True, eq=False)
class MeasuredTimes:
    """Measured times of one class of kernels in one dtype: ``us`` has the microseconds for each
    entry of ``sizes``, whose numbers are in the class's order.

    ``distribution`` names the distribution of tokens over experts; ``file`` is the file that the
    times were read from.
    """

    file: str
    kernel: str
    dtype: str
    distribution: str
    sizes: tuple[tuple[int, ...], ...]
    us: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Compute:
    """The processor, as the cost model needs it.

    ``peak_flops`` is dense FLOP per second by dtype. ``efficiency`` is the fraction of the peaks
    (of FLOP and of device bandwidth) that kernels reach. ``beside_copies`` is the fraction of that
    bandwidth that reading kernels keep while copies flow; the bytes of the copies are subtracted,
    too. ``launch_ns`` is the fixed time of an op. ``efficiency_of`` has the efficiency of some
    kinds of ops, by kind and dtype; ``efficiency`` is that of all others.

    With ``processor``, an op that names its kernel takes the time of that kernel: by ``tables`` of
    measured times, and by the constants of its class. These are in ``kernels``, by class, dtype and
    name, or else come from the most similar machine. ``alone`` is set if only one of the devices
    that share the tier computes on this processor and so has all of it (docs/contract.md, rule 21);
    no profile sets it.
    """

    peak_flops: Mapping[str, int]
    efficiency: float = 1.0
    launch_ns: int = 0
    efficiency_of: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    processor: ProcessorFigures | None = None
    kernels: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    tables: tuple[MeasuredTimes, ...] = ()
    beside_copies: float = 1.0
    alone: bool = False

    def __post_init__(self) -> None:
        _keep(self, "compute")

    def efficiency_for(self, kind: str, dtype: str) -> Fraction:
        """Return the efficiency of an op of this kind in this dtype, exactly as its decimal was
        written.
        """
        return Fraction(str(self.efficiency_of.get(kind, {}).get(dtype, self.efficiency)))


@dataclass(frozen=True)
class Hardware(InCells):
    """A machine: processor, memory tiers, channels and fabrics.

    Parameters
    ----------
    name
        The machine's name.
    tiers
        The memories. Capacities (bytes) and bandwidths (bytes per second) are those of one
        instance, which several devices may share.
    channels
        The one-way paths between tiers.
    compute
        The processor, as the cost model sees it.
    device_tier
        The name of the tier that ops run from.
    fabrics
        Bandwidth that several channels share.
    inspect_ns
        Nanoseconds of CPU time that a runtime policy spends per op.
    devices
        The number of devices that run the same program together.
    devices_per_host
        The number of devices of each host; ``None``: one host has all. The last host may have
        fewer.
    chunk_bytes
        The size of the chunks in which a tensor moves over a route of several channels.
    source
        The sources of the figures.
    version
        The version of the profile, raised with every change of its figures.
    price_per_hour
        The price of one device for an hour, in any currency; 0: unknown. No time depends on it.
    software
        The runtime under which the workload runs, if the workload names one
        (:mod:`hosim.data.runtime`); no profile sets it.

    Raises
    ------
    HardwareError
        If the description contradicts itself.

    References
    ----------
    ``docs/formats.md`` describes the file; each shipped profile names the source of its figures.

    Examples
    --------
    >>> machine = Hardware(
    ...     "one tier", (Tier("hbm", 100, 10**12, "device"),), (), Compute({"bf16": 10**12})
    ... )
    >>> machine.device.capacity_bytes
    100
    """

    name: str
    tiers: tuple[Tier, ...]
    channels: tuple[Channel, ...]
    compute: Compute
    device_tier: str = "hbm"
    fabrics: tuple[Fabric, ...] = ()
    inspect_ns: int = 0
    devices: int = 1
    devices_per_host: int | None = None
    chunk_bytes: int = 64 * 2**20
    source: str = field(default="", compare=False)
    version: int = 1
    price_per_hour: float = field(default=0.0, compare=False)
    software: Runtime | None = None

    def __post_init__(self) -> None:
        _keep(self, "")
        _check(self)

    def __repr__(self) -> str:
        tiers = ", ".join(
            f"{printable(tier.name)} {human_size(tier.capacity_bytes)}" for tier in self.tiers
        )
        return f"<Hardware {printable(self.name)}: {counted(self.devices, 'device')}, {tiers}>"

    @cached_property
    def tier_index(self) -> Mapping[str, int]:
        """The position of each tier, by name."""
        return {tier.name: i for i, tier in enumerate(self.tiers)}

    @property
    def device(self) -> Tier:
        """The device tier."""
        return self.tiers[self.tier_index[self.device_tier]]

    def tier_scope(self, name: str) -> str:
        """Return the scope of a tier: the devices that share it. The device tier is never shared.

        Parameters
        ----------
        name
            The tier.

        Returns
        -------
        str
            One of :data:`SCOPES`.
        """
        if name == self.device_tier:
            return "device"
        if not isinstance(name, str) or name not in self.tier_index:
            raise HardwareError(
                f"no tier {shown(name, 60)} (tiers: {', '.join(self.tier_index)})", where="tiers"
            )
        return self.tiers[self.tier_index[name]].scope

    def channel_scope(self, channel: Channel) -> str:
        """Return the scope of a channel: the devices that share both its tiers share its bandwidth.
        Each device has its own queue and engines.

        Parameters
        ----------
        channel
            The channel.

        Returns
        -------
        str
            One of :data:`SCOPES`.
        """
        if not isinstance(channel, Channel):
            raise HardwareError(f"expected a channel, got {shown(channel, 60)}", where="channels")
        return min(map(self.tier_scope, (channel.source, channel.destination)), key=SCOPES.index)

    def instance(self, scope: str, device: int) -> int:
        """Return the device's instance of a tier, channel or fabric with this scope: its own, its
        host's, or the only one.

        Parameters
        ----------
        scope
            One of :data:`SCOPES`.
        device
            The device's position.

        Returns
        -------
        int
            The position of the instance.
        """
        if scope == "device":
            return device
        return device // (self.devices_per_host or self.devices) if scope == "host" else 0

    def sharers(self, scope: str) -> int:
        """Return the largest number of devices that share one instance of a scope.

        Parameters
        ----------
        scope
            One of :data:`SCOPES`.

        Returns
        -------
        int
            Their number.
        """
        known = {
            "device": 1,
            "host": min(self.devices, self.devices_per_host or self.devices),
            "global": self.devices,
        }
        if not isinstance(scope, str) or scope not in known:
            raise HardwareError(
                f"unknown scope {shown(scope, 60)}; expected one of {', '.join(SCOPES)}",
                where="scope",
            )
        return known[scope]

    def of_devices(self, devices: int) -> Hardware:
        """Return the machine with another number of devices.

        It is the same object each time, so data derived from a graph on it stay cached.

        Parameters
        ----------
        devices
            Their number.

        Returns
        -------
        Hardware
            The machine.
        """
        count = whole(devices)
        if count is None:
            raise HardwareError(not_whole("devices", devices), where="devices")
        devices = count
        if devices == self.devices:
            return self
        known: dict[int, Hardware] = self._of_devices
        return known.setdefault(devices, replace(self, devices=devices))

    @cached_property
    def _of_devices(self) -> dict[int, Hardware]:
        return {}

    @cached_property
    def fair_share(self) -> Hardware:
        """The machine that one device has if all devices do the same: they divide what they share,
        rounded down.
        """
        if self.devices == 1:
            return self
        share = replace(
            self,
            devices=1,
            devices_per_host=None,
            tiers=tuple(self._part_of_tier(t) for t in self.tiers),
            channels=tuple(self._part_of_channel(c) for c in self.channels),
            fabrics=tuple(
                replace(f, bandwidth_bytes_per_s=self._part(f.bandwidth_bytes_per_s, f.scope))
                for f in self.fabrics
            ),
        )
        vars(share)["whole"] = self
        return share

    @cached_property
    def whole(self) -> Hardware:
        """The machine of which this one is the :attr:`fair_share`, else this machine itself.

        A machine that is made from a share is its own whole.
        """
        return self

    def _part(self, whole: int, scope: str) -> int:
        return max(1, whole // self.sharers(scope))

    def _part_of_tier(self, tier: Tier) -> Tier:
        scope = self.tier_scope(tier.name)
        room, bandwidth = (
            self._part(tier.capacity_bytes, scope),
            self._part(tier.bandwidth_bytes_per_s, scope),
        )
        compute = tier.compute
        if compute is not None and compute.alone:
            bandwidth = tier.bandwidth_bytes_per_s
        elif compute is not None:
            compute = replace(
                compute,
                peak_flops={
                    dtype: self._part(peak, scope) for dtype, peak in compute.peak_flops.items()
                },
            )
        return replace(tier, capacity_bytes=room, bandwidth_bytes_per_s=bandwidth, compute=compute)

    def _part_of_channel(self, channel: Channel) -> Channel:
        scope = self.channel_scope(channel)
        own, pageable = (
            self._part(channel.bandwidth_bytes_per_s, scope),
            channel.pageable_bytes_per_s,
        )
        return replace(
            channel,
            bandwidth_bytes_per_s=own,
            curve=tuple((size, min(own, bandwidth)) for size, bandwidth in channel.curve),
            pageable_bytes_per_s=None if pageable is None else min(own, pageable),
            beside=tuple(
                (other, self._part(bandwidth, scope)) for other, bandwidth in channel.beside
            ),
        )

    @cached_property
    def copied_by_ops(self) -> tuple[bool, ...]:
        """For each channel, true if the device's own processor copies over it, because one of its
        tiers has no DMA (rule 22).
        """
        without = {tier.name for tier in self.tiers if not tier.dma}
        return tuple(
            [
                channel.source in without or channel.destination in without
                for channel in self.channels
            ]
        )

    @cached_property
    def queue_of(self) -> Mapping[str, str]:
        """For each channel, the queue of its transfers, named after the first channel that uses it
        (rule 24).
        """
        first: dict[str, str] = {}
        return {
            c.name: c.name if c.queue is None else first.setdefault(c.queue, c.name)
            for c in self.channels
        }

    @cached_property
    def channel_between(self) -> Mapping[tuple[str, str], Channel]:
        """The fastest channel that joins two tiers directly, by (source, destination)."""
        joined: dict[tuple[str, str], Channel] = {}
        for channel in self.channels:
            ends = (channel.source, channel.destination)
            if (
                ends not in joined
                or channel.bandwidth_bytes_per_s > joined[ends].bandwidth_bytes_per_s
            ):
                joined[ends] = channel
        return joined


def _keep(made: object, about: str) -> None:
    """Raise :class:`HardwareError` if a field is not of its declared type.

    Numpy numbers become Python numbers, and lists become tuples.
    """
    keep_kinds(made, HardwareError, about)
    keep_whole(made, HardwareError, about, LARGEST)


def _seconds(channel: Channel, size_bytes: int) -> Fraction:
    """Return the seconds for this many bytes by the curve of a channel, without latency."""
    size, seconds = 0, Fraction(0)
    for following, bandwidth in channel.curve:
        then = Fraction(following, bandwidth)
        if size_bytes <= following:
            return seconds + (then - seconds) * Fraction(size_bytes - size, following - size)
        size, seconds = following, then
    return seconds + Fraction(size_bytes - size, channel.bandwidth_bytes_per_s)


def _refuse(rules: Iterable[Rule]) -> None:
    """Raise :class:`HardwareError` for the first broken rule."""
    refuse(rules, HardwareError)


def _check(hardware: Hardware) -> None:
    """Raise :class:`HardwareError` for the first contradiction, with its path in the file."""
    channels = _check_channels(hardware, _check_tiers(hardware))
    for fabric in hardware.fabrics:
        _refuse(_of_fabric(fabric, f"fabrics.{fabric.name}", channels))
    names = {fabric.name for fabric in hardware.fabrics}
    _refuse([("fabrics", len(names) != len(hardware.fabrics), "a fabric is listed twice")])
    most, per_host = limit("devices"), hardware.devices_per_host
    _refuse(
        (
            ("devices", hardware.devices < 1, "expected at least 1 device"),
            ("devices", hardware.devices > most, refusal("devices", hardware.devices).message),
            (
                "devices_per_host",
                per_host is not None and per_host < 1,
                "expected at least 1 device on a host",
            ),
            ("chunk", hardware.chunk_bytes < 1, "expected chunks of at least 1 B"),
        )
    )
    _check_compute(hardware.compute, "compute")
    inspects = "expected an inspection time of at least 0 ns"
    _refuse([("runtime.inspect", hardware.inspect_ns < 0, inspects)])


def _check_tiers(hardware: Hardware) -> set[str]:
    """Check the tiers and return their names."""
    tiers: set[str] = set()
    for tier in hardware.tiers:
        where = f"tiers.{tier.name}"
        _refuse([(where, tier.name in tiers, "tier is listed twice")])
        tiers.add(tier.name)
        _refuse(_of_tier(tier, where, tier.name == hardware.device_tier))
        if tier.compute is not None:
            _check_compute(tier.compute, f"{where}.compute")
    device, known = hardware.device_tier, ", ".join(sorted(tiers)) or "none"
    _refuse([("device_tier", device not in tiers, f"no tier {device!r} (tiers: {known})")])
    return tiers


def _of_tier(tier: Tier, where: str, is_device: bool) -> Sequence[Rule]:
    return (
        (f"{where}.scope", tier.scope not in SCOPES, _unknown("scope", tier.scope, SCOPES)),
        (f"{where}.capacity", tier.capacity_bytes <= 0, "expected a capacity above 0 B"),
        (
            f"{where}.bandwidth",
            tier.bandwidth_bytes_per_s <= 0,
            "expected a bandwidth above 0 B/s",
        ),
        *[
            (f"{where}.pageable[{j}]", kind not in KINDS, _unknown("kind of tensor", kind, KINDS))
            for j, kind in enumerate(tier.pageable)
        ],
        (f"{where}.pin.time", tier.pin_ns < 0, "expected a time of at least 0 ns"),
        (
            f"{where}.{'pageable' if tier.pageable else 'pin'}",
            is_device and (tier.pageable or tier.pin_ns),
            "host memory is pageable or pinned, the device tier is not",
        ),
        (
            f"{where}.dma",
            is_device and not tier.dma,
            "it is the tier below that has no DMA: say it of that one",
        ),
        (
            f"{where}.compute",
            is_device and tier.compute is not None,
            "the processor of the device tier is the compute of the profile",
        ),
        (
            f"{where}.compute.processor",
            tier.compute is not None and tier.compute.processor is not None,
            "times of kernels are those of the device alone",
        ),
    )


def _unknown(what: str, name: str, known: Sequence[str]) -> str:
    return f"unknown {what} {name!r}; expected one of {', '.join(known)}"


def _check_channels(hardware: Hardware, tiers: set[str]) -> set[str]:
    """Check the channels and return their names."""
    channels: set[str] = set()
    for channel in hardware.channels:
        where = f"channels.{channel.name}"
        _refuse([(where, channel.name in channels, "channel is listed twice")])
        channels.add(channel.name)
        _refuse(_of_channel(channel, where, tiers))
    for channel in hardware.channels:
        known = ", ".join(sorted(channels - {channel.name})) or "none"
        for other, bandwidth in channel.beside:
            where = f"channels.{channel.name}.beside.{other}"
            is_another = other in channels and other != channel.name
            _refuse(
                (
                    (where, not is_another, f"expected another channel (channels: {known})"),
                    (
                        where,
                        not 0 < bandwidth <= channel.bandwidth_bytes_per_s,
                        "expected a bandwidth above 0 B/s and at most the channel's",
                    ),
                )
            )
    _check_queues(hardware)
    return channels


def _of_channel(channel: Channel, where: str, tiers: set[str]) -> Sequence[Rule]:
    known, own = ", ".join(sorted(tiers)), channel.bandwidth_bytes_per_s
    return (
        *[
            (f"{where}.{label}", end not in tiers, f"no tier {end!r} (tiers: {known})")
            for label, end in (("from", channel.source), ("to", channel.destination))
        ],
        (
            f"{where}.to",
            channel.source == channel.destination,
            "a channel joins two different tiers",
        ),
        (f"{where}.bandwidth", own <= 0, "expected a bandwidth above 0 B/s"),
        (f"{where}.latency", channel.latency_ns < 0, "expected a latency of at least 0 ns"),
        (f"{where}.engines", channel.engines < 1, "expected at least 1 engine"),
        (
            f"{where}.spread",
            channel.spread is not None and not 0 <= channel.spread <= 10,
            "expected a spread from 0 to 10",
        ),
        *[(f"{where}.{label}", True, message) for label, message in _uneven(channel)],
    )


def _check_queues(hardware: Hardware) -> None:
    by_name = {channel.name: channel for channel in hardware.channels}
    for name, first in hardware.queue_of.items():
        channel, other = by_name[name], by_name[first]
        ends = {channel.source, channel.destination}
        if ends != {other.source, other.destination} or channel.engines != other.engines:
            raise HardwareError(
                f"channels of one queue join the same two tiers with equally many engines; {first} "
                f"joins {other.source} and {other.destination} with {other.engines}",
                where=f"channels.{name}.queue",
            )


def _of_fabric(fabric: Fabric, where: str, channels: set[str]) -> Sequence[Rule]:
    known = ", ".join(sorted(channels)) or "none"
    return (
        (
            f"{where}.bandwidth",
            fabric.bandwidth_bytes_per_s <= 0,
            "expected a bandwidth above 0 B/s",
        ),
        (
            f"{where}.collectives",
            not 0 <= fabric.collectives <= _MOST_CROSSINGS,
            f"expected a number from 0 to {_MOST_CROSSINGS}, got {fabric.collectives}",
        ),
        (f"{where}.scope", fabric.scope not in SCOPES, _unknown("scope", fabric.scope, SCOPES)),
        *[
            (
                f"{where}.channels[{j}]",
                member not in channels,
                f"no channel {member!r} (channels: {known})",
            )
            for j, member in enumerate(fabric.channels)
        ],
        (
            f"{where}.channels",
            len(set(fabric.channels)) != len(fabric.channels),
            "a channel is listed twice",
        ),
    )


def _check_compute(compute: Compute, where: str) -> None:
    """Raise :class:`HardwareError` if a processor contradicts itself.

    ``where`` is its path in the file.
    """
    own = compute.processor
    share = "expected an efficiency above 0 and at most 1, got"
    _refuse(
        (
            *[
                (f"{where}.peak.{dtype}", peak <= 0, "expected a peak above 0 FLOP/s")
                for dtype, peak in compute.peak_flops.items()
            ],
            (
                f"{where}.efficiency",
                not 0 < compute.efficiency <= 1,
                f"{share} {compute.efficiency}",
            ),
            *[
                (
                    f"{where}.efficiency_of.{kind}.{dtype}",
                    not 0 < fraction <= 1,
                    f"{share} {fraction}",
                )
                for kind, fractions in compute.efficiency_of.items()
                for dtype, fraction in fractions.items()
            ],
            *(() if own is None else _of_processor(own, f"{where}.processor")),
            (
                f"{where}.processor",
                own is None and (compute.kernels or compute.tables),
                "times of kernels need the vendor's figures: multiprocessors and clock",
            ),
            (
                f"{where}.launch",
                compute.launch_ns < 0,
                "expected a launch time of at least 0 ns",
            ),
        )
    )


def _of_processor(own: ProcessorFigures, where: str) -> Sequence[Rule]:
    return (
        (f"{where}.multiprocessors", own.multiprocessors < 1, "expected a figure above 0"),
        (f"{where}.clock", own.clock_hz < 1, "expected a figure above 0"),
        (
            f"{where}.sustained",
            own.sustained_hz > own.clock_hz,
            "expected at most the clock that the peaks are stated for",
        ),
        (
            f"{where}.best",
            min(own.best_flops.values(), default=1) < 1,
            "expected more than 0 FLOP/s",
        ),
    )


def _uneven(channel: Channel) -> Iterator[tuple[str, str]]:
    """Yield (path, message) for each error in a channel's curve and its pageable bandwidth."""
    own = channel.bandwidth_bytes_per_s
    for j, (size, bandwidth) in enumerate(channel.curve):
        if size <= 0:
            yield f"curve[{j}].size", "expected a size above 0 B"
        if not 0 < bandwidth <= own:
            yield (
                f"curve[{j}].bandwidth",
                "expected a bandwidth above 0 B/s and at most the channel's",
            )
    for j, ((size, bandwidth), (larger, wider)) in enumerate(pairwise(channel.curve), 1):
        if larger <= size:
            yield f"curve[{j}].size", "expected sizes in ascending order"
        if larger * bandwidth < size * wider:
            yield (
                f"curve[{j}].bandwidth",
                "a larger transfer would take less time than the one before it: expected a lower "
                "bandwidth",
            )
    if channel.pageable_bytes_per_s is not None and channel.pageable_bytes_per_s <= 0:
        yield "pageable", "expected a bandwidth above 0 B/s"
