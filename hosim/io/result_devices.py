"""The parts of the result format that several devices, and jitter, add."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, NotRequired

from pydantic import Field, with_config
from typing_extensions import TypedDict

from hosim.io.validators import STRICT, Count
from hosim.jitter import Jitter
from hosim.result import DeviceFigures, DeviceLine, Spread

Sigma = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@with_config(STRICT)
class SpreadModel(TypedDict):
    """The least, the lower median and the most of a figure over several devices."""

    min: Count
    median: Count
    max: Count


@with_config(STRICT)
class DeviceModel(TypedDict):
    """One of several devices; without a makespan, it did not fit."""

    makespan_ns: NotRequired[Count | None]
    stall_ns: NotRequired[Count]
    peak_bytes: NotRequired[dict[str, Count]]


@with_config(STRICT)
class DevicesModel(TypedDict):
    """Several devices that ran together; ``each`` is there where they are few."""

    count: Count
    feasible: Count
    makespan_ns: NotRequired[SpreadModel | None]
    stall_ns: NotRequired[SpreadModel | None]
    peak_bytes: NotRequired[dict[str, SpreadModel]]
    each: NotRequired[list[DeviceModel]]


@with_config(STRICT)
class JitterModel(TypedDict):
    """By how much, relative to their nominal times, ops and transfers vary; see :class:`hosim.jitter.Jitter`."""

    seed: Count
    op_sigma: NotRequired[Sigma]
    transfer_sigma: NotRequired[Sigma]


def devices_to_dict(figures: DeviceFigures) -> dict[str, Any]:
    """The figures of several devices as a result says them; ``each`` only if there are some."""
    data = asdict(figures)
    each = data.pop("each")
    return data | {"each": list(each)} if each else data


def devices_from(data: DevicesModel) -> DeviceFigures:
    """The inverse of :func:`devices_to_dict`."""
    return DeviceFigures(
        count=data["count"],
        feasible=data["feasible"],
        makespan_ns=_spread(data.get("makespan_ns")),
        stall_ns=_spread(data.get("stall_ns")),
        peak_bytes={name: Spread(**spread) for name, spread in data.get("peak_bytes", {}).items()},
        each=tuple(
            DeviceLine(line.get("makespan_ns"), line.get("stall_ns", 0), line.get("peak_bytes", {})) for line in data.get("each", ())
        ),
    )


def _spread(data: SpreadModel | None) -> Spread | None:
    return None if data is None else Spread(**data)


def jitter_from(data: JitterModel) -> Jitter:
    """The jitter that a result says it was replayed under."""
    return Jitter(data["seed"], data.get("op_sigma", 0.0), data.get("transfer_sigma", 0.0))
