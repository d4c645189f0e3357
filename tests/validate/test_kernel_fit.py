"""Constants of kernels from tables: those that made a table are found again, and shapes that no fit
saw are predicted.
"""

import fit_kernels
import fit_spreads
import numpy as np
import pytest
from kernel_rows import FOLDER, held_out, kernel_tables, processor
from quick_cases import one_in

from hosim.analysis.costmodel.kernels import CLASSES, FITTED
from hosim.analysis.costmodel.kernels.op_families import Processor
from hosim.io.importers.recordings import KernelTable
from hosim.validate.fits import errors_by_row, errors_of_tables, fit_kernel, summary

MACHINE = Processor(3e14, 2e12, 100, 1.5e9, 3e11)


def made(kernel, values, count=300):
    """A table that the class's own function gives, with every tenth row three times too long."""
    random = np.random.default_rng(1)
    ranges = {"m": (0, 4), "n": (2, 4), "k": (2, 4), "ranks": (0.31, 0.9), "bytes": (3, 9)}
    sizes = {
        name: np.round(10 ** random.uniform(*ranges[name], count)) for name in CLASSES[kernel].sizes
    }
    time = CLASSES[kernel].us(
        CLASSES[kernel].constants_from(values), MACHINE, CLASSES[kernel].shapes(sizes, "fp16")
    )
    time[::10] *= 3
    return KernelTable("made", kernel, "fp16", "uniform", sizes, time)


def test_constants_that_made_a_table_are_found_again() -> None:
    values = {"fixed_cycles": 9000.0, "rank_cycles": 1000.0, "link_share": 0.4}
    fit = fit_kernel([made("custom_all_reduce", values)], MACHINE)
    assert fit.values == pytest.approx(values, rel=0.02)
    assert fit.errors.median < 0.02
    assert fit.errors.worst == pytest.approx(2 / 3, rel=0.05)  # a third of what a long row says


def test_a_product_that_is_bound_by_memory_tells_the_bandwidth() -> None:
    values = dict(
        zip(
            CLASSES["gemm"].constant_names,
            (8000.0, 0.6, 1.5, 60.0, 500.0, 4000.0, 4.0),
            strict=True,
        )
    )
    fit = fit_kernel([made("gemm", values)], MACHINE)
    assert fit.values["bandwidth_share"] == pytest.approx(0.6, rel=0.05)
    assert fit.values["fixed_cycles"] == pytest.approx(8000, rel=0.1)
    assert fit.errors.median < 0.02


@pytest.mark.parametrize("tool", [fit_kernels, fit_spreads])
def test_what_is_fitted_is_written_where_it_is_read(tool) -> None:
    assert tool.FILE.read_text().startswith(tool.HEAD)


def test_errors_are_relative_to_what_was_measured() -> None:
    found = summary(np.array([-0.5, 0.1, 0.2]))
    assert (found.rows, found.median, found.worst, found.bias) == (3, 0.2, 0.5, 0.1)


measured = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no {FOLDER}")


@measured
def test_the_same_third_of_shapes_is_held_out_for_ever() -> None:
    a100, h100 = (
        next(t for t in kernel_tables("gemm") if (t.machine, t.dtype) == (m, "fp16"))
        for m in ("a100_sxm", "h100_sxm")
    )
    assert int(held_out(a100).sum()) == int(held_out(h100).sum()) == 3104
    first = np.flatnonzero(held_out(a100))[:2]
    assert [[int(a100.sizes[name][i]) for name in "mnk"] for i in first] == [
        [8192, 65536, 6144],
        [8192, 65536, 8192],
    ]


BARS = [
    ("gemm", "gemm", 0.08, 0.15),
    ("attention", "context_attention", 0.08, 0.15),
    ("attention", "generation_attention", 0.08, 0.15),
    ("moe", "moe", 0.08, 0.15),
    ("mla", "context_latent", 0.15, 0.30),
    (
        "mla",
        "latent_attention",
        0.15,
        None,
    ),  # A100's kernel does not split a cache, so that neither machine tells of the other
]
ROWS = 600


@measured
@pytest.mark.parametrize(
    ("file", "kernel", "bar", "bar_of_other"), BARS, ids=[kernel for _, kernel, *_ in BARS]
)
@pytest.mark.parametrize(
    ("machine", "other"), one_in(2, [("a100_sxm", "h100_sxm"), ("h100_sxm", "a100_sxm")])
)
def test_shapes_held_out_are_predicted(
    compared, machine, other, file, kernel, bar, bar_of_other
) -> None:
    tables = [
        t
        for t in kernel_tables(file)
        if (t.machine, t.kernel, t.dtype) == (machine, kernel, "fp16")
    ]
    unseen = [
        t.part(np.random.default_rng(0).permutation(np.flatnonzero(held_out(t)))[:ROWS])
        for t in tables
    ]
    for name, within in ((machine, bar), (other, bar_of_other)):
        if within is not None:
            errors = errors_of_tables(
                unseen, processor(machine, "fp16"), dict(FITTED[name][kernel]["fp16"])
            )
            what = f"median error of {errors.rows} rows held out, with constants of {name}"
            compared(
                "aiconfigurator's tables",
                f"{kernel} on {machine}",
                what,
                0.0,
                errors.median,
                slack=within,
            )


@measured
@pytest.mark.parametrize("machine", ["a100_sxm", "h100_sxm"])
def test_collectives_of_every_size_are_predicted(compared, machine) -> None:
    tables = [t for t in kernel_tables("collectives") if t.machine == machine]
    parts = [t.part(held_out(t)) for t in tables]
    off = [
        errors_by_row(part, processor(machine, "fp16"), dict(FITTED[machine][part.kernel]["fp16"]))
        for part in parts
    ]
    order = np.argsort(np.concatenate([part.sizes["bytes"] for part in parts]), kind="stable")
    for tenth, errors in enumerate(np.array_split(np.abs(np.concatenate(off))[order], 10), 1):
        what = f"median error of {len(errors)} rows held out, {tenth}. tenth by bytes"
        compared(
            "aiconfigurator's tables",
            f"collectives on {machine}",
            what,
            0.0,
            float(np.median(errors)),
            slack=0.15,
        )
