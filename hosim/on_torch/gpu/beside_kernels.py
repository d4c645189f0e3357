"""The slowdown of copies and kernels beside one another: a matrix product and an addition, alone
and with copies in each direction.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch

from hosim.on_torch.gpu.gpu_seam import TO_DEVICE, TO_HOST, Device


def beside(
    device: Device, width: int, copy_bytes: int, times: int = 8, repeats: int = 5
) -> list[dict[str, Any]]:
    """A row for each kernel and direction: nanoseconds of the kernels alone, of the copies alone,
    and of both while the other ran.

    ``width`` is that of square matrices in bf16; the addition reads and writes as many bytes as 16
    of them have. Kernels run ``times`` times, and copies as often as fills about the same time, so
    that each is beside the other nearly all the time. Medians of ``repeats``.
    """
    one, two, out = (
        device.empty(width * width, torch.bfloat16).zero_().view(width, width) for _ in range(3)
    )
    wide, also = (device.empty(16 * width * width, torch.bfloat16).zero_() for _ in range(2))
    there, host = (
        device.empty(copy_bytes, torch.uint8).zero_(),
        device.host(copy_bytes, torch.uint8).zero_(),
    )
    kernels: dict[str, Callable[[], Any]] = {
        "product": lambda: torch.mm(one, two, out=out),
        "addition": lambda: torch.add(wide, 1.0, out=also),
    }
    rows = []
    for name, kernel in kernels.items():
        kernel()  # libraries are loaded before anything is timed
        for direction in (TO_DEVICE, TO_HOST):
            copy = (direction, there, host) if direction == TO_DEVICE else (direction, host, there)
            alone = _median(device, [[kernel] * times, []], repeats)[0]
            one_copy = _median(device, [[], [copy]], repeats)[1]
            copies = [copy] * max(1, round(alone / max(one_copy, 1)))
            copied = _median(device, [[], copies], repeats)[1]
            both = _median(device, [[kernel] * times, copies], repeats)
            rows.append(
                {
                    "kernel": name,
                    "direction": direction,
                    "width": width,
                    "times": times,
                    "copies": len(copies),
                    "copy_bytes": copy_bytes,
                    "kernels_alone_ns": alone,
                    "copies_alone_ns": copied,
                    "kernels_beside_ns": both[0],
                    "copies_beside_ns": both[1],
                }
            )
    return rows


def _median(device: Device, work: list[list[Any]], repeats: int) -> tuple[int, int]:
    """Nanoseconds that the kernels and the copies take when both begin together, after one round
    that does not count.
    """
    kernels, copies = work
    rounds = [device.time_both(kernels, copies) for _ in range(repeats + 1)][1:]
    return round(statistics.median(one for one, _ in rounds)), round(
        statistics.median(two for _, two in rounds)
    )
