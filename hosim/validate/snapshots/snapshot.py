"""hosim's caching allocator compared with a recorded one: every address, every segment allocated,
every segment freed.

`read_snapshot` reads the output of ``torch.cuda.memory._dump_snapshot``, `rewind` finds the state
at the start of its history, and `replay_snapshot` replays that history with the allocator and
compares each choice.
"""

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hosim.engine.allocators import (
    LARGE_SEGMENT,
    SHARED_POOL,
    SMALL_LIMIT,
    SMALL_SEGMENT,
    AllocatorStats,
    BlockState,
    CachingAllocator,
    Driver,
    PoolId,
    SegmentState,
    division_table,
    round_size,
)
from hosim.errors import InputError
from hosim.validate.snapshots.recording import (
    AllocatorSettings,
    Entry,
    Snapshot,
    parse_snapshot,
    read_snapshot,
)

_UNLIMITED = 1 << 64
_OTHER_STREAM = -1


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A choice in which the allocator differs from the recorded one: its position in the history,
    and the allocator's own choice.
    """

    index: int
    action: str
    address: int
    size_bytes: int
    stream: int
    instead: str


@dataclass(frozen=True, slots=True)
class SnapshotReplay:
    """The result of replaying a recorded history.

    ``matched`` of ``allocations`` got the recorded address. ``segments_matched`` of
    ``segment_entries`` (segments and pages that were added or removed) were the allocator's own
    decision, too. ``same_end`` is true if the segments and blocks at the end are the recorded ones.
    ``start`` has the segments before the first entry, of which ``start_bytes`` were allocated. The
    curves have one value for each entry, after it. ``stats`` are those at the end; their peaks
    include the start.
    """

    allocations: int
    matched: int
    segment_entries: int
    segments_matched: int
    same_end: bool
    mismatches: tuple[Mismatch, ...]
    start: tuple[SegmentState, ...]
    start_bytes: int
    times_us: npt.NDArray[np.int64]
    allocated_bytes: npt.NDArray[np.int64]
    reserved_bytes: npt.NDArray[np.int64]
    stats: AllocatorStats

    @property
    def exact(self) -> bool:
        """Return whether every choice equals the recorded one."""
        return not self.mismatches and self.same_end


def replay_snapshot(snapshot: Snapshot, device: int | None = None) -> SnapshotReplay:
    """Replay the history of ``device`` (default: the only one recorded) from its rewound start.

    The driver's part is taken from the recording: the addresses of new segments, and its failures
    for lack of memory (after which cached segments are given back). Addresses for expandable
    segments are assumed to be unlimited. The need for a segment, its bytes, and the cached segments
    to give back are the allocator's decisions. Raises `InputError` as `rewind` does.
    """
    device = snapshot.device(device)
    return _Replaying(snapshot, device).run()


class _RecordedDriver(Driver):
    """Returns the segments that the recorded driver gave, if the allocator requests
    exactly these.
    """

    def __init__(self) -> None:
        super().__init__()
        self.segments: list[tuple[int, Entry]] = []
        self.pages: list[tuple[int, Entry]] = []
        self.matched = 0
        self.unasked: list[str] = []

    def allocate(self, size: int, stream: int, pool_id: PoolId) -> int:
        for position, (_, entry) in enumerate(self.segments):
            if (entry.size_bytes, entry.stream) == (size, stream):
                del self.segments[position]
                self.matched += 1
                return entry.address
        self.unasked.append(f"asked for a segment of {size} bytes")
        return super().allocate(size, stream, pool_id)

    def reserve(self, size: int, stream: int, pool_id: PoolId) -> int:
        return next(
            (entry.address for _, entry in self.pages if entry.stream == stream), None
        ) or super().reserve(size, stream, pool_id)

    def map(self, address: int, size: int) -> None:
        for position, (_, entry) in enumerate(self.pages):
            if (entry.address, entry.size_bytes) == (address, size):
                del self.pages[position]
                self.matched += 1
                return
        self.unasked.append(f"mapped {size} bytes at {address}")


class _Replaying:
    def __init__(self, snapshot: Snapshot, device: int) -> None:
        settings = snapshot.settings
        self._history = snapshot.histories[device]
        self._end = snapshot.segments.get(device, ())
        self._partial = (
            bool(settings.garbage_collection_threshold) or settings.max_split_bytes is not None
        )
        self._driver = _RecordedDriver()
        self._allocator = CachingAllocator(
            _UNLIMITED,
            expandable=settings.expandable,
            max_split_bytes=settings.max_split_bytes,
            roundup_power2_divisions=settings.roundup_power2_divisions,
            driver=self._driver,
        )
        self._start = start = rewind(snapshot, device)
        self._allocator.restore(start)
        self._start_bytes = self._allocator.held_bytes[0]
        self._private = sorted(
            (segment.address, segment.address + segment.size_bytes, segment.pool_id)
            for segment in {segment.address: segment for segment in (*start, *self._end)}.values()
            if segment.pool_id != SHARED_POOL
        )
        self._where: dict[int, int] = {}
        self._waiting = {
            block.address for segment in start for block in segment.blocks if block.use == "pending"
        }
        self._released: set[int] = set()
        self._mismatches: list[Mismatch] = []
        self._matched = 0
        self._retries = _retries(self._history)
        self._unserved: set[int] = set()

    def run(self) -> SnapshotReplay:
        allocated = np.zeros(len(self._history), np.int64)
        reserved = np.zeros(len(self._history), np.int64)
        for index, entry in enumerate(self._history):
            self._step(index, entry)
            allocated[index], reserved[index] = self._allocator.held_bytes
        for index, entry in (*self._driver.segments, *self._driver.pages):
            self._differ(index, entry, "asked for none")
        counts = Counter(entry.action for entry in self._history)
        return SnapshotReplay(
            allocations=counts["alloc"],
            matched=self._matched,
            segment_entries=sum(
                counts[action]
                for action in ("segment_alloc", "segment_free", "segment_map", "segment_unmap")
            ),
            segments_matched=self._driver.matched,
            same_end=_outline(self._allocator.segments()) == _outline(self._end),
            mismatches=tuple(sorted(self._mismatches, key=lambda mismatch: mismatch.index)),
            start=self._start,
            start_bytes=self._start_bytes,
            times_us=np.fromiter(
                (entry.time_us for entry in self._history), np.int64, len(self._history)
            ),
            allocated_bytes=allocated,
            reserved_bytes=reserved,
            stats=self._allocator.stats,
        )

    def _step(self, index: int, entry: Entry) -> None:
        if index in self._retries:
            # Memory may have run out in the allocation that ends this. Then no cached block could
            # serve it before, and none was tried again after the wait for other streams. If one
            # could, the program had emptied the cache before it allocated. If the history begins in
            # the middle, the blocks that the wait freed are cached already: the new segment shows
            # that memory ran out.
            wanted = self._history[self._retries[index]]
            if index == 0 or not self._allocator.has_cached(
                wanted.size_bytes, wanted.stream, self._pool_of(wanted)
            ):
                self._unserved.add(self._retries[index])
        if entry.action == "alloc":
            address = self._allocator.try_malloc(
                entry.size_bytes,
                entry.stream,
                self._pool_of(entry),
                cached=index not in self._unserved,
            )
            assert address is not None  # there is no limit
            self._where[entry.address] = address
            instead = self._driver.unasked or (
                [f"chose address {address}"] if address != entry.address else []
            )
            self._matched += address == entry.address
            for text in instead:
                self._differ(index, entry, text)
            self._driver.unasked = []
        elif entry.action == "free_requested":
            self._free(index, entry)
        elif entry.action == "free_completed":
            self._complete(entry)
        elif entry.action == "segment_alloc":
            self._driver.segments.append((index, entry))
        elif entry.action == "segment_map":
            self._driver.pages.append((index, entry))
        elif entry.action in ("segment_free", "segment_unmap") and index not in self._released:
            self._release(index)

    def _free(self, index: int, entry: Entry) -> None:
        address = self._where.get(entry.address, entry.address)
        following = self._history[index + 1] if index + 1 < len(self._history) else None
        if (
            following is None
            or following.action != "free_completed"
            or following.address != entry.address
            or index + 1 in self._retries
        ):
            # Completion comes later, after another stream's work. The history does not say which
            # stream that is, nor, right before memory ran out, that there was one.
            self._allocator.record_stream(address, _OTHER_STREAM)
        self._allocator.free(address)
        self._waiting.add(entry.address)

    def _complete(self, entry: Entry) -> None:
        address = self._where.pop(entry.address, entry.address)
        if entry.address not in self._waiting:
            self._allocator.free(address)  # the request itself was not recorded
            return
        self._waiting.discard(entry.address)
        if self._allocator.waits(address):
            self._allocator.complete(address)

    def _release(self, index: int) -> None:
        """Release the segments and pages that were given back together, from ``index`` on: all that
        are cached or, with some settings, a part of them.
        """
        recorded: dict[tuple[int, int], tuple[int, Entry]] = {}
        position = index
        while position < len(self._history) and self._history[position].action in (
            "segment_free",
            "segment_unmap",
        ):
            entry = self._history[position]
            recorded[entry.address, entry.size_bytes] = (position, entry)
            self._released.add(position)
            position += 1
        releasable = set(self._allocator.releasable())
        for extent in recorded.keys() - releasable:
            self._differ(*recorded[extent], "had no such segment or pages cached")
        if not self._partial:
            for address, size in sorted(releasable - recorded.keys()):
                self._differ(
                    index, self._history[index], f"would also give back {size} bytes at {address}"
                )
        self._driver.matched += len(recorded.keys() & releasable)
        self._allocator.release(recorded.keys() & releasable)

    def _pool_of(self, entry: Entry) -> PoolId:
        """Return the private pool of an allocation: as recorded, or else that of the segment that
        it got.
        """
        if entry.pool_id is not None or not self._private:
            return entry.pool_id or SHARED_POOL
        position = bisect_right(self._private, (entry.address, _UNLIMITED << 20, SHARED_POOL)) - 1
        if position >= 0 and entry.address < self._private[position][1]:
            return self._private[position][2]
        return SHARED_POOL

    def _differ(self, index: int, entry: Entry, instead: str) -> None:
        self._mismatches.append(
            Mismatch(index, entry.action, entry.address, entry.size_bytes, entry.stream, instead)
        )


def _retries(history: tuple[Entry, ...]) -> dict[int, int]:
    """Return the allocations that may first have run out of memory, by the first of the entries
    that this caused.

    These entries come right before the allocation: blocks whose wait for other streams ended, then
    segments or pages that were given back, then new ones.
    """
    result = {}
    for index, entry in enumerate(history):
        if entry.action != "alloc":
            continue
        new = _back(history, index, ("segment_alloc", "segment_map"))
        given_back = _back(history, new, ("segment_free", "segment_unmap"))
        if given_back < new < index:
            result[_back(history, given_back, ("free_completed",))] = index
    return result


def _back(history: tuple[Entry, ...], index: int, actions: tuple[str, ...]) -> int:
    """Return the first of the entries right before ``index`` that all have these actions; ``index``
    if there are none.
    """
    while index > 0 and history[index - 1].action in actions:
        index -= 1
    return index


def _outline(segments: tuple[SegmentState, ...]) -> object:
    """Return the data that have to agree at the end: every segment with its blocks, but not the
    bytes requested in free blocks.
    """
    return sorted(
        (
            s.address,
            s.size_bytes,
            s.stream,
            s.small,
            s.pool_id,
            [(b.address, b.size_bytes, b.use) for b in s.blocks],
        )
        for s in segments
    )


# -- the state at the start of a history -----------------------------------------------------------
# The segments at its end, with every entry undone in reverse.
#
# The size of a block, beyond the requested bytes, follows from the allocator's rules. A block of
# the large pool keeps a rest of up to 1 MiB unsplit, so a free block there is never that small, and
# such a gap after a held block belongs to it. If more was free behind it, its end becomes known
# when the next block returns, or when one was allocated right behind it.


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
    """Return the segments of ``device`` (default: the only one recorded) before the first entry of
    its history, by address.

    Raises `InputError` if the history does not lead to the segments at its end, for example if
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
    """Ranges and held blocks by address, as time goes backwards."""

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
        """Undo the entry at ``index``; those after it are undone already."""
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
        """Return the current state, with free blocks between the held ones."""
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
            result.append(
                SegmentState(
                    start,
                    range_.size,
                    stream,
                    small,
                    tuple(blocks),
                    range_.expandable,
                    pool_id,
                    self._bases[range_.kind] if range_.expandable else None,
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

    def _at(self, index: int) -> _Range | None:
        return self._ranges[self._starts[index]] if 0 <= index < len(self._starts) else None

    def _range_at(self, address: int, size: int) -> _Range:
        range_ = self._at(bisect_right(self._starts, address) - 1)
        if range_ is None or address + size > range_.end:
            raise InputError(
                f"expected a segment from {address} to {address + size}, but later entries say "
                "there is none"
            )
        return range_

    def _hold(self, entry: Entry) -> None:
        """Hold a freed block again: over the requested bytes, and over the rest if that is too
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
        """Add a segment again, or map pages again (and join them with adjacent ones)."""
        index = bisect_left(self._starts, range_.address)
        for neighbour in (index - 1, index):
            other = self._at(neighbour)
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
                other = self._at(neighbour)
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
        """Remove a segment that was not allocated yet, or unmap pages that were not mapped yet."""
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
            # the first page of the segment: an earlier segment may have another address
            del self._bases[range_.kind]


def _small_pages(history: Sequence[Entry], index: int) -> bool:
    """Return whether the pages unmapped by the entry at ``index`` belonged to the small pool: 2 MiB
    each, instead of 20 MiB in the large one.
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


__all__ = [
    "Mismatch",
    "Snapshot",
    "SnapshotReplay",
    "parse_snapshot",
    "read_snapshot",
    "replay_snapshot",
]
