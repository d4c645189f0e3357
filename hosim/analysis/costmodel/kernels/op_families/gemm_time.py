"""The time of a matrix product, and of the grouped products of a mixture of experts, by its shape:
tiles of the result, waves of tiles over the multiprocessors, and the bytes of the operands.

A library cuts the result [m, n] into tiles and gives each to a multiprocessor; as many tiles as
there are multiprocessors are one wave, and a last wave that is not full takes as long as a full
one. A large tile reads less for each FLOP, and so comes nearer to the peak; a product with few
tiles is split along k, and the parts are added up. Of all such ways the fastest counts.

A tile has as many rows as the matrix unit takes, however few the product has. Where weights are
unpacked from fewer bits, a product of one or two rows is therefore done without matrix units, by
threads that multiply as they unpack: as long as that keeps up with the memory, it takes what its
weights take from there, on every processor.
"""

from dataclasses import dataclass

import numpy as np

from hosim.analysis.costmodel.kernels.op_families.expert_loads import TILES
from hosim.analysis.costmodel.kernels.op_families.processor import (
    Array,
    Processor,
    Shapes,
    together,
)

_TILES = (
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
    """The share of the memory's bandwidth that the operands reach."""
    largest_share: float
    """The share of the peak that an endlessly large tile would reach."""
    half_tile: float
    """Where the product of a tile's sides divided by their sum is this, it reaches half of that: it
    reads too much for each FLOP.
    """
    tile_cycles: float
    """Begin and end of one tile."""
    sum_cycles: float
    """Adding up the parts of a split product."""
    cache_ratio: float
    """The bandwidth of the tiles' reads from the cache, as a multiple of the memory's."""


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
    for rows, columns in _TILES:
        tiles = np.ceil(m / rows) * np.ceil(n / columns)
        share = processor.tile_share(constants, (rows, columns), _TILES[-1])
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


# -- mixtures of experts ---------------------------------------------------------------------------
# Grouped products of rows that are sorted by expert, and the sorting.
#
# Only experts that have rows are read; each expert's rows are rounded up to tiles. Both products
# of an expert (gate and up as one, down) are one kernel each; all tokens pass through memory once
# more when they are sorted and when their experts' results are added up.


_COLUMNS = (64, 128, 256)
"""Columns of the result that one block of threads computes."""


@dataclass(frozen=True, slots=True)
class MoeConstants:
    """The constants fitted for mixtures of experts in one dtype."""

    fixed_cycles: float
    """Launch and end of all kernels: sorting, products, adding up."""
    bandwidth_share: float
    """The share of the memory's bandwidth that the experts' weights reach."""
    largest_share: float
    """The share of the peak that an endlessly large tile would reach."""
    half_tile: float
    """As in :class:`hosim.analysis.costmodel.kernels.op_families.gemm_time.GemmConstants`."""
    tile_cycles: float
    """Begin and end of one tile."""
    row_traffic: float
    """The number of times that the bytes of a row in the products pass through memory, at its full
    bandwidth.
    """
    token_traffic: float
    """The number of times that a token of the whole batch passes through memory, read and written.
    """


def moe_us(constants: MoeConstants, processor: Processor, shapes: Shapes) -> Array:
    """Microseconds of one rank's experts for ``tokens`` tokens of the whole batch.

    ``rows``, ``touched`` and ``padded_16`` to ``padded_128`` are what
    :class:`hosim.analysis.costmodel.kernels.op_families.expert_loads.ExpertLoads` has;
    ``width`` is that of the rank's part of each expert.
    """
    hidden, width, rows = shapes["hidden"], shapes["width"], shapes["rows"]
    weights = (
        shapes["touched"]
        * 3
        * hidden
        * width
        * shapes["weight_bytes"]
        / (constants.bandwidth_share * processor.bytes_per_us)
    )
    passed = (
        rows * (4 * hidden + 5 * width) * 2 * constants.row_traffic
        + shapes["tokens"] * hidden * 4 * constants.token_traffic
    )
    best = np.min(
        [
            _tiled_us(
                constants,
                processor,
                shapes[f"padded_{high}"] / high,
                (high, wide),
                2 * width,
                hidden,
            )
            + _tiled_us(
                constants, processor, shapes[f"padded_{high}"] / high, (high, wide), hidden, width
            )
            for high in TILES
            for wide in _COLUMNS
        ],
        axis=0,
    )
    return (
        constants.fixed_cycles * processor.cycle_us
        + passed / processor.bytes_per_us
        + together(best, weights)
    )


def expert_product_us(constants: MoeConstants, processor: Processor, shapes: Shapes) -> Array:
    """Microseconds of one of the grouped products of a mixture by itself: rows [.., depth] by each
    expert's [depth, columns].
    """
    rows, columns, depth = shapes["rows"], shapes["columns"], shapes["depth"]
    weights = (
        shapes["touched"]
        * columns
        * depth
        * shapes["weight_bytes"]
        / (constants.bandwidth_share * processor.bytes_per_us)
    )
    passed = rows * (columns + depth) * 2 * constants.row_traffic / processor.bytes_per_us
    best = np.min(
        [
            _tiled_us(
                constants, processor, shapes[f"padded_{high}"] / high, (high, wide), columns, depth
            )
            for high in TILES
            for wide in _COLUMNS
        ],
        axis=0,
    )
    return passed + together(best, weights)


def _tiled_us(
    constants: MoeConstants,
    processor: Processor,
    high: Array,
    tile: tuple[int, int],
    columns: Array,
    depth: Array,
) -> Array:
    """A grouped product whose rows fill ``high`` tiles, of this many rows and columns."""
    rows, wide = tile
    share = processor.tile_share(constants, tile, (TILES[-1], _COLUMNS[-1]))
    each = (
        2 * rows * wide * depth / (processor.flops_per_us * share)
        + constants.tile_cycles * processor.cycle_us
    )
    return np.maximum(high * np.ceil(columns / wide) / processor.multiprocessors, 1) * each
