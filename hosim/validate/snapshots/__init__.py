"""Snapshots of torch's allocator: a reader that runs no code of a pickle, and replays."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.validate.snapshots.memory_replay import (
        Curve,
        MemoryReplay,
        replay_history,
        replay_memory,
    )
    from hosim.validate.snapshots.plain_pickle import load_plain
    from hosim.validate.snapshots.recording import (
        AllocatorSettings,
        Entry,
        Snapshot,
        parse_snapshot,
        read_snapshot,
    )
    from hosim.validate.snapshots.reserved_replay import Change, most_growth, replay_from_nothing
    from hosim.validate.snapshots.snapshot import replay_snapshot
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "memory_replay": "Curve MemoryReplay replay_history replay_memory",
            "plain_pickle": "load_plain",
            "recording": "AllocatorSettings Entry Snapshot parse_snapshot read_snapshot",
            "reserved_replay": "Change most_growth replay_from_nothing",
            "snapshot": "replay_snapshot",
        },
    )

__all__ = [
    "AllocatorSettings", "Change", "Curve", "Entry", "MemoryReplay", "Snapshot", "load_plain",
    "most_growth", "parse_snapshot", "read_snapshot", "replay_from_nothing", "replay_history",
    "replay_memory", "replay_snapshot",
]  # fmt: skip
