"""Constants of kernels, fitted to tables of measured times: least squares of logarithms, in which
rows that are far off hardly count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from hosim.costmodel.kernels import CLASSES, DTYPES, KernelClass
from hosim.costmodel.kernels.op_families import Array, Processor, Shapes
from hosim.importers.recordings import KernelTable

_ROWS = 2000
"""So many rows of a class are fitted, evenly taken: more change a constant by less than its use."""
_OUTLIER = 0.1
"""The error from which on a row counts less than its square."""


@dataclass(frozen=True, slots=True)
class KernelErrors:
    """Relative errors over ``rows`` rows: the median, the 90th percentile and the largest absolute
    one, and the median with its sign.
    """

    rows: int
    median: float
    p90: float
    worst: float
    bias: float


@dataclass(frozen=True, slots=True)
class KernelFit:
    """The constants of one class in one dtype, by name, and their errors on the rows that were
    fitted.
    """

    kernel: str
    dtype: str
    values: dict[str, float]
    errors: KernelErrors


def fit_kernel(tables: Sequence[KernelTable], processor: Processor) -> KernelFit:
    """The constants that fit tables of one class and one dtype best; ``processor`` has the peak of
    that dtype.
    """
    from scipy.optimize import least_squares

    kernel = CLASSES[tables[0].kernel]
    parts = [
        table.part(_evenly(len(table), max(1, _ROWS * len(table) // sum(map(len, tables)))))
        for table in tables
    ]
    shapes = _joined([kernel.shapes(part.sizes, part.dtype, part.distribution) for part in parts])
    wanted = np.log(np.concatenate([part.latency_us for part in parts]))
    names = kernel.constant_names
    best, least = dict(zip(names, kernel.start, strict=True)), np.inf
    free = [i for i, name in enumerate(names) if name not in kernel.tried]
    start, (low, high) = (
        np.log(np.array(kernel.start)[free]),
        np.log(np.array(kernel.limits)[free]).T,
    )
    for tried in product(*kernel.tried.values()):
        fixed = dict(zip(kernel.tried, tried, strict=True))

        def residuals(x: Array, fixed: dict[str, float] = fixed) -> Array:
            values = fixed | {
                names[i]: float(value) for i, value in zip(free, np.exp(x), strict=True)
            }
            off: Array = np.log(_times(kernel, processor, shapes, values)) - wanted
            return off

        found = least_squares(
            residuals,
            start,
            bounds=(low, high),
            loss="soft_l1",
            f_scale=_OUTLIER,
            diff_step=1e-3,
            max_nfev=40,
            x_scale="jac",
        )
        if found.cost < least:
            least = found.cost
            best = fixed | {
                names[i]: float(f"{value:.4g}")
                for i, value in zip(free, np.exp(found.x), strict=True)
            }
    values = {name: best[name] for name in names}
    return KernelFit(
        kernel.name, tables[0].dtype, values, errors_of_tables(tables, processor, values)
    )


def predicted_us(table: KernelTable, processor: Processor, values: dict[str, float]) -> Array:
    """Return the prediction of the class's function for each row, with constants by name."""
    kernel = CLASSES[table.kernel]
    return _times(
        kernel, processor, kernel.shapes(table.sizes, table.dtype, table.distribution), values
    )


def errors_of_tables(
    tables: Sequence[KernelTable], processor: Processor, values: dict[str, float]
) -> KernelErrors:
    """The errors over all rows of tables of one class and dtype."""
    return summary(np.concatenate([errors_by_row(table, processor, values) for table in tables]))


def errors_by_row(table: KernelTable, processor: Processor, values: dict[str, float]) -> Array:
    """The relative error of each row."""
    return predicted_us(table, processor, values) / table.latency_us - 1


def summary(errors: Array) -> KernelErrors:
    """Return the summary of relative errors."""
    off = np.abs(errors)
    median, p90 = (float(x) for x in np.quantile(off, [0.5, 0.9]))
    return KernelErrors(len(errors), median, p90, float(off.max()), float(np.median(errors)))


def peak_dtype(dtype: str) -> str:
    """The dtype whose peak kernels of this label compute at."""
    return DTYPES[dtype].compute


def _times(
    kernel: KernelClass, processor: Processor, shapes: Shapes, values: dict[str, float]
) -> Array:
    return kernel.us(kernel.constants_from(values), processor, shapes)


def _evenly(count: int, wanted: int) -> npt.NDArray[np.intp]:
    """Positions of so many of ``count`` rows, the same ones in each run. Not at equal distances:
    tables repeat themselves.
    """
    return np.sort(np.random.default_rng(0).permutation(count)[:wanted])


def _joined(parts: Sequence[Shapes]) -> dict[str, Any]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
