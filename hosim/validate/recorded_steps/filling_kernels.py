"""Kernels that fill the device, and so keep others from starting.

Kernels of several streams run at once only if there is room for their blocks. A kernel with more
blocks than the device holds at once keeps every other kernel from starting until its last blocks
are placed. The number of blocks that fit follows from the threads, registers and shared
memory of a block and of a multiprocessor, as in CUDA's occupancy calculation (without its rounding
of registers and shared memory to allocation units).

Kernels wait for that room or not, depending on the device and on the priorities of streams, which
recordings do not have. So the majority of the kernels that could have waited decides. Collectives
start at once.
"""

import re
from bisect import bisect_right
from itertools import pairwise
from math import prod

from hosim.io.importers.recordings import (
    DeviceInfo,
    DeviceOp,
    KinetoTrace,
    ProgramOrder,
    Waits,
    stream_of,
)

_BLOCKS_A_MULTIPROCESSOR = 32


def placed_ns(op: DeviceOp, info: DeviceInfo | None, duration_ns: int) -> int:
    """Return the time for which a kernel of that duration keeps others from starting: until its
    last blocks are placed.

    It is 0 if all blocks fit at once, and if the recording lacks the resources of a block or of the
    device.
    """
    if (
        info is None
        or op.kind != "kernel"
        or not op.grid
        or not op.block
        or not info.multiprocessors
        or not info.threads
    ):
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


_ROOM_NS = 20_000
"""The shortest time for which a filling kernel must keep others from starting to count
as evidence.
"""


def kernels_wait_for_room(trace: KinetoTrace, order: ProgramOrder, waits: Waits) -> bool:
    """Return whether kernels of several streams wait for room on the device: True unless most
    kernels that could have waited did not.
    """
    if (
        len({stream_of(op) for op in trace.kernels}) < 2
        or len({op.device for op in trace.kernels}) > 1
    ):
        return False
    placed = (
        (
            op.start_ns,
            op.start_ns + placed_ns(op, trace.devices.get(op.device), op.duration_ns),
            stream_of(op),
        )
        for op in trace.kernels
    )
    fillers = sorted(one for one in placed if one[1] - one[0] >= _ROOM_NS)
    began = [start for start, _, _ in fillers]
    waited = beside = 0
    for queue in order.streams.values():
        for before, i in pairwise((-1, *queue)):
            op = trace.ops[i]
            if op.kind != "kernel" or op.call is None or is_collective(op.name):
                continue
            ends = [trace.ops[k].end_ns for k in (*waits.of_ops.get(i, ()), before) if k >= 0]
            ready = max(trace.calls[op.call].end_ns, *ends, 0)
            at = bisect_right(began, ready - _ROOM_NS // 4) - 1
            if at < 0:
                continue
            start, end, stream = fillers[at]
            if stream == stream_of(op) or ready + _ROOM_NS // 2 >= end:
                continue
            if op.start_ns >= end - (end - start) // 10:
                waited += 1
            else:
                beside += 1
    return waited >= beside


_COLLECTIVE = re.compile(
    r"nccl|rccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|sendrecv|cross_device|mscclKernel",
    re.IGNORECASE,
)


def is_collective(name: str) -> bool:
    """Return whether a kernel's name is that of a collective, which waits for other ranks."""
    return _COLLECTIVE.search(name) is not None
