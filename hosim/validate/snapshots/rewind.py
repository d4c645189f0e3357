"""The state at the start of a recorded history: the segments at its end, with every entry undone in
reverse.

What a block was, beyond the bytes asked for, follows from the allocator's rules: a block of the
large pool keeps a rest of up to 1 MiB unsplit, so free bytes are never that few there, and so few
after a held block belong to it. How far it reached when more was free behind it shows when the next
block comes back, or when one was allocated right behind it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from hosim.engine.allocators import (
    LARGE_SEGMENT,
    SHARED_POOL,
    SMALL_LIMIT,
    SMALL_SEGMENT,
    BlockState,
    PoolId,
    SegmentState,
    division_table,
    round_size,
)
from hosim.errors import InputError
from hosim.validate.snapshots.recording import AllocatorSettings, Entry, Snapshot

_Kind = tuple[PoolId, bool, int]


@dataclass(slots=True)
class _Range:
    """A segment, or a mapped range of an expandable one."""

    address: int
    size: int
    kind: _Kind
    expandable: bool

    @property
    def end(self) -> int:
        return self.address + self.size


def rewind(snapshot: Snapshot, device: int | None = None) -> tuple[SegmentState, ...]:
    """The segments of ``device`` (default: the only one recorded) before the first entry of its
    history, by address.

    Raises `InputError` if the history does not lead to the segments at its end, such as when
    entries are missing.
    """
    device = snapshot.device(device)
    history = snapshot.histories[device]
    state = _Rewinding(snapshot.segments.get(device, ()), snapshot.settings)
    for index in range(len(history) - 1, -1, -1):
        try:
            state.undo(history, index)
        except InputError as error:
            raise InputError(error.message, where=f"device_traces[{device}][{index}]") from None
    return state.segments()


class _Rewinding:
    """Ranges and held blocks by address, going back in time."""

    def __init__(self, segments: Iterable[SegmentState], settings: AllocatorSettings) -> None:
        self._divisions = division_table(settings.roundup_power2_divisions)
        self._oversize = settings.max_split_bytes
        self._splits_all = settings.expandable
        self._ranges: dict[int, _Range] = {}
        self._starts: list[int] = []
        self._blocks: dict[int, BlockState] = {}
        self._held: list[int] = []
        self._bases: dict[_Kind, int] = {}
        for segment in segments:
            kind = (segment.pool_id, segment.small, segment.stream)
            self._add(_Range(segment.address, segment.size_bytes, kind, segment.expandable))
            for block in segment.blocks:
                if block.use != "free":
                    insort(self._held, block.address)
                    self._blocks[block.address] = block

    def undo(self, history: Sequence[Entry], index: int) -> None:
        """Undo the entry at ``index``, those after it being undone."""
        entry = history[index]
        if entry.action == "alloc":
            self._block(entry)
            del self._blocks[entry.address]
            del self._held[bisect_left(self._held, entry.address)]
        elif entry.action == "free_requested":
            self._blocks[entry.address] = replace(self._block(entry), use="allocated")
        elif entry.action == "free_completed":
            self._hold(entry)
        elif entry.action in ("segment_alloc", "segment_map"):
            self._remove(entry)
        elif entry.action in ("segment_free", "segment_unmap"):
            expandable = entry.action == "segment_unmap"
            small = (
                _small_pages(history, index) if expandable else entry.size_bytes == SMALL_SEGMENT
            )
            kind = (entry.pool_id or SHARED_POOL, small, entry.stream)
            self._add(_Range(entry.address, entry.size_bytes, kind, expandable))

    def segments(self) -> tuple[SegmentState, ...]:
        """The state now, free blocks filled in between the held ones."""
        result = []
        for start in self._starts:
            range_ = self._ranges[start]
            blocks: list[BlockState] = []
            end = start
            for address in self._held[
                bisect_left(self._held, start) : bisect_left(self._held, range_.end)
            ]:
                block = self._blocks[address]
                if end < address:
                    blocks.append(BlockState(end, address - end, "free"))
                blocks.append(block)
                end = address + block.size_bytes
            if end < range_.end:
                blocks.append(BlockState(end, range_.end - end, "free"))
            pool_id, small, stream = range_.kind
            base = self._bases[range_.kind] if range_.expandable else None
            result.append(
                SegmentState(
                    start,
                    range_.size,
                    stream,
                    small,
                    tuple(blocks),
                    range_.expandable,
                    pool_id,
                    base,
                )
            )
        return tuple(result)

    def _block(self, entry: Entry) -> BlockState:
        block = self._blocks.get(entry.address)
        if block is None:
            raise InputError(
                f"expected a block held at address {entry.address} after this {entry.action}, but "
                "later entries say none is"
            )
        return block

    def _range_at(self, address: int, size: int) -> _Range:
        index = bisect_right(self._starts, address) - 1
        range_ = self._ranges[self._starts[index]] if index >= 0 else None
        if range_ is None or address + size > range_.end:
            raise InputError(
                f"expected a segment from {address} to {address + size}, but later entries say "
                "there is none"
            )
        return range_

    def _hold(self, entry: Entry) -> None:
        """A freed block is held again: over as much as was asked for, and the rest if that is too
        small to have been split off.
        """
        size = round_size(entry.size_bytes, self._divisions)
        range_ = self._range_at(entry.address, size)
        _, small, _ = range_.kind
        index = bisect_left(self._held, entry.address)
        limit = min(self._held[index], range_.end) if index < len(self._held) else range_.end
        rest = limit - entry.address - size
        if rest < 0:
            raise InputError(
                f"expected {size} bytes free at address {entry.address}, got "
                f"{limit - entry.address}"
            )
        unsplit = 0 if small or self._splits_all else SMALL_LIMIT
        if rest <= unsplit or (
            self._oversize is not None and min(size, range_.size) >= self._oversize
        ):
            size += rest
        if index > 0 and unsplit:
            before = self._blocks[self._held[index - 1]]
            gap = entry.address - before.address - before.size_bytes
            if before.address >= range_.address and 0 < gap <= unsplit:
                self._blocks[before.address] = replace(before, size_bytes=before.size_bytes + gap)
        self._held.insert(index, entry.address)
        self._blocks[entry.address] = BlockState(entry.address, size, "pending", entry.size_bytes)

    def _add(self, range_: _Range) -> None:
        """A segment is there again, or pages are mapped again (and join those on either side)."""
        index = bisect_left(self._starts, range_.address)
        for neighbour in (index - 1, index):
            other = (
                self._ranges[self._starts[neighbour]]
                if 0 <= neighbour < len(self._starts)
                else None
            )
            if other is not None and other.address < range_.end and range_.address < other.end:
                raise InputError(
                    f"two segments overlap: one at address {range_.address}, the other at "
                    f"{other.address}"
                )
        if range_.expandable:
            self._bases[range_.kind] = min(
                range_.address, self._bases.get(range_.kind, range_.address)
            )
            for neighbour in (index, index - 1):
                other = (
                    self._ranges[self._starts[neighbour]]
                    if 0 <= neighbour < len(self._starts)
                    else None
                )
                if other is None or not other.expandable or other.kind != range_.kind:
                    continue
                if other.address == range_.end or other.end == range_.address:
                    range_ = _Range(
                        min(other.address, range_.address),
                        range_.size + other.size,
                        range_.kind,
                        expandable=True,
                    )
                    del self._ranges[other.address], self._starts[neighbour]
        insort(self._starts, range_.address)
        self._ranges[range_.address] = range_

    def _remove(self, entry: Entry) -> None:
        """A segment is not there yet, or pages are not mapped yet."""
        range_ = self._range_at(entry.address, entry.size_bytes)
        end = entry.address + entry.size_bytes
        if bisect_left(self._held, entry.address) < bisect_left(self._held, end):
            raise InputError(
                f"expected nothing held in the segment at address {entry.address} when it was new"
            )
        if entry.action == "segment_alloc" and (entry.address, end) != (range_.address, range_.end):
            raise InputError(
                f"expected a segment of {range_.size} bytes at {range_.address}, got "
                f"{entry.size_bytes} at {entry.address}"
            )
        del self._ranges[range_.address]
        self._starts.remove(range_.address)
        for address, stop in ((range_.address, entry.address), (end, range_.end)):
            if address < stop:
                insort(self._starts, address)
                self._ranges[address] = _Range(
                    address, stop - address, range_.kind, range_.expandable
                )
        if range_.expandable and not any(
            other.kind == range_.kind and other.expandable for other in self._ranges.values()
        ):
            del self._bases[
                range_.kind
            ]  # the first page of the segment: an earlier one may lie elsewhere


def _small_pages(history: Sequence[Entry], index: int) -> bool:
    """Return whether the pages unmapped by the entry at ``index`` were of the small pool: 2 MiB
    each, where the large one has 20 MiB.
    """
    unmapped = history[index]
    if unmapped.size_bytes % LARGE_SEGMENT:
        return True
    for entry in reversed(history[:index]):
        if (
            unmapped.address <= entry.address < unmapped.address + unmapped.size_bytes
            and entry.stream == unmapped.stream
        ):
            if entry.action == "segment_map":
                return entry.size_bytes % LARGE_SEGMENT != 0
            if entry.action in ("alloc", "free_requested", "free_completed"):
                return entry.size_bytes <= SMALL_LIMIT
    return False
