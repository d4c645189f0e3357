"""The vendor's figures of a processor that the times of its kernels depend on."""

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


_FULL = 0.86
"""The share of the memory's bandwidth that products reach where few bytes are for each
multiprocessor.

With it the model is nearest to the tables of an L40S (aiconfigurator 0.4.0) of 1 to 16 rows, in 16
bits and with packed weights: a multiprocessor there has a fifth of the bytes of an A100's in a
cycle, and reads 0.82 to 0.88 of the bandwidth where that reads 0.75 to 0.78.
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
    one does on the processor that the kernels' constants were fitted to, if that is more. ``asked``
    is how many times the bytes that one of those has of the memory in a cycle one has here, if that
    is less. ``withheld`` is how many times ``peak_flops`` its multiprocessors would do if they were
    sold with sums in 32 bits at full speed, as GeForce cards are not: all else in a kernel takes no
    longer there. ``mesh``: so many devices have one of the links to each other, without a switch;
    0: any two use all.
    """

    peak_flops: float
    bandwidth: float
    multiprocessors: int
    clock_hz: float
    link_bandwidth: float = 0.0
    fed: float = 1.0
    asked: float = 1.0
    withheld: float = 1.0
    mesh: int = 0

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

    def link_bytes_per_us(self, ranks: Array) -> Array:
        """Bytes that a device sends to the others of so many in a microsecond."""
        others = max(self.mesh - 1, 1)
        rate: Array = self.link_bandwidth / 1e6 * np.clip((ranks - 1) / others, 1 / others, 1)
        return rate

    @property
    def bytes_per_us(self) -> float:
        """Bytes of the device's memory in a microsecond."""
        return self.bandwidth / 1e6

    def memory_share(self, fitted: float) -> float:
        """The share of the memory's bandwidth that products reach where it is ``fitted`` on the
        processor of the constants.

        A byte takes its time on the bus, and what a multiprocessor waits as it has no more loads
        under way; the fewer bytes there are for each, the less that is.
        """
        if self.asked >= 1 or fitted >= _FULL:
            return fitted
        return 1 / (1 / _FULL + self.asked * (1 / fitted - 1 / _FULL))

    def tile_share(self, of: TileShares, tile: tuple[int, int], largest: tuple[int, int]) -> float:
        """The share of the peak that a tile of so many rows and columns reaches: that at which it
        is fed on the processor of the constants, whose multiprocessors may do more in a cycle, but
        no more than the ``largest`` tile; and where products are slowed, what is beside them takes
        less of its time.
        """

        def fed(rows: int, columns: int) -> float:
            return of.largest_share / (1 + of.half_tile * (rows + columns) / (rows * columns))

        share = max(fed(*tile), min(self.fed * fed(*tile), fed(*largest)))
        return self.share_of_peak(share)

    def share_of_peak(self, fitted: float) -> float:
        """The share of the peak that products reach in a kernel where it is ``fitted`` on the
        processor of the constants.
        """
        return 1 / (1 + (1 / fitted - 1) / self.withheld)


def together(one: Array, other: Array) -> Array:
    """The time of two kinds of work that run beside each other: the longer one, and a little more
    where they are alike.
    """
    return np.sqrt(one * one + other * other)
