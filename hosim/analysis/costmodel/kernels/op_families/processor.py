"""The vendor's figures of a processor that the times of its kernels depend on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
"""One figure for each of many kernels."""

Shapes = dict[str, Array]
"""The sizes of many kernels, by name: as :mod:`hosim.analysis.costmodel.kernels.classes` lists them for each
class.
"""


class TileShares(Protocol):
    """The constants that say what a tile reaches of the peak: an endlessly large one, and where
    half of that is reached.
    """

    @property
    def largest_share(self) -> float:
        """The share of an endlessly large tile."""

    @property
    def half_tile(self) -> float:
        """The product of the sides over their sum at half of that."""


@dataclass(frozen=True, slots=True)
class Processor:
    """A vendor's figures.

    ``peak_flops`` is FLOP per second in the dtype that the kernels compute in, dense; ``bandwidth``
    and ``link_bandwidth`` are bytes per second of the device's memory, and of its links to other
    devices in one direction. ``multiprocessors`` are the units that run blocks of threads beside
    each other, at ``clock_hz``. ``fed`` is how many times the FLOP that one of them does in a cycle
    one does on the processor that the kernels' constants were fitted to, if that is more.
    """

    peak_flops: float
    bandwidth: float
    multiprocessors: int
    clock_hz: float
    link_bandwidth: float = 0.0
    fed: float = 1.0

    @property
    def cycle_us(self) -> float:
        """Microseconds of one cycle: fixed times of kernels are the same number of cycles on fast
        and slow processors.
        """
        return 1e6 / self.clock_hz

    @property
    def flops_per_us(self) -> float:
        """FLOP of one multiprocessor in a microsecond."""
        return self.peak_flops / self.multiprocessors / 1e6

    @property
    def bytes_per_us(self) -> float:
        """Bytes of the device's memory in a microsecond."""
        return self.bandwidth / 1e6

    def tile_share(self, of: TileShares, tile: tuple[int, int], largest: tuple[int, int]) -> float:
        """The share of the peak that a tile of so many rows and columns reaches: that at which it
        is fed on the processor of the constants, whose multiprocessors may do more in a cycle, but
        no more than the ``largest`` tile.
        """

        def fed(rows: int, columns: int) -> float:
            return of.largest_share / (1 + of.half_tile * (rows + columns) / (rows * columns))

        return max(fed(*tile), min(self.fed * fed(*tile), fed(*largest)))


def together(one: Array, other: Array) -> Array:
    """The time of two kinds of work that run beside each other: the longer one, and a little more
    where they are alike.
    """
    return np.sqrt(one * one + other * other)
