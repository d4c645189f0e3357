"""The measured kernel times beside the project, and which of their shapes no fit may see."""

import zlib
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hosim.analysis.costmodel.kernels import DTYPES
from hosim.analysis.costmodel.kernels.op_families import Processor
from hosim.io.importers.recordings import KernelTable, read_kernel_tables

FOLDER = Path(__file__).parents[2] / "shared" / "data" / "kernels"

HELD_OUT = 3
"""One shape in so many is held out: by its numbers alone, so that it is the same one on each
machine, in each dtype, and for ever.
"""


def held_out(table: KernelTable) -> npt.NDArray[np.bool_]:
    """Which rows of a table have a shape that is held out."""
    rows = zip(
        *(table.sizes[name].astype(int).tolist() for name in sorted(table.sizes)), strict=True
    )
    return np.array(
        [zlib.crc32((table.kernel + str(row)).encode()) % HELD_OUT == 0 for row in rows]
    )


@cache
def kernel_tables(kind: str) -> tuple[KernelTable, ...]:
    """The tables of a file of :data:`FOLDER`."""
    return tuple(read_kernel_tables(FOLDER / f"{kind}.csv.gz"))


# Vendors' figures: dense peaks, memory, multiprocessors, boost clock (which the peak is stated
# for), links in one direction.
_A100 = (
    {"fp16": 312e12},
    2.039e12,
    108,
    1.41e9,
    300e9,
)  # A100 80GB SXM datasheet; A100 architecture whitepaper
_H100 = (
    {"fp16": 989.4e12, "fp8": 1978.9e12},
    3.35e12,
    132,
    1.83e9,
    450e9,
)  # H100 SXM datasheet; H100 architecture whitepaper
_L40S = (
    {"fp16": 362.05e12, "fp8": 733e12},
    0.864e12,
    142,
    2.52e9,
    32e9,
)  # L40S datasheet; PCIe 4 x16
MACHINES = {"a100_sxm": _A100, "h100_sxm": _H100, "l40s": _L40S}


def processor(machine: str, dtype: str) -> Processor:
    """The processor for kernels of this dtype."""
    peaks, bandwidth, multiprocessors, clock_hz, links = MACHINES[machine]
    return Processor(peaks[DTYPES[dtype].compute], bandwidth, multiprocessors, clock_hz, links)
