"""What a server's log says of the memory that its engine takes beside weights and cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hosim.data.runtime import RUNTIME, Runtime, as_data
from hosim.data.seen_peaks import DRIVER_BYTES
from hosim.hardware import Hardware
from hosim.importers import builder_parameters
from hosim.serving.engine_memory import (
    MEMORY_SHARE,
    beside_weights,
    engine_limits,
    padding_bytes,
)
from hosim.serving.modelled_iterations import ModelledIterations

_BLOCK_TOKENS = 16


def logged_iteration(
    model: str | Mapping[str, Any],
    hardware: Hardware,
    base: Runtime,
    limits: Mapping[str, float],
    blocks: float,
) -> float:
    """What an engine's largest iteration takes over hosim's, of a server that has so many blocks of
    16 tokens; the rest of what it holds is as its runtime says.

    ``limits`` are ``token_budget``, ``max_sequences`` and ``memory_share``, if they are known.
    Below 0 where there are more blocks than fit beside the rest.
    """
    parameters = {**builder_parameters(model), RUNTIME: as_data(base)}
    modelled = ModelledIterations(parameters, hardware)
    counts = [
        int(limits[name]) if name in limits else None for name in ("token_budget", "max_sequences")
    ]
    limit = engine_limits(modelled, counts[0], counts[1], _BLOCK_TOKENS, False)
    device = modelled.hardware.device
    usable = (device.capacity_bytes - DRIVER_BYTES) * limits.get("memory_share", MEMORY_SHARE)
    held = usable - modelled.weight_bytes - padding_bytes(modelled, base)
    held -= blocks * _BLOCK_TOKENS * modelled.cache_bytes_per_token
    others = sum(part.value for part in beside_weights(modelled, limit, base)[1:])
    return (held - others) / max(1, modelled.working_bytes(limit.token_budget))
