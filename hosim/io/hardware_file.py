"""The hardware format: ``hosim.hardware/1`` and :class:`~hosim.hardware.Hardware`.

Every size, rate and time is text with its unit, in YAML and in JSON. The blocks under ``compute``, ``runtime``, ``tiers``, ``channels`` and
``fabrics`` may carry a ``source`` (where their figures are from), which is for readers of the file; only the top one is kept.
"""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field, TypeAdapter, with_config
from typing_extensions import TypedDict

from hosim.errors import HardwareError, InputError
from hosim.hardware import Channel, Compute, Fabric, Hardware, Tier
from hosim.io import reading
from hosim.io.validators import STRICT, ComputeRate, Format, Name, Rate, Size, Time
from hosim.units import exact_compute, exact_rate, exact_size, exact_time

Positive = Annotated[int, Field(ge=1, le=2**31 - 1)]
Fraction = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]


@with_config(STRICT)
class ComputeModel(TypedDict):
    """Peak by dtype (dense), the fraction of it that kernels reach, and the fixed time of an op.

    ``efficiency_of`` has the fraction that ops of some kinds reach, by kind and dtype; left out, it is ``efficiency``.
    """

    peak: NotRequired[dict[Name, ComputeRate]]
    efficiency: NotRequired[Fraction]
    efficiency_of: NotRequired[dict[Name, dict[Name, Fraction]]]
    launch: NotRequired[Time]
    source: NotRequired[str]


@with_config(STRICT)
class RuntimeModel(TypedDict):
    """CPU time that a runtime policy spends per op."""

    inspect: NotRequired[Time]
    source: NotRequired[str]


@with_config(STRICT)
class PinModel(TypedDict):
    """Time to allocate a tensor's pinned bytes; ``pool``: what was once pinned stays so and serves again at no time."""

    time: Time
    pool: NotRequired[bool]
    source: NotRequired[str]


@with_config(STRICT)
class TierModel(TypedDict):
    """A memory. Left out, ``scope`` is ``device`` for the device tier and ``host`` for the others.

    ``pageable`` are the kinds of tensors that lie here in pageable memory (default: none, all are pinned), ``pin`` what pinning takes.
    """

    capacity: Size
    bandwidth: Rate
    scope: NotRequired[Literal["device", "host", "global"]]
    pageable: NotRequired[list[Name]]
    pin: NotRequired[PinModel]
    source: NotRequired[str]


@with_config(STRICT)
class PointModel(TypedDict):
    """The bandwidth that a transfer of one size reaches."""

    size: Size
    bandwidth: Rate


# "from" is a keyword: no class body can declare it. "curve": what small transfers reach; "pageable": what those from or to pageable
# memory do; "beside": what the channel carries while bytes flow on another one (see hosim.hardware.Channel)
ChannelModel = TypedDict(
    "ChannelModel",
    {
        "from": Name,
        "to": Name,
        "bandwidth": Rate,
        "latency": NotRequired[Time],
        "engines": NotRequired[Positive],
        "curve": NotRequired[list[PointModel]],
        "pageable": NotRequired[Rate],
        "beside": NotRequired[dict[Name, Rate]],
        "source": NotRequired[str],
    },
)
with_config(STRICT)(ChannelModel)


@with_config(STRICT)
class FabricModel(TypedDict):
    """Bandwidth that channels share; a half-duplex link is one over the channels of both directions.

    ``scope`` says whose channels: those of one device, of all devices of a host (the default), or of all there are.
    """

    bandwidth: Rate
    channels: NotRequired[list[Name]]
    scope: NotRequired[Literal["device", "host", "global"]]
    source: NotRequired[str]


@with_config(STRICT)
class HardwareModel(TypedDict):
    """A hardware profile. ``chunk``: bytes in which a tensor goes over several channels one after the other (default 64 MiB)."""

    format: Literal["hosim.hardware/1"]
    name: Name
    source: NotRequired[str]
    devices: NotRequired[Positive]
    devices_per_host: NotRequired[Positive]
    device_tier: NotRequired[Name]
    chunk: NotRequired[Size]
    compute: NotRequired[ComputeModel]
    runtime: NotRequired[RuntimeModel]
    tiers: dict[Name, TierModel]
    channels: NotRequired[dict[Name, ChannelModel]]
    fabrics: NotRequired[dict[Name, FabricModel]]


_CHUNK = 64 * 2**20

FORMAT = Format("hardware", lambda: TypeAdapter(HardwareModel))


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
    >>> from hosim.io import find_hardware
    >>> [tier.name for tier in load_hardware(find_hardware("toy")).tiers]
    ['hbm', 'ddr']
    """
    return hardware_from_dict(reading.read(path, "hardware"), source=os.fspath(path))


def save_hardware(hw: Hardware, path: str | os.PathLike[str]) -> None:
    """Write a profile as YAML or JSON by the name, every quantity exact and with its unit."""
    reading.write(path, hardware_to_dict(hw))


def hardware_from_dict(data: object, source: str | None = None) -> Hardware:
    """The profile as :func:`hardware_to_dict` gives it; ``source`` names it in errors. Raises :class:`InputError`."""
    checked = FORMAT.check(data, source)
    device_tier = checked.get("device_tier", "hbm")
    compute = checked.get("compute", {})
    channels: dict[str, Any] = checked.get("channels", {})
    try:
        return Hardware(
            name=checked["name"],
            tiers=tuple(_tier(name, tier, "device" if name == device_tier else "host") for name, tier in checked["tiers"].items()),
            channels=tuple(_channel(name, channel) for name, channel in channels.items()),
            compute=Compute(
                compute.get("peak", {}), compute.get("efficiency", 1.0), compute.get("launch", 0), compute.get("efficiency_of", {})
            ),
            device_tier=device_tier,
            fabrics=tuple(
                Fabric(name, f["bandwidth"], tuple(f.get("channels", ())), f.get("scope", "host"))
                for name, f in checked.get("fabrics", {}).items()
            ),
            inspect_ns=checked.get("runtime", {}).get("inspect", 0),
            devices=checked.get("devices", 1),
            devices_per_host=checked.get("devices_per_host"),
            chunk_bytes=checked.get("chunk", _CHUNK),
            source=checked.get("source", ""),
        )
    except HardwareError as error:
        raise InputError(error.message, source=source, where=error.where) from None


def _tier(name: str, data: TierModel, scope: str) -> Tier:
    pin = data.get("pin")
    return Tier(
        name,
        data["capacity"],
        data["bandwidth"],
        data.get("scope", scope),
        pageable=tuple(data.get("pageable", ())),
        pin_ns=pin["time"] if pin else 0,
        pin_pool=bool(pin and pin.get("pool")),
    )


def _channel(name: str, data: Any) -> Channel:
    return Channel(
        name,
        data["from"],
        data["to"],
        data["bandwidth"],
        data.get("latency", 0),
        data.get("engines", 1),
        curve=tuple((point["size"], point["bandwidth"]) for point in data.get("curve", ())),
        pageable_bytes_per_s=data.get("pageable"),
        beside=tuple(data.get("beside", {}).items()),
    )


def hardware_to_dict(hw: Hardware) -> dict[str, Any]:
    """The profile as its file says it, every quantity as text with its unit."""
    data: dict[str, Any] = {"format": reading.format_of("hardware"), "name": hw.name}
    if hw.source:
        data["source"] = hw.source
    compute = hw.compute
    data["devices"] = hw.devices
    if hw.devices_per_host is not None:
        data["devices_per_host"] = hw.devices_per_host
    data |= {
        "device_tier": hw.device_tier,
        **({"chunk": exact_size(hw.chunk_bytes)} if hw.chunk_bytes != _CHUNK else {}),
        "compute": {
            "peak": {dtype: exact_compute(peak) for dtype, peak in compute.peak_flops.items()},
            "efficiency": float(compute.efficiency),
            "launch": exact_time(compute.launch_ns),
            **({"efficiency_of": {kind: dict(of) for kind, of in compute.efficiency_of.items()}} if compute.efficiency_of else {}),
        },
        "runtime": {"inspect": exact_time(hw.inspect_ns)},
        "tiers": {
            tier.name: {
                "capacity": exact_size(tier.capacity_bytes),
                "bandwidth": exact_rate(tier.bandwidth_bytes_per_s),
                "scope": tier.scope,
            }
            | ({"pageable": list(tier.pageable)} if tier.pageable else {})
            | ({"pin": {"time": exact_time(tier.pin_ns), "pool": tier.pin_pool}} if tier.pin_ns or tier.pin_pool else {})
            for tier in hw.tiers
        },
        "channels": {
            channel.name: {
                "from": channel.source,
                "to": channel.destination,
                "bandwidth": exact_rate(channel.bandwidth_bytes_per_s),
                "latency": exact_time(channel.latency_ns),
                "engines": channel.engines,
            }
            | _uneven(channel)
            for channel in hw.channels
        },
    }
    if hw.fabrics:
        data["fabrics"] = {
            fabric.name: {
                "bandwidth": exact_rate(fabric.bandwidth_bytes_per_s),
                "channels": list(fabric.channels),
                "scope": fabric.scope,
            }
            for fabric in hw.fabrics
        }
    return data


def _uneven(channel: Channel) -> dict[str, Any]:
    """What a channel gives to some transfers and not to others, where it does."""
    data: dict[str, Any] = {}
    if channel.curve:
        data["curve"] = [{"size": exact_size(size), "bandwidth": exact_rate(bandwidth)} for size, bandwidth in channel.curve]
    if channel.pageable_bytes_per_s is not None:
        data["pageable"] = exact_rate(channel.pageable_bytes_per_s)
    if channel.beside:
        data["beside"] = {other: exact_rate(bandwidth) for other, bandwidth in channel.beside}
    return data
