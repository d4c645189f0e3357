"""Allocators: where in device memory bytes lie, and what that takes beyond the bytes themselves.
They know nothing of the engine.
"""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.engine.allocators.blocks import (
        Pool,
        Reservation,
        SegmentBlock,
        best_fit,
        oversize_blocks,
    )
    from hosim.engine.allocators.caching import CachingAllocator
    from hosim.engine.allocators.sizes import (
        LARGE_SEGMENT,
        SMALL_LIMIT,
        SMALL_SEGMENT,
        division_table,
        round_size,
    )
    from hosim.engine.allocators.state import (
        SHARED_POOL,
        AllocatorStats,
        BlockState,
        BlockUse,
        Driver,
        PoolId,
        SegmentState,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "blocks": "Pool Reservation SegmentBlock best_fit oversize_blocks",
            "caching": "CachingAllocator",
            "sizes": "LARGE_SEGMENT SMALL_LIMIT SMALL_SEGMENT division_table round_size",
            "state": "SHARED_POOL AllocatorStats BlockState BlockUse Driver PoolId SegmentState",
        },
    )

__all__ = [
    "LARGE_SEGMENT", "SHARED_POOL", "SMALL_LIMIT", "SMALL_SEGMENT", "AllocatorStats", "BlockState",
    "BlockUse", "CachingAllocator", "Driver", "Pool", "PoolId", "Reservation", "SegmentBlock",
    "SegmentState", "best_fit", "division_table", "oversize_blocks", "round_size",
]  # fmt: skip
