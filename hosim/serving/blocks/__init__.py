"""Blocks of the KV cache: their pool, their tiers, the policies for them, and copies on channels
and links.
"""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.serving.blocks.block_copies import (
        Awaited,
        BlockCopies,
        EngineChannels,
        Peers,
        when_over,
    )
    from hosim.serving.blocks.block_pool import BlockPool, Reach
    from hosim.serving.blocks.kv_figures import (
        HandOvers,
        KvChannelFigures,
        KvFigures,
        SparseFigures,
        channel_figures,
        kv_figures,
    )
    from hosim.serving.blocks.kv_links import KvLink, KvTransfers, kv_link, unlike_link
    from hosim.serving.blocks.kv_policies import KV_POLICIES, KvPolicy, kv_policy
    from hosim.serving.blocks.kv_setups import KvSetup, engines_per_host, kv_setup
    from hosim.serving.blocks.links import SteppedClock
    from hosim.serving.blocks.sparse_reading import AttendedTokens, SparseReads, sparse_reads
    from hosim.serving.blocks.tiered_pool import TieredPool
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "block_copies": "Awaited BlockCopies EngineChannels Peers when_over",
            "block_pool": "BlockPool Reach",
            "kv_figures": "HandOvers KvChannelFigures KvFigures SparseFigures channel_figures "
            "kv_figures",
            "kv_links": "KvLink KvTransfers kv_link unlike_link",
            "kv_policies": "KV_POLICIES KvPolicy kv_policy",
            "kv_setups": "KvSetup engines_per_host kv_setup",
            "links": "SteppedClock",
            "sparse_reading": "AttendedTokens SparseReads sparse_reads",
            "tiered_pool": "TieredPool",
        },
    )

__all__ = [
    "KV_POLICIES", "AttendedTokens", "Awaited", "BlockCopies", "BlockPool", "EngineChannels",
    "HandOvers", "KvChannelFigures", "KvFigures", "KvLink", "KvPolicy", "KvSetup", "KvTransfers",
    "Peers", "Reach", "SparseFigures", "SparseReads", "SteppedClock", "TieredPool", "channel_figures",
    "engines_per_host", "kv_figures", "kv_link", "kv_policy", "kv_setup", "sparse_reads",
    "unlike_link", "when_over",
]  # fmt: skip
