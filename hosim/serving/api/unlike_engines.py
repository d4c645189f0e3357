"""Engines that prefill and are unlike those that decode: another machine, or other numbers of
devices.
"""

from __future__ import annotations

from typing import Any

from hosim.api import Machine, machine, whole
from hosim.errors import InputError
from hosim.limits import within
from hosim.serving import ModelledIterations


def unlike_prefill(
    decodes: ModelledIterations,
    hardware: Machine | None,
    tensor: int | None,
    apart: bool,
    recorded: bool,
    tiers: bool,
) -> ModelledIterations:
    """Iterations of engines that prefill, as options for them say, beside those of engines that
    decode. Raises :class:`InputError`.

    ``apart``: there are engines of both kinds. ``recorded``: kernel times are recorded. ``tiers``:
    the cache goes on below the device.
    """
    source = "prefill_tensor" if hardware is None else "prefill_hardware"
    if not apart:
        raise InputError(
            "is about engines that only prefill: ask for prefill_instances and decode_instances",
            source=source,
        )
    if recorded:
        raise InputError(
            "recorded kernels are those of one machine: leave out iterations", source=source
        )
    if tiers:
        raise InputError(
            "tiers below unlike engines are not modelled: leave out kv, and preemption by swapping",
            source=source,
        )
    parameters = dict(decodes.model)
    if tensor is not None:
        devices = within("devices", whole(tensor, "prefill_tensor", 1), source="prefill_tensor")
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
    """Return what a result says of them."""
    return {
        "hardware": first.hardware.name,
        "instances": instances,
        "devices": first.devices,
        "blocks": blocks,
        "block_bytes": block_tokens * first.cache_bytes_per_token,
    }
