"""Describe what became of weights that a policy planned, as paragraphs and a table of channels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType

from hosim.plain_text import counted
from hosim.report.printing import paragraph
from hosim.serving.report.kv_tables import channel_table
from hosim.units import human_size, human_time


def weights(found: Mapping[str, Any], with_channels: bool) -> list[RenderableType]:
    """The ``weights`` of a ``hosim.serving/1``, with its channels where they are not shown
    already.
    """
    held = ", ".join(f"{human_size(size)} in {tier}" for tier, size in found["peak_bytes"].items())
    if not found["iteration_bytes"]:
        return [
            paragraph(f"weights, {found['policy']}: {held} of each device; all stay in the device")
        ]
    moved = (
        f"{found['moved_layers']} of {counted(found['layers'], 'layer')} come up in each iteration"
    )
    size = (
        f"{human_size(found['iteration_bytes'])} an iteration, {human_size(found['bytes'])} in all"
    )
    stalls = (
        f"iterations waited {human_time(found['stall_ns'])} in all for weights, "
        f"{human_time(found['stall_ns'] // found['iterations'])} each"
    )
    parts: list[RenderableType] = [
        paragraph(
            f"weights, {found['policy']}: at most {held} of each device; {moved} ({size}); {stalls}"
        )
    ]
    return [channel_table(found["channels"]), *parts] if with_channels else parts
