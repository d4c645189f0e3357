"""How much of a device a kernel fills: kernels of several streams run side by side only while there is room for their blocks.

A kernel with more blocks than the device holds at once keeps every other kernel from starting until its last blocks are placed. The number
of blocks that fit follows from the threads, registers and shared memory of a block and of a multiprocessor, as in CUDA's occupancy
calculation (without its rounding of registers and shared memory to allocation units).
"""

from __future__ import annotations

from math import prod

from hosim.importers.kineto_events import DeviceInfo, DeviceOp

_BLOCKS_A_MULTIPROCESSOR = 32


def placed_ns(op: DeviceOp, info: DeviceInfo | None, duration_ns: int) -> int:
    """How long a kernel of that duration keeps others from starting: until its last blocks are placed.

    0 if all blocks fit at once, and if the recording lacks what they need.
    """
    if info is None or op.kind != "kernel" or not op.grid or not op.block or not info.multiprocessors or not info.threads:
        return 0
    threads, blocks = prod(op.block), prod(op.grid)
    if threads <= 0 or blocks <= 0:
        return 0
    held = min(_BLOCKS_A_MULTIPROCESSOR, info.threads // threads)
    if op.registers and info.registers:
        held = min(held, info.registers // (op.registers * threads))
    if op.shared_bytes and info.shared_bytes:
        held = min(held, info.shared_bytes // op.shared_bytes)
    at_once = max(1, held) * info.multiprocessors
    return duration_ns * (blocks - at_once) // blocks if blocks > at_once else 0
