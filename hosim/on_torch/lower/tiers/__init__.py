"""Bytes in tiers while a plan runs: transfers, files, pinned host memory, and what is resident."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.on_torch.lower.tiers.chunks import Chunks, copy_ways, tiers_used
    from hosim.on_torch.lower.tiers.file_tier import (
        ALIGNMENT,
        CHUNK_BYTES,
        DeviceBytes,
        FileBlock,
        FileTier,
        HostBytes,
        copy_bytes,
        part_of,
    )
    from hosim.on_torch.lower.tiers.host_pool import (
        SLAB_BYTES,
        HostPool,
        memory_of_tiers,
        shrink_host_memory,
    )
    from hosim.on_torch.lower.tiers.measured_timeline import measured, timeline_of
    from hosim.on_torch.lower.tiers.residents import Residents, TensorCopies, resizable
    from hosim.on_torch.lower.tiers.transfers import (
        Device,
        Done,
        Event,
        Label,
        Origin,
        Place,
        RunMemory,
        TierBlock,
        in_one_line,
        unlike,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "chunks": "Chunks copy_ways tiers_used",
            "file_tier": "ALIGNMENT CHUNK_BYTES DeviceBytes FileBlock FileTier HostBytes "
            "copy_bytes part_of",
            "host_pool": "SLAB_BYTES HostPool memory_of_tiers shrink_host_memory",
            "measured_timeline": "measured timeline_of",
            "residents": "Residents TensorCopies resizable",
            "transfers": "Device Done Event Label Origin Place RunMemory TierBlock in_one_line "
            "unlike",
        },
    )

__all__ = [
    "ALIGNMENT", "CHUNK_BYTES", "SLAB_BYTES", "Chunks", "Device", "DeviceBytes", "Done", "Event",
    "FileBlock", "FileTier", "HostBytes", "HostPool", "Label", "Origin", "Place", "Residents",
    "RunMemory", "TensorCopies", "TierBlock", "copy_bytes", "copy_ways", "in_one_line", "measured",
    "memory_of_tiers", "part_of", "resizable", "shrink_host_memory", "tiers_used", "timeline_of",
    "unlike",
]  # fmt: skip
