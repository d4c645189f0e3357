"""Engines that prefill and are unlike those that decode: another machine, or other numbers of
devices.
"""

from __future__ import annotations

from typing import Any

from hosim.api import Machine, machine
from hosim.limits import within
from hosim.serving import ModelledIterations


def unlike_prefill(
    decodes: ModelledIterations, hardware: Machine | None, tensor: int | None
) -> ModelledIterations:
    """Iterations of engines that prefill, as options for them say, beside those of engines that
    decode. Raises :class:`InputError`.
    """
    parameters = dict(decodes.model)
    if tensor is not None:
        devices = within("devices", tensor, source="prefill_tensor")
        parameters["tensor"] = devices
        if parameters.get("expert", 1) != 1:
            parameters["expert"] = devices
    found = ModelledIterations(
        parameters, decodes.hardware if hardware is None else machine(hardware), decodes.overhead_ns
    )
    found.check_processor()
    return found


def about_prefill(
    first: ModelledIterations, instances: int, blocks: int, block_tokens: int
) -> dict[str, Any]:
    """What a result says of them."""
    return {
        "hardware": first.hardware.name,
        "instances": instances,
        "devices": first.devices,
        "blocks": blocks,
        "block_bytes": block_tokens * first.cache_bytes_per_token,
    }
