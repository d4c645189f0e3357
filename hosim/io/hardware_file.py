"""The hardware format: ``hosim.hardware/1`` and :class:`~hosim.hardware.Hardware`.

Every size, rate and time is text with its unit, in YAML and in JSON. The blocks under ``compute``,
``runtime``, ``tiers``, ``channels`` and ``fabrics`` may have a ``source`` of their figures for
readers of the file; only the top-level one is kept.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from operator import attrgetter, itemgetter
from typing import Annotated, Any, NotRequired

from pydantic import Field

from hosim.base import files as reading
from hosim.base.files import check_names
from hosim.errors import InputError, errors_of
from hosim.hardware import (
    SCOPES,
    Channel,
    Compute,
    Fabric,
    Hardware,
    MeasuredTimes,
    ProcessorFigures,
    Tier,
)
from hosim.io.key_tables import (
    FLAG,
    NAME,
    TEXT,
    Key,
    KeyTable,
    Kind,
    by_name,
    format_key,
    literal,
    mapping,
    note,
    several,
)
from hosim.io.validators import (
    ComputeRate,
    Format,
    Frequency,
    Name,
    Rate,
    Size,
    Time,
    mapping_type,
)
from hosim.units import exact_compute, exact_frequency, exact_rate, exact_size, exact_time

Positive = Annotated[int, Field(ge=1, le=2**31 - 1)]
Fraction = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Constant = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]


SIZE, RATE, TIME, COMPUTE_RATE = (
    Kind(Size, exact_size),
    Kind(Rate, exact_rate),
    Kind(Time, exact_time),
    Kind(ComputeRate, exact_compute),
)
SCOPE, POSITIVE, FRACTION = literal(*SCOPES), Kind(Positive), Kind(Fraction, float)
PRICE = Kind(Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)], float)
SPREAD = Kind(Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)], float)
COUNT = Kind(Annotated[int, Field(ge=0, le=2**31 - 1)])

_PROCESSOR = KeyTable(
    "ProcessorModel",
    "What the vendor says of the processor beyond its peaks; with it, ops that say which kernel "
    "they are take what that takes.",
    ProcessorFigures,
    Key("multiprocessors", POSITIVE),
    Key("clock", Kind(Frequency, exact_frequency), "clock_hz"),
    Key("cache", SIZE, "cache_bytes"),
    Key("links", RATE, "link_bytes_per_s"),
    Key("mesh", Kind(Annotated[int, Field(ge=2, le=2**20)]), brief=True),
    Key("sustained", Kind(Frequency, exact_frequency), "sustained_hz", brief=True),
    Key("best", mapping(COMPUTE_RATE, Name), "best_flops", brief=True),
    note("source"),
)


def _optional(table: KeyTable[Any]) -> Kind:
    return Kind(
        table.kind.type,
        lambda value: None if value is None else table.write(value),
        table.kind.read,
    )


_ROOFLINE = (
    Key("peak", mapping(COMPUTE_RATE, Name), "peak_flops", default={}),
    Key("efficiency", FRACTION),
    Key("beside_copies", FRACTION, brief=True),
    Key("launch", TIME, "launch_ns"),
    Key("efficiency_of", mapping(mapping(Kind(Fraction), Name), Name), brief=True),
)
"""The figures of any tier's processor: its peaks, the fractions of them that kernels reach, and the
fixed time of an op.
"""


def _files(compute: Compute) -> tuple[str, ...]:
    return tuple(dict.fromkeys(table.file for table in compute.tables))


_COMPUTE = KeyTable(
    "ComputeModel",
    """The peak by dtype (dense), the fraction of it that kernels reach, and the fixed time of an op.

``efficiency_of`` has the fraction for some kinds of ops, by kind and dtype; all other ops have ``efficiency``.
    """,
    Compute,
    *_ROOFLINE,
    Key("processor", _optional(_PROCESSOR), brief=True),
    Key("kernels", mapping(mapping(mapping(Kind(Constant, float), Name), Name), Name), brief=True),
    Key(
        "tables", Kind(list[str], list, lambda _: ()), get=_files, brief=True
    ),  # read by hardware_from_dict, which knows the folder
    note("source"),
)


def _inspect_ns(inspect: int = 0) -> int:
    return inspect


_RUNTIME = KeyTable(
    "RuntimeModel",
    "The CPU time that a runtime policy spends per op.",
    _inspect_ns,
    Key("inspect", TIME, get=int),
    note("source"),
)


_PIN: Any = mapping_type(
    "PinModel",
    "The time to allocate a tensor's pinned bytes; with ``pool``, bytes once pinned are reused at\n"
    "no cost.",
    {"time": Time, "pool": NotRequired[bool], "source": NotRequired[str]},
)


def _pin(tier: Tier) -> dict[str, Any] | None:
    return (
        {"time": exact_time(tier.pin_ns), "pool": tier.pin_pool}
        if tier.pin_ns or tier.pin_pool
        else None
    )


def _tier(
    name: str,
    capacity: int,
    bandwidth: int,
    scope: str = "",
    pageable: tuple[str, ...] = (),
    pin: Mapping[str, Any] | None = None,
    compute: Compute | None = None,
    dma: bool = True,
) -> Tier:
    return Tier(
        name,
        capacity,
        bandwidth,
        scope,
        pageable,
        pin["time"] if pin else 0,
        bool(pin and pin.get("pool")),
        compute,
        dma,
    )


_TIER_COMPUTE = KeyTable(
    "TierComputeModel",
    "The processor of a tier: its peak by dtype, what its kernels reach of that and of the tier's "
    "bandwidth, and the fixed time of an op.",
    Compute,
    *_ROOFLINE,
    note("source"),
)

_TIER = KeyTable(
    "TierModel",
    """A memory. The default ``scope`` is ``device`` for the device tier and ``host`` for the others.

``pageable`` lists the kinds of tensors in pageable memory (by default all are pinned); ``pin`` is the cost of pinning. ``compute`` is the
processor of the memory, if ops can run on it. Without ``dma`` the device's processor copies itself, and its ops stand still meanwhile.
    """,
    _tier,
    Key("capacity", SIZE, get=attrgetter("capacity_bytes")),
    Key("bandwidth", RATE, get=attrgetter("bandwidth_bytes_per_s")),
    Key("scope", SCOPE),
    Key("pageable", several(NAME), brief=True),
    Key("pin", Kind(_PIN), get=_pin, brief=True),
    Key("compute", _optional(_TIER_COMPUTE), brief=True),
    Key("dma", FLAG, brief=True),
    note("source"),
)

_POINT = KeyTable(
    "PointModel",
    "The bandwidth that a transfer of one size reaches.",
    lambda size, bandwidth: (size, bandwidth),
    Key("size", SIZE, get=itemgetter(0)),
    Key("bandwidth", RATE, get=itemgetter(1)),
)

_BESIDE = Kind(
    dict[Name, Rate],
    lambda pairs: {channel: exact_rate(bandwidth) for channel, bandwidth in pairs},
    lambda found: tuple(found.items()),
)

_CHANNEL = KeyTable(
    "ChannelModel",
    """A one-way path between two tiers.

    ``curve``: what small transfers reach; ``pageable``: what those from or to pageable memory do; ``beside``: what the channel carries
    while bytes flow on another one; ``spread``: how sure its bandwidth is; ``queue``: which one it shares with
    other channels that name it.
    """,
    Channel,
    Key("from", NAME, "source"),
    Key("to", NAME, "destination"),
    Key("bandwidth", RATE, "bandwidth_bytes_per_s"),
    Key("latency", TIME, "latency_ns"),
    Key("engines", POSITIVE),
    Key("curve", several(_POINT.kind), brief=True),
    Key("pageable", RATE, "pageable_bytes_per_s", brief=True),
    Key("beside", _BESIDE, brief=True),
    Key("spread", SPREAD, brief=True),
    Key("queue", NAME, brief=True),
    note("source"),
)

_FABRIC = KeyTable(
    "FabricModel",
    """Bandwidth that channels share; a half-duplex link is a fabric over the channels of both directions.

``scope`` says whose channels share it: those of one device, of all devices of a host (the default), or of all devices. ``collectives`` says
how many times it carries the bytes that a device sends in a collective (default 0).
    """,
    Fabric,
    Key("bandwidth", RATE, "bandwidth_bytes_per_s"),
    Key("channels", several(NAME), default=()),
    Key("scope", SCOPE),
    Key("collectives", COUNT, brief=True),
    note("source"),
)


def _hardware(**read: Any) -> Hardware:
    device_tier = read.get("device_tier", "hbm")
    tiers = [
        replace(t, scope=t.scope or ("device" if t.name == device_tier else "host"))
        for t in read.pop("tiers")
    ]
    return Hardware(tiers=tuple(tiers), **read)


_HARDWARE = KeyTable(
    "HardwareModel",
    """A hardware profile. ``chunk`` is the size of the chunks in which a tensor moves over a route of several channels (default 64 MiB).

``price_per_hour`` is what one device costs, in any currency.
    """,
    Hardware,
    format_key("hardware"),
    Key("name", NAME),
    Key("source", TEXT, brief=True),
    Key("version", POSITIVE, brief=True),
    Key("price_per_hour", PRICE, brief=True),
    Key("devices", POSITIVE),
    Key("devices_per_host", POSITIVE, brief=True),
    Key("device_tier", NAME),
    Key("chunk", SIZE, "chunk_bytes", brief=True),
    Key("compute", _COMPUTE.kind, default={}),
    Key("runtime", _RUNTIME.kind, "inspect_ns"),
    Key("tiers", by_name(_TIER)),
    Key("channels", by_name(_CHANNEL), default={}),
    Key("fabrics", by_name(_FABRIC), brief=True),
    make=_hardware,
)

FORMAT = Format("hardware", lambda: _HARDWARE.adapter)


def load_hardware(path: str | os.PathLike[str]) -> Hardware:
    """Load a hardware profile from a file.

    Parameters
    ----------
    path
        A YAML or JSON file, compressed if its name ends in ``.gz``.

    Returns
    -------
    Hardware
        The profile, in bytes, nanoseconds, bytes per second and FLOP per second.

    Raises
    ------
    InputError
        If the file is not a hardware profile; names the file and the path inside it.

    References
    ----------
    ``docs/formats.md`` describes the file.

    Examples
    --------
    >>> from hosim.shipped import find_hardware
    >>> [tier.name for tier in load_hardware(find_hardware("toy")).tiers]
    ['hbm', 'ddr']
    """
    reading.check_no_name(
        reading.name_of_file(path), "hosim.load_hardware(hosim.find_hardware({!r}))"
    )
    return hardware_from_dict(reading.read(path, "hardware"), source=os.fspath(path))


def save_hardware(hw: Hardware, path: str | os.PathLike[str]) -> None:
    """Write a profile as YAML or JSON, by the file's name; every quantity is exact and has its
    unit.
    """
    reading.write(path, hardware_to_dict(hw))


def hardware_from_dict(data: object, source: str | None = None) -> Hardware:
    """Return the profile in a mapping like that of :func:`hardware_to_dict`; ``source`` names it in
    errors. Raises :class:`InputError`.
    """
    with errors_of(source):
        checked = FORMAT.check(data, source)
        hw = _HARDWARE.read(checked)
    compute = checked.get("compute", {})
    if compute.get("kernels"):
        from hosim.analysis.costmodel.kernels import check_constants

        with errors_of(source):
            check_constants(hw.compute.kernels)
    if compute.get("tables"):
        with errors_of(source):
            hw = replace(hw, compute=replace(hw.compute, tables=_tables(compute["tables"], source)))
    check_names(source, name=[hw], tiers=hw.tiers, channels=hw.channels, fabrics=hw.fabrics)
    return hw


def _tables(files: list[str], source: str | None) -> tuple[MeasuredTimes, ...]:
    """Return the measured times in files of tables; their names are relative to the folder of the
    profile. Each file must have one machine.
    """
    from hosim.io.importers.recordings import measured_times, read_kernel_tables

    folder = os.path.dirname(source) if source is not None else ""
    found: list[MeasuredTimes] = []
    for j, name in enumerate(files):
        path = os.path.join(folder, name)
        tables = read_kernel_tables(path)
        machines = sorted({table.machine for table in tables})
        if len(machines) > 1:
            listed = ", ".join(machines)
            raise InputError(
                f"{name!r} has times of several machines ({listed}); keep those of one with hosim "
                "import-kernels --machine",
                where=f"compute.tables[{j}]",
            )
        found += [measured_times(table, path) for table in tables]
    return tuple(found)


def hardware_to_dict(hw: Hardware) -> dict[str, Any]:
    """Return the profile as in its file, every quantity as text with its unit."""
    return _HARDWARE.write(hw)
