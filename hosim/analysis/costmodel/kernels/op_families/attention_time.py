"""The time of attention kernels: of a context, whose tokens all ask at once, and of generation,
where each request asks for one token.

A block of threads takes some queries of one head and goes over their keys. In a causal context the
first queries have few keys and the last ones all. In generation there is one query for each head;
the blocks go over the cache, and one request's cache is split among several blocks where there are
too few to fill the machine. In multi-head latent attention (MLA) all heads of a request read the
same compressed keys.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

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
    """The share of the memory's bandwidth that the compressed keys reach."""
    query_traffic: float
    """The number of times that queries and results pass through memory."""
    least_keys: float
    """Keys of a part of a cache, at least."""
    waves: float
    """Into how many blocks for each multiprocessor the caches are split at most; 0: each is one
    block's, as before the Hopper kernels.
    """
    merge_cycles: float
    """Adding up the parts of a split cache."""
    crowding: float
    """The time of a multiprocessor that a block takes when many run, as a share of its own time."""


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


_QUERIES = 128
"""Queries of one block of a context."""
_KEYS = 64
"""Keys that a block takes at a time."""


@dataclass(frozen=True, slots=True)
class ContextConstants:
    """The constants fitted for attention over a context."""

    fixed_cycles: float
    """Launch and end: of the kernel that rotates positions and writes the cache, and of attention
    itself.
    """
    block_cycles: float
    """Begin and end of one block of queries."""
    peak_share: float
    """The share of the peak that the products reach."""
    move_share: float
    """The share of the memory's bandwidth that queries, keys, values and results reach, each
    counted once.
    """
    longest_share: float
    """The time of the block with the most keys, as a share of the time of its keys at the pace of
    all: alone, it is quicker.
    """


def context_us(constants: ContextConstants, processor: Processor, shapes: Shapes) -> Array:
    """Microseconds of causal attention of ``batch`` requests over ``queries`` tokens each.

    ``window`` limits the keys of a query; ``before`` are tokens already in the cache; ``width`` and
    ``value_width`` are a head's.
    """
    queries, before = shapes["queries"], shapes["before"]
    blocks = np.ceil(queries / _QUERIES)
    step = np.minimum(_QUERIES, np.ceil(queries / _KEYS) * _KEYS)
    window = np.maximum(shapes["window"], 1)
    last = np.minimum(before + blocks * step, window + step)
    # the mean over blocks of min(before + i step, window + step): an arithmetic series up to where
    # the window is full
    growing = np.clip(np.floor((window + step - before) / step), 0, blocks)
    mean = (
        growing * before + step * growing * (growing + 1) / 2 + (blocks - growing) * (window + step)
    ) / blocks
    return _of_blocks(constants, processor, shapes, mean, last, queries + before)


def full_us(constants: ContextConstants, processor: Processor, shapes: Shapes) -> Array:
    """Microseconds of attention without a mask, in which each of ``queries`` sees all ``keys``: the
    kernel of :func:`context_us`, whose blocks all go over all keys.
    """
    keys = np.ceil(shapes["keys"] / _KEYS) * _KEYS
    return _of_blocks(constants, processor, shapes, keys, keys, shapes["keys"])


def full_gradient_us(constants: ContextConstants, processor: Processor, shapes: Shapes) -> Array:
    """Microseconds of the gradient of :func:`full_us`, as :func:`context_gradient_us`."""
    return GRADIENT * full_us(constants, processor, shapes)


def _of_blocks(
    constants: ContextConstants,
    processor: Processor,
    shapes: Shapes,
    mean: Array,
    last: Array,
    keys: Array,
) -> Array:
    """Microseconds of blocks of queries that see ``mean`` keys, and the one with the most ``last``;
    there are ``keys`` of them.
    """
    heads, queries = shapes["heads"], shapes["queries"]
    blocks = np.ceil(queries / _QUERIES)
    rows = np.minimum(_QUERIES, np.ceil(queries / 16) * 16)
    width = (shapes["width"] + shapes["value_width"]) / 2
    reached = processor.flops_per_us * processor.share_of_peak(constants.peak_share)
    key_us = 4 * rows * width / reached
    begin = constants.block_cycles * processor.cycle_us
    busy = np.maximum(
        (begin + key_us * mean)
        * np.maximum(shapes["batch"] * heads * blocks / processor.multiprocessors, 1),
        begin + key_us * last * constants.longest_share,
    )
    moved = shapes["batch"] * 2 * width * (2 * queries * heads + 2 * keys * shapes["kv_heads"])
    fixed = constants.fixed_cycles * processor.cycle_us
    time: Array = fixed + busy + moved / (constants.move_share * processor.bytes_per_us)
    return time


GRADIENT = 2.5
"""The time of the gradient in times of the forward pass: five products instead of two
(FlashAttention-2), at their pace.
"""


def context_gradient_us(constants: ContextConstants, processor: Processor, shapes: Shapes) -> Array:
    """Microseconds of the gradient of :func:`context_us`, which nobody's table has."""
    return GRADIENT * context_us(constants, processor, shapes)


@dataclass(frozen=True, slots=True)
class FlashShares:
    """The fractions of the 16-bit peak that the matrix products of a library's attention reach,
    forward and in the gradient.
    """

    forward: float
    gradient: float


FLASH: Mapping[str, tuple[FlashShares, FlashShares]] = {
    # Dao, arXiv 2307.08691, section 1: 30 to 50 % and 25 to 35 % on A100, of which these are the
    # middle. On H100 [assumption]: as much of the 62.9 % of the peak that instructions made before
    # Hopper reach there (arXiv 2402.13499)
    "flash1": (FlashShares(0.40, 0.30), FlashShares(0.40 * 0.629, 0.30 * 0.629)),
    # the same, section 4: up to 73 % and 63 % on A100, and 335 TFLOP/s of both together on H100;
    # 35 % going forward there (arXiv 2407.08608)
    "flash2": (FlashShares(0.73, 0.63), FlashShares(0.35, 0.335)),
}
"""Libraries of attention that training uses, by the name of a builder: before Hopper, and from it
on. Hopper's own instructions, which the kernels of the tables use, came with FlashAttention-3.
"""

_HOPPER = 2896.0
"""FLOP of one multiprocessor in a cycle between those of A100 (2,048) and H100 (4,096): their
geometric mean.
"""


def flash_us(
    library: str, *, gradient: bool
) -> Callable[[ContextConstants, Processor, Shapes], Array]:
    """Return a function that gives the microseconds of :func:`context_us`, or of its gradient, by
    the kernels of one of :data:`FLASH`.
    """

    def us(constants: ContextConstants, processor: Processor, shapes: Shapes) -> Array:
        shares = FLASH[library][processor.flops_per_us * processor.cycle_us > _HOPPER]
        times = context_us(
            replace(constants, peak_share=shares.gradient if gradient else shares.forward),
            processor,
            {**shapes, "value_width": shapes["width"]},
        )
        return GRADIENT * times if gradient else times

    return us


_GROUP = 32
"""The most heads that share keys and that one block takes; beyond, each head reads the cache by
itself.
"""
_LEAST_KEYS = 128
"""Keys of a part of a cache, at least, where blocks take groups of heads."""
_WAVES = 8
"""Into so many waves of blocks a cache is split at most, where blocks take groups of heads."""
_FILLED = 4
"""Blocks take groups of heads only if there are enough of them for a multiprocessor in so many."""
_PART = 256
"""Keys of a part of a cache, where each head goes over it by itself."""


@dataclass(frozen=True, slots=True)
class GenerationConstants:
    """The constants fitted for generation: where one block takes all heads that share keys, and
    where each head goes over the cache by itself.

    The limits of both, as in TensorRT-LLM, are the constants of this module.
    """

    group_fixed_cycles: float
    """Groups: launch and end."""
    group_block_cycles: float
    """Groups: one block with no more keys than :data:`_LEAST_KEYS`."""
    group_head_cycles: float
    """Groups: what each head adds to that."""
    group_key_cycles: float
    """Groups: each further key of a block."""
    group_bytes: float
    """Groups: how much of the cache's bytes the memory moves, at its full bandwidth."""
    group_merge_cycles: float
    """Groups: adding up the parts of a split cache."""
    single_first_cycles: float
    """Single heads: one block that has the machine for itself, with hardly any keys."""
    single_block_cycles: float
    """Single heads: what a block takes of a multiprocessor when many run."""
    single_few_keys_cycles: float
    """Single heads: what up to 64 keys add to a block."""
    single_key_cycles: float
    """Single heads: each key of a block beyond :data:`_PART`."""
    single_bandwidth_share: float
    """Single heads: how much of the memory's bandwidth the cache reaches."""
    single_parts: float
    """Single heads: into how many blocks for each multiprocessor the caches are split at most."""
    single_merge_cycles: float
    """Single heads: adding up the parts of a split cache."""
    single_shared_read: float
    """Single heads: how much of what heads read beyond the first that shares their keys counts as
    bytes of the memory, not of the cache.
    """


def generation_us(constants: GenerationConstants, processor: Processor, shapes: Shapes) -> Array:
    """Microseconds of one token's attention of each of ``batch`` requests over ``keys`` tokens, its
    own included.
    """
    group, groups = shapes["heads"] / shapes["kv_heads"], shapes["batch"] * shapes["kv_heads"]
    blocks = groups * np.maximum(np.floor(shapes["keys"] / _LEAST_KEYS), 1)
    return np.where(
        (group > 1) & (group <= _GROUP) & (blocks * _FILLED >= processor.multiprocessors),
        _groups_us(constants, processor, shapes),
        _singles_us(constants, processor, shapes),
    )


def _groups_us(constants: GenerationConstants, processor: Processor, shapes: Shapes) -> Array:
    groups, keys = shapes["batch"] * shapes["kv_heads"], shapes["keys"]
    parts = np.maximum(
        np.floor(np.minimum(keys / _LEAST_KEYS, _WAVES * processor.multiprocessors / groups)), 1
    )
    further = constants.group_key_cycles * np.maximum(keys / parts - _LEAST_KEYS, 0)
    cycles = (
        constants.group_block_cycles
        + constants.group_head_cycles * shapes["heads"] / shapes["kv_heads"]
        + further
    )
    busy = cycles * processor.cycle_us * np.maximum(1, groups * parts / processor.multiprocessors)
    cache = groups * keys * 2 * shapes["width"] * shapes["kv_bytes"]
    return (
        constants.group_fixed_cycles * processor.cycle_us
        + together(busy, cache * constants.group_bytes / processor.bytes_per_us)
        + np.where(parts > 1, constants.group_merge_cycles * processor.cycle_us, 0)
    )


def _singles_us(constants: GenerationConstants, processor: Processor, shapes: Shapes) -> Array:
    units, keys, kv_heads = shapes["batch"] * shapes["heads"], shapes["keys"], shapes["kv_heads"]
    parts = np.maximum(
        np.minimum(keys / _PART, constants.single_parts * processor.multiprocessors / units), 1
    )
    few = constants.single_few_keys_cycles * np.minimum(keys, 64) / 64
    waves = units * parts / processor.multiprocessors
    first = (
        constants.single_first_cycles
        + few
        + constants.single_key_cycles * np.maximum(keys / parts - _PART, 0)
    )
    alone = first * np.where(waves > 1, 1.5, 1)
    busy = together(alone, (constants.single_block_cycles + few / 8) * waves) * processor.cycle_us
    read = kv_heads + (shapes["heads"] - kv_heads) * constants.single_shared_read
    cache = shapes["batch"] * keys * read * 2 * shapes["width"] * shapes["kv_bytes"]
    memory = cache / (constants.single_bandwidth_share * processor.bytes_per_us)
    return together(busy, memory) + np.where(
        parts > 1, constants.single_merge_cycles * processor.cycle_us, 0
    )
