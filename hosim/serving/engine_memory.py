"""How many blocks of the cache a device has room for."""

from __future__ import annotations

from hosim.errors import InfeasibleError
from hosim.serving.modelled_iterations import ModelledIterations
from hosim.serving.scheduler import EngineLimits
from hosim.units import human_percent, human_size

MEMORY_SHARE = 0.9
"""How much of the device's memory an engine takes, as vLLM's ``gpu_memory_utilization``."""


def cache_blocks(model: ModelledIterations, limits: EngineLimits, memory_share: float = MEMORY_SHARE) -> int:
    """What a share of the device's memory leaves beside the weights and one full iteration, in blocks.

    Raises :class:`InfeasibleError` if that is none.
    """
    device = model.hardware.device
    working = model.working_bytes(limits.token_budget)
    block = limits.block_tokens * model.cache_bytes_per_token
    blocks = (int(device.capacity_bytes * memory_share) - model.weight_bytes - working) // block
    if blocks < 1:
        raise InfeasibleError(
            f"weights of {human_size(model.weight_bytes)} leave no room for a cache in {human_percent(memory_share, 0)} of "
            f"{human_size(device.capacity_bytes)} ({model.hardware.name}): an iteration takes {human_size(working)} beside them, "
            f"and a block {human_size(block)}"
        )
    return blocks
