"""The time of a mixture of experts: grouped products of rows that are sorted by expert, and the
sorting.

Only experts that have rows are read; each expert's rows are rounded up to tiles. Both products of
an expert (gate and up as one, down) are one kernel each; all tokens pass through memory once more
when they are sorted and when their experts' results are added up.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hosim.analysis.costmodel.kernels.op_families.expert_loads import TILES
from hosim.analysis.costmodel.kernels.op_families.processor import (
    Array,
    Processor,
    Shapes,
    together,
)

_COLUMNS = (64, 128, 256)
"""Columns of the result that one block of threads computes."""


@dataclass(frozen=True, slots=True)
class MoeConstants:
    """The constants fitted for mixtures of experts in one dtype."""

    fixed_cycles: float
    """Launch and end of all kernels: sorting, products, adding up."""
    bandwidth_share: float
    """How much of the memory's bandwidth the experts' weights reach."""
    largest_share: float
    """How much of the peak an endlessly large tile would reach."""
    half_tile: float
    """As in :class:`hosim.analysis.costmodel.kernels.op_families.gemm_time.GemmConstants`."""
    tile_cycles: float
    """Begin and end of one tile."""
    row_traffic: float
    """How often what a row reads and writes in the products passes through memory, at its full
    bandwidth.
    """
    token_traffic: float
    """How often a token of the whole batch, read and written, passes through memory."""


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
