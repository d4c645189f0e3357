"""The rounding of the caching allocator: requests to blocks, blocks to segments (PyTorch's
published constants).
"""

from collections.abc import Mapping

from hosim.data.allocator_blocks import MIN_BLOCK
from hosim.errors import InputError

MIB = 1 << 20
SMALL_LIMIT = MIB
"""The largest block of the small pool; also the largest rest that a block of the large pool keeps
instead of being split.
"""
SMALL_SEGMENT = 2 * MIB
LARGE_SEGMENT = 20 * MIB
LARGE_SEGMENT_LIMIT = 10 * MIB
ROUND_LARGE = 2 * MIB
_STEPS = 16
PLAIN = (0,) * _STEPS
"""The division table that rounds everything to 512 B."""


def division_table(divisions: int | Mapping[int, int]) -> tuple[int, ...]:
    """The 16 entries of ``roundup_power2_divisions``: for requests from 1 MiB, 2 MiB, 4 MiB ... 32
    GiB; the ends serve what lies outside.

    ``divisions`` is one number for all, or numbers by size in MiB as PyTorch's settings give them
    (sizes left out: 0); 0 and 1 mean rounding to 512 B. Raises `InputError` for a size or a number
    that is not a power of two.
    """
    by_mib = (
        {1 << step: divisions for step in range(_STEPS)}
        if isinstance(divisions, int)
        else divisions
    )
    table = [0] * _STEPS
    for mib, count in by_mib.items():
        if not 1 <= mib < 1 << _STEPS or mib & (mib - 1) or count < 0 or count & (count - 1):
            raise InputError(
                f"expected powers of two (sizes from 1 to 32768 MiB), got {mib}: {count}",
                where="roundup_power2_divisions",
            )
        table[mib.bit_length() - 1] = count
    return tuple(table)


def round_size(size: int, divisions: tuple[int, ...] = PLAIN) -> int:
    """The bytes of the block that a request of ``size`` bytes needs.

    >>> round_size(1), round_size(513), round_size(5 * MIB + 1, division_table(4)) // MIB
    (512, 1024, 6)
    """
    if size <= MIN_BLOCK:
        return MIN_BLOCK
    power = size.bit_length() - 1
    count = divisions[min(max(power - 20, 0), _STEPS - 1)]
    step = (1 << power) // count if count > 1 and size > MIN_BLOCK * count else MIN_BLOCK
    return -(-size // step) * step


def segment_size(size: int) -> int:
    """The bytes asked of the driver for a block of ``size`` bytes that no cached one serves."""
    if size <= SMALL_LIMIT:
        return SMALL_SEGMENT
    return LARGE_SEGMENT if size < LARGE_SEGMENT_LIMIT else -(-size // ROUND_LARGE) * ROUND_LARGE
