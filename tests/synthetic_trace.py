"""Recordings in the profiler's schema with known parameters: iterations of products, additions and
copies, with seeded noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from kineto_toys import COPY, KERNEL, call, device_op, span, trace

from hosim.hardware import Channel, Compute, Hardware, Tier

PEAK, BANDWIDTH = 100 * 10**12, 10**12
PRODUCTS = ((1024, 1024, 4096), (2048, 2048, 2048), (4096, 1024, 4096), (4096, 4096, 2048))
SUMS = (1 << 22, 1 << 23, 3 << 22, 1 << 24)
TINY = 64
COPIES = (1 << 12, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26)
NAMES = {"h2d": "Memcpy HtoD ({memory} -> Device)", "d2h": "Memcpy DtoH (Device -> {memory})"}


@dataclass(frozen=True)
class Truth:
    """What a recording is made with: FLOP and bytes at these efficiencies of the peaks, and
    channels by direction and host memory.
    """

    product: float = 0.6
    addition: float = 0.8
    fixed_us: float = 2.0
    gap_us: float = 1.5
    channels: tuple[tuple[str, str, float, float], ...] = (
        ("h2d", "Pinned", 8.0, 25e9),
        ("d2h", "Pinned", 10.0, 20e9),
        ("h2d", "Pageable", 12.0, 5e9),
        ("d2h", "Pageable", 15.0, 3e9),
    )
    noise: float = 0.03
    outliers: float = 0.05


TRUTH = Truth()


def base_machine() -> Hardware:
    """The machine that the efficiencies are relative to."""
    tiers = (Tier("hbm", 10**11, BANDWIDTH, "device"), Tier("ddr", 10**12, 10**11, "host"))
    channels = (Channel("h2d", "ddr", "hbm", 10**9), Channel("d2h", "hbm", "ddr", 10**9))
    return Hardware(
        "known", tiers, channels, Compute({"bf16": PEAK, "fp32": PEAK // 10}, 0.5, 7000)
    )


def copy_us(way: tuple[str, str, float, float], size: int) -> float:
    """What a copy takes without noise."""
    return way[2] + size / way[3] * 1e6


def recording(
    iterations: int, seed: int, truth: Truth = TRUTH, stretched: tuple[int, float] | None = None
) -> dict[str, Any]:
    """A parsed trace. From iteration ``stretched[0]`` on, ops take ``stretched[1]`` times as long;
    nothing else is another.
    """
    random = Random(seed)
    events: list[dict[str, Any]] = []
    host, free, correlation = 0.0, {7: 50_000.0, 20: 50_000.0}, 0
    for iteration in range(iterations):
        longer = stretched[1] if stretched and iteration >= stretched[0] else 1.0

        def place(
            category: str, name: str, stream: int, time: float, longer: float = longer, **args: Any
        ) -> None:
            nonlocal host, correlation
            correlation += 1
            host += 4
            noisy = round(time * random.lognormvariate(0, truth.noise), 3)
            events.append(
                call(
                    "cudaLaunchKernel" if category == KERNEL else "cudaMemcpyAsync",
                    round(host, 3),
                    3,
                    correlation,
                )
            )
            start = round(free[stream] + truth.gap_us, 3)
            events.append(
                device_op(
                    category, name, start, round(noisy * longer, 3), correlation, stream, **args
                )
            )
            free[stream] = start + noisy * longer

        def operator(
            name: str, shapes: list[Any], dtype: str, kernel: str, seconds: float, blocks: int
        ) -> None:
            events.append(
                span(
                    "cpu_op",
                    name,
                    round(host + 3.5, 3),
                    4,
                    **{"Input Dims": shapes, "Input type": [dtype] * len(shapes)},
                )
            )
            place(
                KERNEL,
                kernel,
                7,
                truth.fixed_us + seconds * 1e6,
                grid=[blocks, 1, 1],
                block=[128, 1, 1],
            )

        for m, k, n in PRODUCTS:
            moved = 2 * (m * k + k * n + m * n)
            roofline = max(2 * m * k * n / PEAK, moved / BANDWIDTH)
            operator(
                "aten::mm",
                [[m, k], [k, n]],
                "c10::BFloat16",
                "gemm",
                roofline / truth.product,
                m * n // 128,
            )
        for size in SUMS:
            operator(
                "aten::add",
                [[size], [size]],
                "float",
                "vectorized_add",
                12 * size / BANDWIDTH / truth.addition,
                size // 128,
            )
            operator("aten::add", [[TINY], [TINY]], "float", "vectorized_add", 0.0, 1)
        for way in truth.channels:
            for size in COPIES:
                slow = 3 if random.random() < truth.outliers else 1
                place(
                    COPY,
                    NAMES[way[0]].format(memory=way[1]),
                    20,
                    copy_us(way, size) * slow,
                    bytes=size,
                )
    return trace(*events)
