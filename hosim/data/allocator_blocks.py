"""The smallest block of PyTorch's caching allocator, for what counts in blocks without a replay: it
imports nothing.
"""

MIN_BLOCK = 512
"""Bytes; all blocks are multiples of it."""


def in_blocks(size_bytes: int) -> int:
    """The bytes of the allocator's blocks that hold so many.

    >>> in_blocks(0), in_blocks(1), in_blocks(513)
    (0, 512, 1024)
    """
    return -(-size_bytes // MIN_BLOCK) * MIN_BLOCK
