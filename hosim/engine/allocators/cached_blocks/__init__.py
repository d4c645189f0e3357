"""The blocks and segments of the caching allocator, and which of its free blocks it takes or gives
back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.engine.allocators.cached_blocks.block_choice import (
        best_fit,
        oversize_blocks,
        stale_blocks,
    )
    from hosim.engine.allocators.cached_blocks.blocks import (
        Pool,
        Reservation,
        SegmentBlock,
        blocks_of,
        blocks_of_ranges,
        link,
        segment_of,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "block_choice": "best_fit oversize_blocks stale_blocks",
            "blocks": "Pool Reservation SegmentBlock blocks_of blocks_of_ranges link segment_of",
        },
    )

__all__ = [
    "Pool", "Reservation", "SegmentBlock", "best_fit", "blocks_of", "blocks_of_ranges", "link",
    "oversize_blocks", "segment_of", "stale_blocks",
]  # fmt: skip
