"""The time of one token's multi-head latent attention (MLA): all heads of a request read the same
compressed keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hosim.analysis.costmodel.kernels.op_families.processor import (
    Array,
    Processor,
    Shapes,
    together,
)

_HEADS = 64
"""Heads that one block takes at most."""
_LATENT = 576
"""Elements of a token's compressed key: 512 of the latent vector and 64 with positions
(DeepSeek-V2).
"""
_ELEMENT_BYTES = 2


@dataclass(frozen=True, slots=True)
class LatentConstants:
    """The constants fitted for generation with latent attention."""

    fixed_cycles: float
    """Launch and end: of attention itself and of what prepares its queries."""
    block_cycles: float
    """Begin and end of one block."""
    key_cycles: float
    """Each key of a block."""
    bandwidth_share: float
    """How much of the memory's bandwidth the compressed keys reach."""
    query_traffic: float
    """How many times queries and results pass through memory."""
    least_keys: float
    """Keys of a part of a cache, at least."""
    waves: float
    """Into how many blocks for each multiprocessor the caches are split at most; 0: each is one
    block's, as before the Hopper kernels.
    """
    merge_cycles: float
    """Adding up the parts of a split cache."""
    crowding: float
    """How long a block takes of a multiprocessor, as a share of its own time, when many run."""


def latent_us(constants: LatentConstants, processor: Processor, shapes: Shapes) -> Array:
    """Microseconds of one token's attention of each of ``batch`` requests over ``keys`` tokens, its
    own included.
    """
    batch, heads, keys = shapes["batch"], shapes["heads"], shapes["keys"]
    units = batch * np.ceil(heads / _HEADS)
    parts = np.maximum(
        np.minimum(
            keys / constants.least_keys, constants.waves * processor.multiprocessors / units
        ),
        1,
    )
    block = (constants.block_cycles + constants.key_cycles * keys / parts) * processor.cycle_us
    busy = together(block, block * constants.crowding * units * parts / processor.multiprocessors)
    moved = batch * _LATENT * _ELEMENT_BYTES * (keys + constants.query_traffic * 2 * heads)
    memory = moved / (constants.bandwidth_share * processor.bytes_per_us)
    merge = np.where(parts > 1, constants.merge_cycles * processor.cycle_us, 0)
    return constants.fixed_cycles * processor.cycle_us + together(busy, memory) + merge
