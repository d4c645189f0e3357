"""The errors of hosim's times of kernels on the shapes held out, by class, dtype and machine,
beside two rivals: a table.

    cd tests && python kernel_report.py

``own``: the machine's constants, which were fitted to its other shapes. ``other``: the constants of
the other machine, with this one's vendor's figures. ``today``: what hosim said before it timed
kernels: 70 % of the peak and of the bandwidth, 3 us to launch, causal attention that counts every
key, min(experts, rows) experts read, collectives by their bytes alone. ``one``: a roofline with one
efficiency for each machine, the best one for the rows fitted.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
from kernel_rows import held_out, kernel_tables, processor

from hosim.analysis.costmodel.kernels import CLASSES, DTYPES, FITTED
from hosim.analysis.costmodel.kernels.op_families import Array, Processor
from hosim.io.importers.recordings import KernelTable
from hosim.validate.fits import KernelErrors, predicted_us, summary

FILES = ("gemm", "attention", "mla", "moe", "collectives")


def work(table: KernelTable) -> tuple[Array, Array, Array]:
    """FLOP, bytes of memory, and bytes over links, as hosim's builders count them without knowing
    about kernels.
    """
    s, kind = table.sizes, DTYPES[table.dtype]
    nothing = np.zeros(len(table))
    if table.kernel == "gemm":
        m, n, k = s["m"], s["n"], s["k"]
        return (
            2 * m * n * k,
            m * k * kind.input_bytes + n * k * kind.weight_bytes + m * n * 2,
            nothing,
        )
    if table.kernel == "context_attention":
        scores = s["batch"] * s["heads"] * s["queries"] ** 2
        return (
            4 * scores * s["width"],
            2 * s["batch"] * s["queries"] * s["width"] * 2 * (s["heads"] + s["kv_heads"]),
            nothing,
        )
    if table.kernel == "generation_attention":
        cache = s["batch"] * s["keys"] * s["kv_heads"] * s["width"] * 2 * kind.kv_bytes
        return (
            4 * s["batch"] * s["heads"] * s["keys"] * s["width"],
            cache + 4 * s["batch"] * s["heads"] * s["width"],
            nothing,
        )
    if table.kernel == "context_latent":
        scores = s["batch"] * s["heads"] * s["queries"] ** 2
        return (
            2 * scores * (192 + 128),
            2 * s["batch"] * s["queries"] * s["heads"] * (192 + 192 + 128 + 128),
            nothing,
        )
    if table.kernel == "latent_attention":
        return (
            2 * s["batch"] * s["heads"] * s["keys"] * (576 + 512),
            2 * s["batch"] * s["keys"] * 576,
            nothing,
        )
    if table.kernel == "moe":
        rows, width, mine = (
            s["tokens"] * s["top"] / s["ranks"],
            s["intermediate"] / s["tensor"],
            s["experts"] / s["ranks"],
        )
        read = np.minimum(mine, np.maximum(rows, 1)) * 3 * s["hidden"] * width * kind.weight_bytes
        return (
            6 * rows * s["hidden"] * width,
            read + rows * (2 * s["hidden"] + 3 * width) * 2,
            nothing,
        )
    passes = 2 if "all_reduce" in table.kernel else 1
    return nothing, nothing, passes * s["bytes"] * (s["ranks"] - 1) / s["ranks"]


def roofline(table: KernelTable, machine: Processor, slower: float = 1.0) -> Array:
    """Microseconds at the full peaks, times ``slower``."""
    flops, moved, sent = work(table)
    times = [flops / machine.peak_flops, moved / machine.bandwidth, sent / machine.link_bandwidth]
    return 1e6 * slower * np.max(times, axis=0)


def today(table: KernelTable, machine: Processor) -> Array:
    """What hosim said: collectives by their bytes alone, all else with one efficiency and a
    launch.
    """
    return (
        roofline(table, machine)
        if "ranks" in table.sizes and table.kernel != "moe"
        else 3 + roofline(table, machine) / 0.7
    )


def one_efficiency(machine: str, tables: list[KernelTable]) -> float:
    """By which factor the roofline of all 16-bit rows that are not held out falls short, in the
    median.
    """
    seen = [t.part(~held_out(t)) for t in tables if t.machine == machine and t.dtype == "fp16"]
    return float(
        np.median(
            np.concatenate(
                [
                    t.latency_us / np.maximum(roofline(t, processor(machine, "fp16")), 1e-6)
                    for t in seen
                ]
            )
        )
    )


def errors(tables: list[KernelTable], predict: Callable[[KernelTable], Array]) -> KernelErrors:
    """Those of predictions on the rows held out."""
    parts = [t.part(held_out(t)) for t in tables]
    return summary(np.concatenate([predict(part) / part.latency_us - 1 for part in parts]))


def by_constants(tables: list[KernelTable], machine: Processor, name: str) -> KernelErrors | None:
    """The errors with the constants of the machine ``name``, if they were fitted for this class and
    dtype.
    """
    values = FITTED.get(name, {}).get(tables[0].kernel, {}).get(tables[0].dtype)
    return (
        errors(tables, lambda table: predicted_us(table, machine, dict(values))) if values else None
    )


def deciles(tables: list[KernelTable], predict: Callable[[KernelTable], Array]) -> list[float]:
    """The median absolute error of each tenth of the rows held out, by bytes."""
    parts = [t.part(held_out(t)) for t in tables]
    off = np.concatenate([np.abs(predict(part) / part.latency_us - 1) for part in parts])
    order = np.argsort(np.concatenate([part.sizes["bytes"] for part in parts]), kind="stable")
    return [float(np.median(part)) for part in np.array_split(off[order], 10)]


def main() -> None:
    """Print the table."""
    tables = [table for kind in FILES for table in kernel_tables(kind)]
    print(
        "| machine | kernel | dtype | rows | own median | p90 | worst | other median | p90 | "
        "today | one |\n|" + "---|" * 11
    )
    of_collectives: dict[str, list[KernelTable]] = {"a100_sxm": [], "h100_sxm": []}
    for machine, other in (
        ("a100_sxm", "h100_sxm"),
        ("h100_sxm", "a100_sxm"),
        ("l40s", "a100_sxm"),
    ):
        slower = one_efficiency(machine, tables)
        for kernel in CLASSES:
            for dtype in sorted(
                {t.dtype for t in tables if t.kernel == kernel and t.machine == machine}
            ):
                mine = [
                    t for t in tables if (t.machine, t.kernel, t.dtype) == (machine, kernel, dtype)
                ]
                p = processor(machine, dtype)

                own, others = (by_constants(mine, p, name) for name in (machine, other))
                old, one = (
                    errors(mine, partial(today, machine=p)),
                    errors(mine, partial(roofline, machine=p, slower=slower)),
                )
                cells = [
                    f"{own.median:.1%} | {own.p90:.0%} | {own.worst:.0%}" if own else "- | - | -"
                ]
                cells += [
                    f"{others.median:.1%} | {others.p90:.0%}" if others else "- | -",
                    f"{old.median:.0%}",
                    f"{one.median:.0%}",
                ]
                print(
                    f"| {machine} | {kernel} | {dtype} | {old.rows} | {' | '.join(cells)} |",
                    flush=True,
                )
                if "bytes" in mine[0].sizes and machine in of_collectives:
                    of_collectives[machine] += mine
    for machine, mine in of_collectives.items():
        p = processor(machine, "fp16")
        found = deciles(
            mine,
            lambda t, p=p, machine=machine: predicted_us(
                t, p, dict(FITTED[machine][t.kernel]["fp16"])
            ),
        )
        print(
            f"{machine}: collectives by tenths of their bytes: "
            f"{', '.join(f'{x:.1%}' for x in found)}"
        )


if __name__ == "__main__":
    main()
