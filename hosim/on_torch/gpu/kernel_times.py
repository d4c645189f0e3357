"""Times of the kernels that hosim's cost model knows: products and attention, as rows that ``hosim
import-kernels`` reads.
"""

import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from hosim.on_torch.gpu.gpu_seam import Device

COLUMNS = (
    "machine",
    "kernel",
    "dtype",
    *("m", "n", "k", "batch", "queries", "before", "keys", "heads", "kv_heads", "width", "window"),
    "latency_us",
)
_NO_WINDOW = 1 << 40


@dataclass(frozen=True)
class KernelShapes:
    """Products: rows, (columns, depth). Prompts and steps: sequences, tokens of each, (heads, heads
    of keys), width of a head.
    """

    products: Sequence[tuple[int, tuple[int, int]]]
    prompts: Sequence[tuple[int, int, tuple[int, int], int]]
    steps: Sequence[tuple[int, int, tuple[int, int], int]]


_MATRICES = ((2048, 2048), (8192, 2048), (2048, 8192), (4096, 4096), (14336, 4096), (8192, 8192))
_HEADS = ((32, 8), (32, 32))
SHAPES = KernelShapes(
    tuple(itertools.product((1, 16, 128, 1024, 4096, 8192), _MATRICES)),
    tuple(itertools.product((1, 4), (512, 2048, 8192), _HEADS, (64, 128))),
    tuple(itertools.product((1, 8, 32), (1024, 8192), _HEADS, (128,))),
)
SMALL = KernelShapes(((8, (16, 32)), (16, (32, 16))), ((1, 16, (4, 2), 8),), ((2, 16, (4, 2), 8),))
"""For a CPU."""

Row = Mapping[str, Any]


def kernel_rows(
    device: Device, machine: str, shapes: KernelShapes, calls: int = 20
) -> Iterator[Row]:
    """A row for each shape, with the time of one of ``calls`` calls in a row, in microseconds (the
    median of three such rows).

    Shapes that do not fit in memory have no row.
    """
    for m, (n, k) in shapes.products:
        yield from _timed(
            device,
            machine,
            "gemm",
            {"m": m, "n": n, "k": k},
            partial(_product, device, m, n, k),
            calls,
        )
    for batch, queries, (heads, kv_heads), width in shapes.prompts:
        sizes = {
            "batch": batch,
            "queries": queries,
            "before": 0,
            "heads": heads,
            "kv_heads": kv_heads,
            "width": width,
            "window": _NO_WINDOW,
        }
        made = partial(_attention, device, batch, queries, queries, heads, kv_heads, width)
        yield from _timed(device, machine, "context_attention", sizes, made, calls)
    for batch, keys, (heads, kv_heads), width in shapes.steps:
        sizes = {"batch": batch, "keys": keys, "heads": heads, "kv_heads": kv_heads, "width": width}
        made = partial(_attention, device, batch, 1, keys, heads, kv_heads, width)
        yield from _timed(device, machine, "generation_attention", sizes, made, calls)


def _timed(
    device: Device,
    machine: str,
    kernel: str,
    sizes: Row,
    made: Callable[[], Callable[[], Any]],
    calls: int,
) -> Iterator[Row]:
    try:
        run = made()
        for _ in range(3):
            run()
        times = [device.time_calls(run, calls) for _ in range(3)]
    except torch.cuda.OutOfMemoryError:
        device.empty_caches()
        return
    yield {
        "machine": machine,
        "kernel": kernel,
        "dtype": "bfloat16",
        **sizes,
        "latency_us": round(statistics.median(times) / 1000, 3),
    }


def _product(device: Device, m: int, n: int, k: int) -> Callable[[], Any]:
    left, right = (
        device.empty(rows * k, torch.bfloat16).normal_().view(rows, k) for rows in (m, n)
    )
    return lambda: functional.linear(left, right)


def _attention(
    device: Device, batch: int, queries: int, keys: int, heads: int, kv_heads: int, width: int
) -> Callable[[], Any]:
    """Causal attention; of one query over a cache there is nothing to mask."""

    def drawn(count: int, tokens: int) -> Any:
        return (
            device.empty(batch * count * tokens * width, torch.bfloat16)
            .normal_()
            .view(batch, count, tokens, width)
        )

    q, k, v = drawn(heads, queries), drawn(kv_heads, keys), drawn(kv_heads, keys)
    grouped = {"enable_gqa": True} if kv_heads < heads else {}
    return lambda: functional.scaled_dot_product_attention(
        q, k, v, is_causal=queries > 1, **grouped
    )
