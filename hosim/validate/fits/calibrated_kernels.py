"""Kernels fitted to tables, as a report and as part of a hardware profile."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict
from typing import Any

from hosim.costmodel.kernels import processor_for
from hosim.errors import InputError
from hosim.hardware import Hardware
from hosim.importers.recordings import KernelTable
from hosim.io import hardware_from_dict
from hosim.units import human_percent
from hosim.validate.fits.kernel_fit import KernelFit, fit_kernel

FORMAT = "hosim.kernel_calibration/1"


def fit_kernels(tables: Sequence[KernelTable], hardware: Hardware) -> list[KernelFit]:
    """A fit for each class and dtype in tables of one machine, whose vendor's figures ``hardware``
    has. Raises :class:`InputError`.
    """
    figures = hardware.compute.processor
    if figures is None:
        raise InputError(
            "lacks the vendor's figures: multiprocessors and clock",
            source=hardware.name,
            where="compute.processor",
        )
    sorted_tables: defaultdict[tuple[str, str], list[KernelTable]] = defaultdict(list)
    for table in tables:
        sorted_tables[table.kernel, table.dtype].append(table)
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
    """The file of the base profile with the fitted constants in place of its own, under another
    name.
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
    """Put constants, by class and dtype, in the place of those of a profile's ``compute``."""
    kernels = compute["kernels"] = {
        kernel: dict(dtypes) for kernel, dtypes in compute.get("kernels", {}).items()
    }
    for kernel, dtype, constants in fitted:
        kernels.setdefault(kernel, {})[dtype] = dict(constants)


def kernels_report(fits: Sequence[KernelFit], files: Sequence[str], base: str) -> dict[str, Any]:
    """The JSON report."""
    return {
        "format": FORMAT,
        "sources": list(files),
        "base": base,
        "kernels": [asdict(fit) for fit in fits],
    }
