"""Why more bandwidth of a channel may change nothing: a fabric that it is part of limits it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hosim.errors import HosimError
from hosim.hardware import Hardware
from hosim.study.axes import Settings
from hosim.study.scenario import Question
from hosim.units import human_rate


def capped(question: Question, points: Sequence[Settings]) -> list[str]:
    """For each channel whose varied bandwidth exceeds that of one of its fabrics at some point, a line that says what to vary instead."""
    found: dict[tuple[str, str], int] = {}
    for point in points:
        hardware = {field: value for field, value in point.items() if "channels." in field or "fabrics." in field}
        varied = {field.split(".")[-2] for field in hardware if field.endswith(".bandwidth")}
        try:
            machine = question.with_settings(hardware).hardware if varied else question.hardware
        except HosimError:  # that point's row will say so
            continue
        found |= {(channel, fabric): carries for channel, fabric, carries in _above(machine) if channel in varied}
    return [
        f"channels.{channel}.bandwidth exceeds that of fabrics.{fabric}, {human_rate(carries)}: "
        f"channels.{channel}.bandwidth+fabrics.{fabric}.bandwidth=... varies both"
        for (channel, fabric), carries in found.items()
    ]


def _above(hardware: Hardware) -> Iterator[tuple[str, str, int]]:
    """(channel, fabric, the fabric's bandwidth) for each channel that is faster than a fabric it is part of."""
    speed = {channel.name: channel.bandwidth_bytes_per_s for channel in hardware.channels}
    for fabric in hardware.fabrics:
        for channel in fabric.channels:
            if speed[channel] > fabric.bandwidth_bytes_per_s:
                yield channel, fabric.name, fabric.bandwidth_bytes_per_s
