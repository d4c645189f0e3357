"""How long a kernel keeps others out: what it takes of a multiprocessor, worked out by hand as
CUDA's occupancy calculation does.
"""

from dataclasses import replace

import pytest

from hosim.io.importers.recordings import DeviceInfo, DeviceOp
from hosim.validate.recorded_steps import placed_ns

DEVICE = DeviceInfo("toy", 80 << 30, 10, 2048, 65536, 102_400)
"""Ten multiprocessors with room for 2048 threads, 65536 registers and 100 KiB of shared memory
each.
"""


def kernel(
    blocks: int, threads: int, registers: int | None = None, shared: int | None = None
) -> DeviceOp:
    grid, block = (blocks // 2, 2, 1), (threads, 1, 1)
    return DeviceOp(
        "kernel",
        "k",
        0,
        7,
        0,
        0,
        None,
        grid=grid,
        block=block,
        registers=registers,
        shared_bytes=shared,
    )


@pytest.mark.parametrize(
    ("op", "at_once"),
    [
        (kernel(1000, 512), 40),  # 2048 // 512 = 4 on each of ten
        (kernel(1000, 32), 320),  # 64 by threads, 32 by CUDA's own limit
        (kernel(1000, 512, registers=64), 20),  # 65536 // (64 * 512) = 2
        (kernel(1000, 512, registers=16), 40),  # 8 by registers, 4 by threads
        (kernel(1000, 512, shared=51_200), 20),  # 100 KiB // 50 KiB
        (kernel(1000, 512, shared=10_240), 40),  # 10 by shared memory
        (kernel(1000, 512, registers=64, shared=102_400), 10),  # 2 by registers, 1 by shared memory
        (
            kernel(1000, 1024, registers=128),
            10,
        ),  # not even one by registers: it runs all the same, one at a time
    ],
)
def test_blocks_that_run_at_once(op: DeviceOp, at_once: int) -> None:
    """Of 1000 blocks the last start once all but ``at_once`` are through, at an even pace."""
    assert placed_ns(op, DEVICE, 1_000_000) == 1000 * (1000 - at_once)


def test_what_fits_at_once_keeps_nobody_out() -> None:
    assert placed_ns(kernel(40, 512), DEVICE, 1000) == 0
    assert placed_ns(kernel(42, 512), DEVICE, 4200) == 200


@pytest.mark.parametrize(
    ("op", "info"),
    [
        (kernel(1000, 512), None),
        (replace(kernel(1000, 512), kind="memcpy"), DEVICE),
        (replace(kernel(1000, 512), grid=()), DEVICE),
        (replace(kernel(1000, 512), block=()), DEVICE),
        (replace(kernel(1000, 512), grid=(0, 1, 1)), DEVICE),
        (replace(kernel(1000, 512), block=(0, 1, 1)), DEVICE),
        (kernel(1000, 512), replace(DEVICE, multiprocessors=None)),
        (kernel(1000, 512), replace(DEVICE, threads=None)),
    ],
)
def test_what_is_not_known_keeps_nobody_out(op: DeviceOp, info: DeviceInfo | None) -> None:
    assert placed_ns(op, info, 1000) == 0


def test_what_a_device_does_not_say_is_no_limit() -> None:
    op = kernel(1000, 512, registers=64, shared=51_200)
    assert placed_ns(op, replace(DEVICE, registers=None, shared_bytes=None), 1_000_000) == 1000 * (
        1000 - 40
    )
