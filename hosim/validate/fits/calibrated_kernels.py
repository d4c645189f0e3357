"""Kernels fitted to tables, as a report and as part of a hardware profile."""

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from hosim.analysis.costmodel.kernels import CLASSES, KernelClass, processor_for
from hosim.analysis.costmodel.kernels.op_families import Array, Processor, Shapes
from hosim.base.groups import grouped
from hosim.errors import InputError
from hosim.hardware import Hardware
from hosim.io import hardware_from_dict
from hosim.io.importers.recordings import KernelTable
from hosim.units import human_percent

# -- kernel fit
# --------------------------------------------------------------------------------------------------
# Constants of kernels, fitted to tables of measured times: least squares of logarithms, in which
# outliers have little weight.

_ROWS = 2000
"""The most rows of a class that are fitted, drawn evenly: more rows would hardly change
a constant.
"""
_OUTLIER = 0.1
"""The error above which a row counts less than its square."""


@dataclass(frozen=True, slots=True)
class KernelErrors:
    """Relative errors over ``rows`` rows: the median, the 90th percentile and the largest of the
    absolute errors, and the signed median.
    """

    rows: int
    median: float
    p90: float
    worst: float
    bias: float


@dataclass(frozen=True, slots=True)
class KernelFit:
    """The constants of one class in one dtype, by name, and their errors on the fitted rows."""

    kernel: str
    dtype: str
    values: dict[str, float]
    errors: KernelErrors


def fit_kernel(tables: Sequence[KernelTable], processor: Processor) -> KernelFit:
    """Fit the constants of one class and one dtype to tables; ``processor`` has the peak of that
    dtype.
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
    """Return the predicted microseconds of each row, by the class's function with constants by
    name.
    """
    kernel = CLASSES[table.kernel]
    return _times(
        kernel, processor, kernel.shapes(table.sizes, table.dtype, table.distribution), values
    )


def errors_of_tables(
    tables: Sequence[KernelTable], processor: Processor, values: dict[str, float]
) -> KernelErrors:
    """Return the errors over all rows of tables of one class and dtype."""
    return summary(np.concatenate([errors_by_row(table, processor, values) for table in tables]))


def errors_by_row(table: KernelTable, processor: Processor, values: dict[str, float]) -> Array:
    """The relative error of each row."""
    return predicted_us(table, processor, values) / table.latency_us - 1


def summary(errors: Array) -> KernelErrors:
    """Return the summary of relative errors."""
    off = np.abs(errors)
    median, p90 = (float(x) for x in np.quantile(off, [0.5, 0.9]))
    return KernelErrors(len(errors), median, p90, float(off.max()), float(np.median(errors)))


def _times(
    kernel: KernelClass, processor: Processor, shapes: Shapes, values: dict[str, float]
) -> Array:
    return kernel.us(kernel.constants_from(values), processor, shapes)


def _evenly(count: int, wanted: int) -> npt.NDArray[np.intp]:
    """Return positions of ``wanted`` of ``count`` rows, the same in each run. They are drawn at
    random, because tables have periodic patterns.
    """
    return np.sort(np.random.default_rng(0).permutation(count)[:wanted])


def _joined(parts: Sequence[Shapes]) -> dict[str, Any]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


FORMAT = "hosim.kernel_calibration/1"


def fit_kernels(tables: Sequence[KernelTable], hardware: Hardware) -> list[KernelFit]:
    """Return a fit for each class and dtype in tables of one machine; ``hardware`` has its vendor's
    figures. Raises :class:`InputError`.
    """
    if hardware.compute.processor is None:
        raise InputError(
            "lacks the vendor's figures: multiprocessors and clock",
            source=hardware.name,
            where="compute.processor",
        )
    sorted_tables = grouped(((table.kernel, table.dtype), table) for table in tables)
    fits = []
    for (kernel, dtype), listed in sorted_tables.items():
        processor = processor_for(hardware, dtype)
        if not processor.peak_flops:
            raise InputError(
                f"has no peak for {dtype}, in which {kernel} was measured",
                source=hardware.name,
                where="compute.peak",
            )
        if (
            "ranks" in listed[0].sizes
            and "bytes" in listed[0].sizes
            and not processor.link_bandwidth
        ):
            raise InputError(
                f"has no links, over which {kernel} was measured",
                source=hardware.name,
                where="compute.processor.links",
            )
        fits.append(fit_kernel(listed, processor))
    return fits


def profile_with_kernels(
    fits: Sequence[KernelFit], base: Mapping[str, Any], name: str, files: Sequence[str]
) -> dict[str, Any]:
    """Return the file of the base profile, under another name, with the fitted constants in place
    of its own.
    """
    data = deepcopy(dict(base))
    data["name"] = name
    compute = data["compute"] = dict(data.get("compute", {}))
    write_kernels(compute, ((fit.kernel, fit.dtype, fit.values) for fit in fits))
    errors = "; ".join(
        f"{fit.kernel} {fit.dtype} {human_percent(fit.errors.median)} (n={fit.errors.rows})"
        for fit in fits
    )
    said = f"kernels from {', '.join(files)}, median error on the rows fitted: {errors}"
    compute["source"] = f"{said}. Before: {compute['source']}" if compute.get("source") else said
    hardware_from_dict(data, source=name)
    return data


def write_kernels(
    compute: dict[str, Any], fitted: Iterable[tuple[str, str, Mapping[str, float]]]
) -> None:
    """Replace constants of a profile's ``compute``, by class and dtype."""
    kernels = compute["kernels"] = {
        kernel: dict(dtypes) for kernel, dtypes in compute.get("kernels", {}).items()
    }
    for kernel, dtype, constants in fitted:
        kernels.setdefault(kernel, {})[dtype] = dict(constants)


def kernels_report(fits: Sequence[KernelFit], files: Sequence[str], base: str) -> dict[str, Any]:
    """Return the JSON report."""
    return {
        "format": FORMAT,
        "sources": list(files),
        "base": base,
        "kernels": [asdict(fit) for fit in fits],
    }
