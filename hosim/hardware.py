"""The hardware profile: compute, tiers, channels and fabrics, as frozen integers.

Units are bytes, bytes per second, nanoseconds and FLOP per second throughout;
:mod:`hosim.io.hardware_file` reads files with other units.
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
"""Who shares a tier or a fabric: one device, the devices of a host, or all of a supernode; the
narrowest first.
"""


_MOST_CROSSINGS = 16
"""The most times that the bytes of a collective cross a fabric."""


@dataclass(frozen=True, slots=True)
class Tier:
    """A memory with a capacity. ``bandwidth_bytes_per_s`` is that of the memory itself, not of a
    channel to it.

    ``pageable`` are the kinds of tensors whose copies here lie in pageable memory; all others are
    pinned. ``pin_ns`` is the time to allocate a tensor's pinned bytes here, which the transfer that
    brings it spends before its latency, holding its engine. With ``pin_pool`` what was once pinned
    stays so and serves again (fragmentation aside): the time is spent only when the bytes pinned
    here rise above the most there ever were. What lies here at time 0 is pinned already.

    ``compute`` is the processor of this memory, if it has one that ops can run on: of host memory
    the CPU (docs/contract.md, rule 20). The device's is :attr:`Hardware.compute`.

    Without ``dma`` no engine copies to or from it but the device's own processor, whose ops do not
    go on meanwhile (rule 22).
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
    """A one-way DMA path from tier ``source`` to tier ``destination`` with ``engines`` transfers at
    once.

    ``bandwidth_bytes_per_s`` is shared by the engines; ``latency_ns`` is spent once a transfer,
    before its bytes flow. ``curve`` is what small transfers reach, as (bytes, bytes per second)
    with ascending sizes: see :meth:`ceiling`. ``pageable_bytes_per_s`` is what a transfer from or
    to pageable memory reaches at most (``None``: as much as others). ``beside`` is what the channel
    carries while bytes flow on another one, as (that channel, bytes per second): two directions
    that disturb each other. A link on which they merely share one bandwidth, a half-duplex one, is
    a :class:`Fabric` over both. Channels of one ``queue``, which join the same two tiers, share it
    with its engines (rule 24; ``None``: a queue of its own). ``spread`` is how far real rates of
    pinned memory are from the bandwidth, as the standard deviation of the logarithm (``None``:
    nobody measured it).
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
        """The largest bandwidth (bytes per second) of a transfer of this size on this channel,
        however much is free; ``None``: no limit.

        A point (s, b) of the curve says that s bytes take s / b seconds. Between two points the
        time is linear in the size; below the first it is that of the first point's bandwidth, and
        beyond the last every further byte takes what it takes at the channel's own, up to a whole
        byte a second. So its rate nears the channel's bandwidth.
        """
        limits = []
        if self.curve and size_bytes:
            limits.append(Fraction(ceil(size_bytes / _seconds(self, size_bytes))))
        if pageable and self.pageable_bytes_per_s is not None:
            limits.append(Fraction(self.pageable_bytes_per_s))
        return min(limits, default=None)


@dataclass(frozen=True, slots=True)
class Fabric:
    """Bandwidth that several channels share: a PCIe root, a pool switch, a host DRAM bus; over both
    directions, a half-duplex link.

    Each device has its own channels. With ``scope`` ``device``, the channels of one device share
    the fabric; with ``host`` and ``global``, those of all devices of a host, or of all devices,
    share it. ``collectives`` is how many times it carries the bytes that a device sends in a
    collective: not at all, once where it has one direction, twice where it has both.
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
    """The vendor's figures of the processor beyond its peaks that the times of kernels depend on.

    ``multiprocessors`` run blocks of threads beside each other, at ``clock_hz``: the one that the
    peaks are stated for. ``cache_bytes`` is the last cache before memory; ``link_bytes_per_s`` are
    the links to other devices, in one direction. In a ``mesh`` of so many devices each has one link
    to each of the others, so that fewer devices use fewer links (0: any two use all).
    ``sustained_hz`` is the clock that long computation leaves, where power or heat do not allow the
    other one; 0: the other one.
    ``best_flops`` is FLOP per second by dtype of the fastest matrix product that anybody measured:
    no modelled one is faster.
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
    """Measured times of one class of kernels in one dtype: microseconds of each of ``sizes``, which
    are in the order of the class.

    ``distribution`` is how tokens spread over experts; ``file`` is where the times were read.
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

    ``peak_flops`` is FLOP per second by dtype, dense; ``efficiency`` the fraction of the peak (of
    FLOP and of device bandwidth) that kernels reach; ``beside_copies`` the fraction of that
    bandwidth which those that read keep while copies flow, whose bytes come off it besides;
    ``launch_ns`` the fixed time of an op. ``efficiency_of`` has the fraction of some kinds of ops,
    by kind and dtype; ``efficiency`` is that of all others.

    With ``processor``, ops that say which kernel they are take what that takes: by ``tables`` of
    measured times, and by constants of the class: those of ``kernels``, by class, dtype and name,
    or else those of the machine that is most like it. ``alone``: of the devices that share its tier
    one computes on it, and has all of it (docs/contract.md, rule 21); no profile has it.
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
        """The fraction that an op of this kind reaches in this dtype; exactly the decimal that was
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
        instance, whoever shares it.
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
        How many devices run the same program together.
    devices_per_host
        How many of them each host has; ``None``: one host has all. The last host may have fewer.
    chunk_bytes
        The size of the chunks in which a tensor moves over a route of several channels.
    source
        Where the figures are from.
    version
        Raised with every change of the profile's figures.
    price_per_hour
        What one device costs an hour, in any currency; 0: not known. No time depends on it.
    software
        The runtime of the workload that it runs, if the workload names one
        (:mod:`hosim.data.runtime`); no profile has it.

    Raises
    ------
    HardwareError
        If it contradicts itself.

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
        """Position of each tier by name."""
        return {tier.name: i for i, tier in enumerate(self.tiers)}

    @property
    def device(self) -> Tier:
        """The device tier."""
        return self.tiers[self.tier_index[self.device_tier]]

    def tier_scope(self, name: str) -> str:
        """Return the scope of a tier, that is, who shares it; the device tier is always the
        device's own.

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
        """Return the scope of a channel: its bandwidth is shared by those who share both its tiers.
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
        """Return the instance of something with this scope that a device has: its own, its host's,
        or the only one.

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
        """The largest number of devices that share one instance of a scope.

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
        """The machine with so many devices: the same object each time, so that what is derived from
        a graph on it is kept.

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
        """The machine of one device while all others do the same: what they share is divided among
        them, rounded down.
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
        """The machine of which this is the :attr:`fair_share`; any other machine itself, as is one
        that is made from a share.
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
        """For each channel, whether the device's processor copies over it itself: one of its tiers
        has no DMA (rule 22).
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
        """For each channel, which queue its transfers wait in: the name of the first channel that
        has it (rule 24).
        """
        first: dict[str, str] = {}
        return {
            c.name: c.name if c.queue is None else first.setdefault(c.queue, c.name)
            for c in self.channels
        }

    @cached_property
    def channel_between(self) -> Mapping[tuple[str, str], Channel]:
        """The channel that joins two tiers directly, by (source, destination); the fastest of
        several.
        """
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
    """Raise :class:`HardwareError` for a field of another kind than it declares; numbers of numpy
    become Python's, lists tuples.
    """
    keep_kinds(made, HardwareError, about)
    keep_whole(made, HardwareError, about, LARGEST)


def _seconds(channel: Channel, size_bytes: int) -> Fraction:
    """The seconds for this many bytes by the curve of a channel, without latency."""
    size, seconds = 0, Fraction(0)
    for following, bandwidth in channel.curve:
        then = Fraction(following, bandwidth)
        if size_bytes <= following:
            return seconds + (then - seconds) * Fraction(size_bytes - size, following - size)
        size, seconds = following, then
    return seconds + Fraction(size_bytes - size, channel.bandwidth_bytes_per_s)


def _refuse(rules: Iterable[Rule]) -> None:
    """Raise :class:`HardwareError` for the first of ``rules`` that is broken."""
    refuse(rules, HardwareError)


def _check(hardware: Hardware) -> None:
    """Raise :class:`HardwareError` at the first contradiction, with its path as in the file
    format.
    """
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
    """The names of the tiers."""
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
    """The names of the channels."""
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
    """Raise :class:`HardwareError` for what contradicts itself in a processor; ``where`` is its
    path in the file.
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
    """(Path, message) of what is wrong with what a channel gives to small transfers and to pageable
    ones.
    """
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
