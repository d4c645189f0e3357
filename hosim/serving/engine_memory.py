"""The number of blocks of the cache that a device has room for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np

from hosim.analysis.costmodel.spreads import normal_draws
from hosim.data.draws import FEW_DRAWS, interval
from hosim.data.runtime import ONE, RUNTIME, Runtime, RuntimeFigure, as_data
from hosim.data.seen_peaks import DRIVER_BYTES, seen
from hosim.errors import InfeasibleError, InputError
from hosim.hardware import Hardware
from hosim.io.importers import builder_parameters
from hosim.serving.modelled_iterations import ModelledIterations
from hosim.serving.scheduler import EngineLimits, Iteration
from hosim.units import human_percent, human_size
from hosim.validate.logged import ServedStep

MEMORY_SHARE = 0.9
"""The share of the device's memory that an engine takes, as vLLM's ``gpu_memory_utilization``."""

LARGE_BYTES = 70 * 2**30
"""From here on vLLM takes larger iterations unless told, but on A100 (``vllm/engine/arg_utils.py``,
``get_batch_defaults``)."""

_LOGGED_BLOCK_TOKENS = 16


def cache_blocks(
    model: ModelledIterations,
    limits: EngineLimits,
    memory_share: float = MEMORY_SHARE,
    weight_bytes: int | None = None,
) -> int:
    """Return the number of blocks that a share of the device's memory leaves beside the weights and
    one full iteration.

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
    """The number of blocks that a device has room for under a runtime, the ends of its 90 %
    interval, and the number in each of few draws of what the runtime takes.
    """

    blocks: int
    low_blocks: int
    high_blocks: int
    drawn_blocks: tuple[int, ...] = ()

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
    """Return the room that a runtime's engine leaves for a cache out of what CUDA has of the
    device.

    Beside weights it takes what :func:`beside_weights` lists. Raises :class:`InfeasibleError` if
    that leaves no block.
    """
    machine, block = model.hardware, _block_bytes(model, limits)
    assert machine.software is not None
    weights = model.weight_bytes if weight_bytes is None else weight_bytes
    weights += padding_bytes(model, machine.software)
    parts = beside_weights(model, limits, machine.software)
    beside = seen(parts)
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
    drawn = [
        part.value * np.exp(part.spread * normal_draws(f"runtime {machine.software.name}, {k}"))
        for k, part in enumerate(parts)
    ]
    rooms = [max(0, int(usable - taken) // block) for taken in np.sum(drawn, axis=0)]
    low, high = interval(rooms) or (blocks, blocks)
    return CacheRoom(blocks, low, high, tuple(rooms[:FEW_DRAWS]))


def beside_weights(
    model: ModelledIterations, limits: EngineLimits, runtime: Runtime
) -> tuple[RuntimeFigure, ...]:
    """Return the bytes that an engine of a runtime holds beside weights and cache: its largest
    iteration, what chooses tokens, what no allocator has, and what collectives leave.
    """
    working = model.working_bytes(limits.token_budget)
    logits = limits.max_sequences * model.logit_bytes * model.devices  # gathered on each device
    iteration, sampling = runtime.iteration, runtime.sampling
    outside = (runtime.counted,) if runtime.counted.value else (runtime.context, runtime.graphs)
    return (
        RuntimeFigure(working * iteration.value, iteration.spread),
        RuntimeFigure(logits * sampling.value, sampling.spread),
        *outside,
        *([runtime.collectives, _recorded(model, limits, runtime)] if model.devices > 1 else []),
    )


def _recorded(model: ModelledIterations, limits: EngineLimits, runtime: Runtime) -> RuntimeFigure:
    """The bytes of collectives of its largest iteration that an engine's allocator still holds."""
    share = runtime.recorded
    size = model.collective_bytes(limits.token_budget) if share.value else 0
    return RuntimeFigure(size * share.value, share.spread)


def padding_bytes(model: ModelledIterations, runtime: Runtime) -> int:
    """Return the bytes that a runtime's layout of experts in mxfp4 takes beyond their weights.

    vLLM's Marlin layout of gpt-oss-120b rounds 2,880 x 2,880 up to 3,072 x 2,944: 65.97 GiB are
    loaded (vllm-project/vllm#23278), 5.2 more than the weights have.

    Raises :class:`InputError` for a runtime that does not say how it lays them out.
    """
    experts = model.mxfp4_experts
    if experts is None:
        return 0
    if not runtime.pads:
        raise InputError(
            f"{runtime.name} does not say how it lays out experts in mxfp4 (pads), and with it "
            "what is left for a cache; name a runtime that does, such as vllm, or the blocks",
            source="runtime",
        )
    size, hidden, intermediate = experts
    rows, columns = (
        -(-of // runtime.pads[name]) * runtime.pads[name]
        for name, of in (("hidden", hidden), ("intermediate", intermediate))
    )
    return size * rows * columns // (hidden * intermediate) - size


def engine_limits(
    model: ModelledIterations,
    token_budget: int | None,
    max_sequences: int | None,
    block_tokens: int,
    by_priority: bool,
) -> EngineLimits:
    """The limits of an engine: those that a user gives, or what its runtime takes on the device."""
    runtime, device = model.hardware.software, model.hardware.device
    large = device.capacity_bytes >= LARGE_BYTES and "a100" not in model.hardware.name
    known = runtime if runtime is not None and large else None
    tokens = round(known.tokens.value) if known is not None else 0
    sequences = round(known.sequences.value) if known is not None else 0
    default = EngineLimits()
    return EngineLimits(
        (tokens or default.token_budget) if token_budget is None else token_budget,
        (sequences or default.max_sequences) if max_sequences is None else max_sequences,
        block_tokens,
        by_priority,
    )


def weight_room(
    model: ModelledIterations, limits: EngineLimits, memory_share: float, blocks: int
) -> int:
    """Return the bytes that a share of the device's memory leaves for weights beside a cache and
    one full iteration.

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


def logged_iterations(
    model: str | Mapping[str, Any],
    hardware: Hardware,
    base: Runtime,
    limits: Mapping[str, float],
    blocks: float | None,
    steps: Sequence[ServedStep],
) -> tuple[float | None, list[float]]:
    """Two figures of a server that has so many ``blocks`` of 16 tokens: the memory of its largest
    iteration over that of hosim's, if it holds of all else what its runtime says; and the seconds
    that hosim gives each of its steps with kernels at their own speed.

    ``limits`` are ``token_budget``, ``max_sequences`` and ``memory_share``, if they are known. The
    first figure is below 0 where the blocks do not fit beside the rest, and ``None`` where
    ``blocks`` is.
    """
    alone = {**builder_parameters(model), RUNTIME: as_data(replace(base, speed=ONE))}
    counts = [
        int(limits[name]) if name in limits else None for name in ("token_budget", "max_sequences")
    ]
    modelled = ModelledIterations(alone, hardware)
    limit = engine_limits(modelled, counts[0], counts[1], _LOGGED_BLOCK_TOKENS, False)
    if steps:
        modelled.check_processor()
    seconds = [_step_s(modelled, step, limit.token_budget) for step in steps]
    return None if blocks is None else _largest(modelled, base, limits, limit, blocks), seconds


def _step_s(modelled: ModelledIterations, step: ServedStep, budget: int) -> float:
    """Seconds of a server's step. Prompts come whole, or in chunks of the budget, so that some
    iterations have one and others none.
    """
    sequences, keys = max(1, round(step.sequences)), round(step.sequences * step.tokens)
    decoding = Iteration((), sequences, keys, ())
    alone = modelled(decoding)
    chunk = min(round(step.prompt), budget)
    if not chunk:
        return alone / 1e9
    beside = modelled(replace(decoding, prefills=((chunk, 0),)))
    return (alone + (beside - alone) * step.prompts * step.prompt / chunk) / 1e9


def _largest(
    modelled: ModelledIterations,
    base: Runtime,
    limits: Mapping[str, float],
    limit: EngineLimits,
    blocks: float,
) -> float:
    """The memory of an engine's largest iteration over that of hosim's."""
    device = modelled.hardware.device
    usable = (device.capacity_bytes - DRIVER_BYTES) * limits.get("memory_share", MEMORY_SHARE)
    held = usable - modelled.weight_bytes - padding_bytes(modelled, base)
    held -= blocks * _LOGGED_BLOCK_TOKENS * modelled.cache_bytes_per_token
    others = sum(part.value for part in beside_weights(modelled, limit, base)[1:])
    return (held - others) / max(1, modelled.working_bytes(limit.token_budget))


def _block_bytes(model: ModelledIterations, limits: EngineLimits) -> int:
    """A block of the device, with the summaries by which attention chooses it."""
    return ceil(limits.block_tokens * (model.cache_bytes_per_token + model.summary_bytes_per_token))
