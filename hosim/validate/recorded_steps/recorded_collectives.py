"""Kernels of a recording that wait for other ranks."""

import re

_COLLECTIVE = re.compile(
    r"nccl|rccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|sendrecv|cross_device|mscclKernel",
    re.IGNORECASE,
)


def is_collective(name: str) -> bool:
    """Return whether a kernel's name is that of a collective, which waits for other ranks."""
    return _COLLECTIVE.search(name) is not None
