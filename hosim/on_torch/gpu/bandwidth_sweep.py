"""The speed of a device's channels: copies by size, direction and kind of host memory, and the time
to allocate pinned memory.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch

from hosim.on_torch.gpu.gpu_seam import TO_DEVICE, TO_HOST, Device

SIZES = tuple(1 << power for power in range(12, 31))
"""4 KiB to 1 GiB."""


def sweep(device: Device, sizes: Sequence[int] = SIZES, repeats: int = 10) -> dict[str, Any]:
    """Nanoseconds of each of ``repeats`` copies and host allocations, after one that does not
    count.

    ``both`` is one copy each way at once, from the start of the first to the end of the last
    (``ns``), with pinned memory: copies of pageable memory block the host, and so cannot overlap.
    """
    copies = []
    for pinned in (True, False):
        for size in sizes:
            directions = (TO_DEVICE, TO_HOST, "both") if pinned else (TO_DEVICE, TO_HOST)
            for direction in directions:
                pairs = [
                    _pair(device, one, size, pinned)
                    for one in ((TO_DEVICE, TO_HOST) if direction == "both" else (direction,))
                ]
                times = [device.time_copies(pairs) for _ in range(repeats + 1)][1:]
                row = {
                    "direction": direction,
                    "pinned": pinned,
                    "bytes": size,
                    "median_ns": round(statistics.median(times)),
                    "ns": times,
                }
                copies.append(row)
                del pairs
    return {"copies": copies, "host_allocations": _host_allocations(device, sizes)}


def _pair(device: Device, direction: str, size: int, pinned: bool) -> tuple[str, Any, Any]:
    host, there = device.host(size, torch.uint8, pinned), device.empty(size, torch.uint8)
    host.zero_()  # pages exist before they are copied
    there.zero_()
    return (direction, there, host) if direction == TO_DEVICE else (direction, host, there)


def _host_allocations(
    device: Device, sizes: Sequence[int], at_once: int = 3
) -> list[dict[str, Any]]:
    """Each size a few times, without freeing in between, because torch would serve the next from
    its cache.
    """
    rows = []
    for pinned in (True, False):
        for size in sizes:
            held: list[Any] = []
            times = []
            for _ in range(at_once):
                start = time.perf_counter_ns()
                held.append(device.host(size, torch.uint8, pinned))
                times.append(time.perf_counter_ns() - start)
            rows.append({"pinned": pinned, "bytes": size, "ns": times})
            held.clear()
            device.empty_caches()
    return rows
