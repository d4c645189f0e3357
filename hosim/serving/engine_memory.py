"""How many blocks of the cache a device has room for."""

from __future__ import annotations

from math import ceil

from hosim.errors import InfeasibleError
from hosim.serving.modelled_iterations import ModelledIterations
from hosim.serving.scheduler import EngineLimits
from hosim.units import human_percent, human_size

MEMORY_SHARE = 0.9
"""How much of the device's memory an engine takes, as vLLM's ``gpu_memory_utilization``."""


def cache_blocks(
    model: ModelledIterations, limits: EngineLimits, memory_share: float = MEMORY_SHARE, weight_bytes: int | None = None
) -> int:
    """What a share of the device's memory leaves beside the weights and one full iteration, in blocks.

    ``weight_bytes`` is what the device holds of the weights, if not all.

    Raises :class:`InfeasibleError` if that is none.
    """
    device = model.hardware.device
    working = model.working_bytes(limits.token_budget)
    block = _block_bytes(model, limits)
    weights = model.weight_bytes if weight_bytes is None else weight_bytes
    blocks = (int(device.capacity_bytes * memory_share) - weights - working) // block
    if blocks < 1:
        raise InfeasibleError(
            f"weights of {human_size(weights)} leave no room for a cache in {human_percent(memory_share, 0)} of "
            f"{human_size(device.capacity_bytes)} ({model.hardware.name}): an iteration takes {human_size(working)} beside them, "
            f"and a block {human_size(block)}" + (": a policy can keep some in a tier below (weights)" if weight_bytes is None else "")
        )
    return blocks


def weight_room(model: ModelledIterations, limits: EngineLimits, memory_share: float, blocks: int) -> int:
    """What a share of the device's memory leaves for weights beside a cache and one full iteration, in bytes.

    Raises :class:`InfeasibleError` if that is none.
    """
    cache, working = blocks * _block_bytes(model, limits), model.working_bytes(limits.token_budget)
    capacity = model.hardware.device.capacity_bytes
    room = int(capacity * memory_share) - cache - working
    if room < 1:
        raise InfeasibleError(
            f"a cache of {human_size(cache)} leaves no room for weights in {human_percent(memory_share, 0)} of {human_size(capacity)} "
            f"({model.hardware.name}): an iteration takes {human_size(working)} beside it"
        )
    return room


def _block_bytes(model: ModelledIterations, limits: EngineLimits) -> int:
    """A block of the device, with the summaries by which attention chooses it."""
    return ceil(limits.block_tokens * (model.cache_bytes_per_token + model.summary_bytes_per_token))
