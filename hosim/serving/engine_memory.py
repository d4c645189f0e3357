"""How many blocks of the cache a device has room for."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from hosim.data.runtime import Runtime, RuntimeFigure
from hosim.data.seen_peaks import DRIVER_BYTES, beside_allocator, seen
from hosim.errors import InfeasibleError
from hosim.serving.modelled_iterations import ModelledIterations
from hosim.serving.scheduler import EngineLimits
from hosim.units import human_percent, human_size

MEMORY_SHARE = 0.9
"""How much of the device's memory an engine takes, as vLLM's ``gpu_memory_utilization``."""


def cache_blocks(
    model: ModelledIterations,
    limits: EngineLimits,
    memory_share: float = MEMORY_SHARE,
    weight_bytes: int | None = None,
) -> int:
    """What a share of the device's memory leaves beside the weights and one full iteration, in
    blocks.

    ``weight_bytes`` is what the device holds of the weights, if not all.

    Raises :class:`InfeasibleError` if that is none.
    """
    if model.hardware.software is not None:
        return cache_room(model, limits, memory_share, weight_bytes).blocks
    device = model.hardware.device
    working = model.working_bytes(limits.token_budget)
    block = _block_bytes(model, limits)
    weights = model.weight_bytes if weight_bytes is None else weight_bytes
    blocks = (int(device.capacity_bytes * memory_share) - weights - working) // block
    if blocks < 1:
        raise InfeasibleError(
            f"weights of {human_size(weights)} leave no room for a cache in "
            f"{human_percent(memory_share, 0)} of "
            f"{human_size(device.capacity_bytes)} ({model.hardware.name}): an iteration takes "
            f"{human_size(working)} beside them, "
            f"and a block {human_size(block)}"
            + (": a policy can keep some in a tier below (weights)" if weight_bytes is None else "")
        )
    return blocks


@dataclass(frozen=True, slots=True)
class CacheRoom:
    """How many blocks a device has room for under a runtime, and the ends of their 90 %
    interval.
    """

    blocks: int
    low_blocks: int
    high_blocks: int

    @property
    def line(self) -> str:
        """In one line."""
        return (
            f"room for {self.blocks:,} blocks of the cache, from {self.low_blocks:,} to "
            f"{self.high_blocks:,} in 9 of 10 cases"
        )


def cache_room(
    model: ModelledIterations,
    limits: EngineLimits,
    memory_share: float,
    weight_bytes: int | None = None,
) -> CacheRoom:
    """What a runtime's engine leaves for a cache of what CUDA has of the device.

    Beside weights it takes what :func:`beside_weights` lists. Raises :class:`InfeasibleError` if
    that leaves no block.
    """
    machine, block = model.hardware, _block_bytes(model, limits)
    assert machine.software is not None
    weights = model.weight_bytes if weight_bytes is None else weight_bytes
    beside = seen(beside_weights(model, limits, machine.software))
    usable = int((machine.device.capacity_bytes - DRIVER_BYTES) * memory_share) - weights
    blocks = (usable - beside.bytes) // block
    if blocks < 1:
        raise InfeasibleError(
            f"weights of {human_size(weights)} leave no room for a cache in "
            f"{human_percent(memory_share, 0)} of what CUDA has of "
            f"{human_size(machine.device.capacity_bytes)} ({machine.name}): "
            f"{machine.software.name} takes {beside} beside them, "
            f"and a block {human_size(block)}"
        )
    return CacheRoom(
        blocks, max(0, (usable - beside.high_bytes) // block), (usable - beside.low_bytes) // block
    )


def beside_weights(
    model: ModelledIterations, limits: EngineLimits, runtime: Runtime
) -> tuple[RuntimeFigure, ...]:
    """What an engine of a runtime holds beside weights and cache: its largest iteration, what
    chooses tokens, and what no allocator has.
    """
    working, logits = (
        model.working_bytes(limits.token_budget),
        limits.max_sequences * model.logit_bytes,
    )
    iteration, sampling = runtime.iteration, runtime.sampling
    return (
        RuntimeFigure(working * iteration.value, iteration.spread),
        RuntimeFigure(logits * sampling.value, sampling.spread),
        *beside_allocator(runtime, model.devices),
    )


def weight_room(
    model: ModelledIterations, limits: EngineLimits, memory_share: float, blocks: int
) -> int:
    """What a share of the device's memory leaves for weights beside a cache and one full iteration,
    in bytes.

    Raises :class:`InfeasibleError` if that is none.
    """
    cache, working = blocks * _block_bytes(model, limits), model.working_bytes(limits.token_budget)
    capacity, software = model.hardware.device.capacity_bytes, model.hardware.software
    if software is not None:
        capacity, working = (
            capacity - DRIVER_BYTES,
            seen(beside_weights(model, limits, software)).bytes,
        )
    room = int(capacity * memory_share) - cache - working
    if room < 1:
        raise InfeasibleError(
            f"a cache of {human_size(cache)} leaves no room for weights in "
            f"{human_percent(memory_share, 0)} of {human_size(capacity)} "
            f"({model.hardware.name}): an iteration takes {human_size(working)} beside it"
        )
    return room


def _block_bytes(model: ModelledIterations, limits: EngineLimits) -> int:
    """A block of the device, with the summaries by which attention chooses it."""
    return ceil(limits.block_tokens * (model.cache_bytes_per_token + model.summary_bytes_per_token))
