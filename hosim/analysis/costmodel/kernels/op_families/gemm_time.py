"""The time of a matrix product by its shape: tiles of the result, waves of tiles over the
multiprocessors, and the bytes of the operands.

A library cuts the result [m, n] into tiles and gives each to a multiprocessor; as many tiles as
there are multiprocessors are one wave, and a last wave that is not full takes as long as a full
one. A large tile reads less for each FLOP, and so comes nearer to the peak; a product with few
tiles is split along k, and the parts are added up. Of all such ways the fastest counts.

A tile has as many rows as the matrix unit takes, however few the product has. Where weights are
unpacked from fewer bits, a product of one or two rows is therefore done without matrix units, by
threads that multiply as they unpack: as long as that keeps up with the memory, it takes what its
weights take from there, on every processor.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hosim.analysis.costmodel.kernels.op_families.processor import Array, Processor, Shapes

TILES = (
    (16, 64),
    (16, 128),
    (32, 64),
    (64, 32),
    (32, 128),
    (64, 64),
    (64, 128),
    (128, 64),
    (64, 256),
    (256, 64),
    (128, 128),
    (128, 256),
    (256, 128),
)
"""Rows and columns of the result that one block of threads computes."""

SPLITS = (1, 2, 4, 8, 16)
"""Into how many parts k is split."""

_STEP = 32
"""Elements of k that a tile takes at a time."""


_UNPACKED = 128
"""FLOP of a multiprocessor in a cycle without matrix units, of weights that it unpacks.

Half of what its lanes multiply and add in fp16 or fp32; the rest of its instructions unpack. In the
tables of the A100 and the H100 (aiconfigurator 0.4.0) int4 weights reach 0.58 and 0.54 of the
memory's bandwidth at four rows, and this says 0.6 and 0.57.
"""


@dataclass(frozen=True, slots=True)
class GemmConstants:
    """The constants fitted for products in one dtype."""

    fixed_cycles: float
    """Launch and end of the kernel."""
    bandwidth_share: float
    """How much of the memory's bandwidth the operands reach."""
    largest_share: float
    """How much of the peak an endlessly large tile would reach."""
    half_tile: float
    """Where the product of a tile's sides divided by their sum is this, it reaches half of that: it
    reads too much for each FLOP.
    """
    tile_cycles: float
    """Begin and end of one tile."""
    sum_cycles: float
    """Adding up the parts of a split product."""
    cache_ratio: float
    """How many times the memory's bandwidth the tiles' reads from the cache reach."""


def gemm_us(constants: GemmConstants, processor: Processor, shapes: Shapes) -> Array:
    """Microseconds of products [m, k] x [k, n]; ``weight_bytes``, ``input_bytes`` and
    ``output_bytes`` are those of one element.
    """
    m, n, k = shapes["m"], shapes["n"], shapes["k"]
    moved = (
        m * k * shapes["input_bytes"]
        + k * n * shapes["weight_bytes"]
        + m * n * shapes["output_bytes"]
    )
    memory = moved / (processor.memory_share(constants.bandwidth_share) * processor.bytes_per_us)
    cache_rate = constants.cache_ratio * processor.bytes_per_us
    best = np.full(len(m), np.inf)
    for rows, columns in TILES:
        tiles = np.ceil(m / rows) * np.ceil(n / columns)
        share = processor.tile_share(constants, (rows, columns), TILES[-1])
        for parts in SPLITS:
            depth = np.ceil(k / parts / _STEP) * _STEP
            tile = (
                2 * rows * columns * depth / (processor.flops_per_us * share)
                + constants.tile_cycles * processor.cycle_us
            )
            waves = np.ceil(tiles * parts / processor.multiprocessors)
            reads = (
                tiles
                * parts
                * (rows * shapes["input_bytes"] + columns * shapes["weight_bytes"])
                * depth
            )
            busy = np.maximum(waves * tile, reads / cache_rate)
            tiled = np.sqrt(np.sqrt(busy**4 + memory**4))
            if parts > 1:
                tiled = (
                    tiled
                    + 8 * m * n * parts / cache_rate
                    + constants.sum_cycles * processor.cycle_us
                )
            best = np.minimum(best, tiled)
    unpacked = 2 * m * n * k / (_UNPACKED * processor.multiprocessors / processor.cycle_us)
    without_matrix_units = np.where(
        shapes["weight_bytes"] < shapes["input_bytes"],
        np.sqrt(np.sqrt(unpacked**4 + memory**4)),
        np.inf,
    )
    best = np.minimum(best, without_matrix_units)
    time: Array = constants.fixed_cycles * processor.cycle_us + best
    return time
