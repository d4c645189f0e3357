"""Reader of recordings of PyTorch's caching allocator (``torch.cuda.memory._snapshot``).

A snapshot holds the segments at the end of a recording and the *history*: allocations and frees of
blocks and of segments.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from hosim.base.files import check_json, read_bytes
from hosim.base.whole_numbers import whole
from hosim.engine.allocators import SHARED_POOL, BlockState, BlockUse, PoolId, SegmentState
from hosim.errors import InputError
from hosim.plain_text import shown
from hosim.validate.snapshots.plain_pickle import load_plain

Action = Literal[
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "oom",
    "snapshot",
    "user_defined",
]
_ACTIONS = frozenset(get_args(Action))
_WITHOUT_ADDRESS = ("oom", "snapshot", "user_defined")
_USES: Mapping[str, BlockUse] = {
    "active_allocated": "allocated",
    "active_pending_free": "pending",
    "active_awaiting_free": "pending",
    "inactive": "free",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a history. ``size_bytes`` is the requested size (for a segment, its size);
    ``pool_id`` is None if not recorded.
    """

    action: Action
    address: int
    size_bytes: int
    stream: int
    time_us: int = 0
    pool_id: PoolId | None = None


@dataclass(frozen=True, slots=True)
class AllocatorSettings:
    """The allocator's settings at the end of the recording, named like the keyword arguments of
    `CachingAllocator`.
    """

    expandable: bool = False
    max_split_bytes: int | None = None
    garbage_collection_threshold: float = 0.0
    roundup_power2_divisions: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The segments at the end, by device, and the history of each device, by its index."""

    segments: Mapping[int, tuple[SegmentState, ...]]
    histories: tuple[tuple[Entry, ...], ...]
    settings: AllocatorSettings = AllocatorSettings()

    def device(self, device: int | None) -> int:
        """Return ``device`` or, if it is None, the only device with a history (else with segments).
        Raises `InputError` if there is no such device.
        """
        recorded = (
            [index for index, history in enumerate(self.histories) if history]
            or sorted(self.segments)
            or [0]
        )
        if device is None:
            if len(recorded) != 1:
                raise InputError(
                    f"expected a recording of one device, got one of {recorded}: name the device"
                )
            return recorded[0]
        if not 0 <= device < len(self.histories):
            raise InputError(f"expected a device below {len(self.histories)}, got {device}")
        return device


_LARGEST = (1 << 62) - 1
_LARGEST_SIZE = 1 << 42
"""The largest size of a segment or a block, so that sums over a whole history stay
below 64 bits.
"""


def read_snapshot(path: Path | str) -> Snapshot:
    """Return the snapshot in a file: JSON, or a pickle of plain containers as
    ``torch.cuda.memory._dump_snapshot`` writes it; gzipped or not.

    Raises `InputError` if it is neither, not a snapshot, or beyond the limits. No code in a pickle
    is ever executed.
    """
    path = Path(path)
    data = read_bytes(str(path))
    is_json = data[:1] in b"{[ \n\t\r"
    if is_json:
        check_json(data, str(path))
    try:
        raw = json.loads(data) if is_json else load_plain(data)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"expected a memory snapshot (JSON, or a pickle of plain containers): {error}",
            source=str(path),
        ) from error
    except InputError as error:
        raise InputError(
            f"expected a memory snapshot (JSON, or a pickle of plain containers): {error.message}",
            source=str(path),
        ) from None
    return parse_snapshot(raw, source=str(path), largest=len(data))


def parse_snapshot(
    raw: object, *, source: str | None = None, largest: int | None = None
) -> Snapshot:
    """Return the snapshot in the dict of ``torch.cuda.memory._snapshot``. Raises `InputError`, with
    the path of the error.

    ``largest`` bounds the number of blocks and entries: a pickle can repeat a list without writing
    it again.
    """
    where = ""
    try:
        if not isinstance(raw, dict):
            raise TypeError(f"expected a mapping, got {type(raw).__name__}")
        listed = 0
        segments: dict[int, list[SegmentState]] = {}
        for index, segment in enumerate(raw["segments"]):
            where = f"segments[{index}]"
            listed = _count(listed, segment["blocks"], largest)
            segments.setdefault(int(segment.get("device", 0)), []).append(_segment(segment))
        histories = []
        for device, trace in enumerate(raw["device_traces"]):
            where, history = f"device_traces[{device}]", []
            listed = _count(listed, trace, largest)
            for index, entry in enumerate(trace):
                where = f"device_traces[{device}][{index}]"
                history.append(_entry(entry))
            histories.append(tuple(history))
        where = "allocator_settings"
        settings = _settings(raw.get("allocator_settings") or {})
    except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        problem = f"expected the key {error}" if isinstance(error, KeyError) else str(error)
        raise InputError(problem, source=source, where=where or None) from error
    return Snapshot(
        {device: tuple(states) for device, states in segments.items()}, tuple(histories), settings
    )


def _count(listed: int, more: Sequence[object], largest: int | None) -> int:
    listed += len(more)
    if largest is not None and listed > largest:
        raise ValueError(
            f"expected no more than {largest} blocks and entries in a file of as many bytes"
        )
    return listed


def _segment(raw: Mapping[str, Any]) -> SegmentState:
    blocks = []
    end = _number(raw["address"])
    for block in raw["blocks"]:
        size = _size(block["size"])
        if block["state"] not in _USES:
            raise ValueError(
                f"expected a block state of {', '.join(_USES)}, got {block['state']!r}"
            )
        blocks.append(
            BlockState(
                _number(block.get("address", end)),
                size,
                _USES[block["state"]],
                _size(block.get("requested_size", size)),
            )
        )
        end += size
    if raw["segment_type"] not in ("small", "large"):
        raise ValueError(f"expected a segment_type 'small' or 'large', got {raw['segment_type']!r}")
    return SegmentState(
        address=_number(raw["address"]),
        size_bytes=_size(raw["total_size"]),
        stream=_number(raw["stream"]),
        small=raw["segment_type"] == "small",
        blocks=tuple(blocks),
        expandable=bool(raw.get("is_expandable", False)),
        pool_id=_pool_id(raw.get("segment_pool_id")) or SHARED_POOL,
    )


def _entry(raw: Mapping[str, Any]) -> Entry:
    action = raw["action"]
    if action not in _ACTIONS:
        raise ValueError(f"expected an action of {', '.join(sorted(_ACTIONS))}, got {action!r}")
    return Entry(
        action,
        _number(raw["addr"]) if "addr" in raw or action not in _WITHOUT_ADDRESS else 0,
        _size(raw["size"]),
        _number(raw["stream"]),
        _number(raw.get("time_us", 0)),
        _pool_id(raw.get("pool_id")),
    )


def _pool_id(raw: Iterable[int] | None) -> PoolId | None:
    if raw is None:
        return None
    first, second = raw
    return _number(first), _number(second)


def _number(value: Any) -> int:
    """Return an address, a time or another number of at most 62 bits."""
    found = whole(value)
    if found is None or not -_LARGEST <= found <= _LARGEST:
        raise ValueError(f"expected a whole number of at most 62 bits, got {shown(value, 40)}")
    return found


def _size(value: Any) -> int:
    found = whole(value)
    if found is None or not 0 <= found <= _LARGEST_SIZE:
        raise ValueError(f"expected a size from 0 to {_LARGEST_SIZE} bytes, got {shown(value, 40)}")
    return found


def _settings(raw: Mapping[str, Any]) -> AllocatorSettings:
    divisions = raw.get("roundup_power2_divisions") or {}
    max_split = int(raw.get("max_split_size", -1))
    return AllocatorSettings(
        expandable=bool(raw.get("expandable_segments", False)),
        max_split_bytes=max_split if 0 < max_split < 1 << 62 else None,
        garbage_collection_threshold=float(raw.get("garbage_collection_threshold", 0.0)),
        roundup_power2_divisions={int(mib): int(count) for mib, count in divisions.items()},
    )
