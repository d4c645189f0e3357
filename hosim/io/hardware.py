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
from hosim.io import files
from hosim.io.models import STRICT, ComputeRate, Format, Name, Rate, Size, Time
from hosim.units import exact_compute, exact_rate, exact_size, exact_time

Positive = Annotated[int, Field(ge=1, le=2**31 - 1)]
Fraction = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]


@with_config(STRICT)
class ComputeModel(TypedDict):
    """Peak by dtype (dense), the fraction of it that kernels reach, and the fixed time of an op."""

    peak: NotRequired[dict[Name, ComputeRate]]
    efficiency: NotRequired[Fraction]
    launch: NotRequired[Time]
    source: NotRequired[str]


@with_config(STRICT)
class RuntimeModel(TypedDict):
    """CPU time that a runtime policy spends per op."""

    inspect: NotRequired[Time]
    source: NotRequired[str]


@with_config(STRICT)
class TierModel(TypedDict):
    """A memory. Left out, ``scope`` is ``device`` for the device tier and ``host`` for the others."""

    capacity: Size
    bandwidth: Rate
    scope: NotRequired[Literal["device", "host", "global"]]
    source: NotRequired[str]


# "from" is a keyword: no class body can declare it
ChannelModel = TypedDict(
    "ChannelModel",
    {
        "from": Name,
        "to": Name,
        "bandwidth": Rate,
        "latency": NotRequired[Time],
        "engines": NotRequired[Positive],
        "source": NotRequired[str],
    },
)
with_config(STRICT)(ChannelModel)


@with_config(STRICT)
class FabricModel(TypedDict):
    """Bandwidth that channels share."""

    bandwidth: Rate
    channels: NotRequired[list[Name]]
    source: NotRequired[str]


@with_config(STRICT)
class HardwareModel(TypedDict):
    """A hardware profile."""

    format: Literal["hosim.hardware/1"]
    name: Name
    source: NotRequired[str]
    devices: NotRequired[Positive]
    device_tier: NotRequired[Name]
    compute: NotRequired[ComputeModel]
    runtime: NotRequired[RuntimeModel]
    tiers: dict[Name, TierModel]
    channels: NotRequired[dict[Name, ChannelModel]]
    fabrics: NotRequired[dict[Name, FabricModel]]


FORMAT = Format("hardware", lambda: TypeAdapter(HardwareModel))


def load_hardware(path: str | os.PathLike[str]) -> Hardware:
    """The profile in a hardware file (YAML or JSON). Raises :class:`InputError` naming file and path inside it."""
    return hardware_from_dict(files.read(path, "hardware"), source=os.fspath(path))


def save_hardware(hw: Hardware, path: str | os.PathLike[str]) -> None:
    """Write a profile as YAML or JSON by the name, every quantity exact and with its unit."""
    files.write(path, hardware_to_dict(hw))


def hardware_from_dict(data: object, source: str | None = None) -> Hardware:
    """The profile as :func:`hardware_to_dict` gives it; ``source`` names it in errors. Raises :class:`InputError`."""
    checked = FORMAT.check(data, source)
    device_tier = checked.get("device_tier", "hbm")
    compute = checked.get("compute", {})
    channels: dict[str, Any] = checked.get("channels", {})
    try:
        return Hardware(
            name=checked["name"],
            tiers=tuple(
                Tier(name, tier["capacity"], tier["bandwidth"], tier.get("scope", "device" if name == device_tier else "host"))
                for name, tier in checked["tiers"].items()
            ),
            channels=tuple(
                Channel(name, c["from"], c["to"], c["bandwidth"], c.get("latency", 0), c.get("engines", 1)) for name, c in channels.items()
            ),
            compute=Compute(compute.get("peak", {}), compute.get("efficiency", 1.0), compute.get("launch", 0)),
            device_tier=device_tier,
            fabrics=tuple(Fabric(name, f["bandwidth"], tuple(f.get("channels", ()))) for name, f in checked.get("fabrics", {}).items()),
            inspect_ns=checked.get("runtime", {}).get("inspect", 0),
            devices=checked.get("devices", 1),
            source=checked.get("source", ""),
        )
    except HardwareError as error:
        raise InputError(error.message, source=source, where=error.where) from None


def hardware_to_dict(hw: Hardware) -> dict[str, Any]:
    """The profile as its file says it, every quantity as text with its unit."""
    data: dict[str, Any] = {"format": files.format_of("hardware"), "name": hw.name}
    if hw.source:
        data["source"] = hw.source
    compute = hw.compute
    data |= {
        "devices": hw.devices,
        "device_tier": hw.device_tier,
        "compute": {
            "peak": {dtype: exact_compute(peak) for dtype, peak in compute.peak_flops.items()},
            "efficiency": float(compute.efficiency),
            "launch": exact_time(compute.launch_ns),
        },
        "runtime": {"inspect": exact_time(hw.inspect_ns)},
        "tiers": {
            tier.name: {
                "capacity": exact_size(tier.capacity_bytes),
                "bandwidth": exact_rate(tier.bandwidth_bytes_per_s),
                "scope": tier.scope,
            }
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
            for channel in hw.channels
        },
    }
    if hw.fabrics:
        data["fabrics"] = {
            fabric.name: {"bandwidth": exact_rate(fabric.bandwidth_bytes_per_s), "channels": list(fabric.channels)} for fabric in hw.fabrics
        }
    return data
