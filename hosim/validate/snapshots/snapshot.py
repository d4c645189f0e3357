"""hosim's caching allocator against a recorded one: every address, every segment allocated, every
segment freed.

`read_snapshot` reads what ``torch.cuda.memory._dump_snapshot`` wrote, `rewind` finds the state at
the start of its history, and `replay_snapshot` replays that history with the allocator and compares
each choice.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hosim.engine.allocators import (
    SHARED_POOL,
    AllocatorStats,
    CachingAllocator,
    Driver,
    PoolId,
    SegmentState,
)
from hosim.validate.snapshots.recording import Entry, Snapshot, parse_snapshot, read_snapshot
from hosim.validate.snapshots.rewind import rewind

__all__ = [
    "Mismatch",
    "Snapshot",
    "SnapshotReplay",
    "parse_snapshot",
    "read_snapshot",
    "replay_snapshot",
]

_UNLIMITED = 1 << 64
_OTHER_STREAM = -1


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A choice in which the allocator differs from the recorded one: the place in the history, and
    what it did instead.
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

    ``matched`` of ``allocations`` got the recorded address, ``segments_matched`` of
    ``segment_entries`` (segments and pages that came and went) were the allocator's own decision,
    too, and ``same_end`` says whether the segments and their blocks at the end are the recorded
    ones. ``start`` has the segments before the first entry, of which ``start_bytes`` were
    allocated. The curves have one value an entry, after it. ``stats`` are those at the end; its
    peaks include the start.
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

    The driver's part is taken from the recording: the addresses of new segments, and that it ran
    out of memory (which shows as cached segments given back); addresses for expandable segments are
    taken to be without end. That a segment is needed, its bytes, and which cached ones go back are
    the allocator's decisions. Raises `InputError` as `rewind` does.
    """
    device = snapshot.device(device)
    return _Replaying(snapshot, device).run()


class _RecordedDriver(Driver):
    """Gives the segments that the recorded driver gave, when the allocator asks for just those."""

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
            # Memory may have run out in the allocation that ends this. Then nothing cached served
            # it before, and no cached block was looked at again after others' work was waited for.
            # If something did, the program emptied the cache before it allocated. Where the history
            # begins in the midst of it, what the wait set free is cached already: the new segment
            # says that memory ran out.
            wanted = self._history[self._retries[index]]
            if index == 0 or not self._allocator.has_cached(
                wanted.size_bytes, wanted.stream, self._pool_of(wanted)
            ):
                self._unserved.add(self._retries[index])
        if entry.action == "alloc":
            cached = index not in self._unserved
            address = self._allocator.try_malloc(
                entry.size_bytes, entry.stream, self._pool_of(entry), cached=cached
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
            # Completion comes later: another stream's work has to pass first. Which stream it is,
            # the history does not say; nor, right before memory ran out, whether there was one.
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
        """Segments and pages given back together, from ``index`` on: all that are cached, or with
        some settings a part of them.
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
        """The private pool that the allocation was asked of: as recorded, else that of the segment
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
    """Return where an allocation may have run out of memory first: from the first of the entries
    that this made to the allocation.

    These are, right before it: blocks whose wait for other streams ended, then segments or pages
    given back, then new ones.
    """
    result = {}
    for index, entry in enumerate(history):
        if entry.action != "alloc":
            continue
        new = _back(history, index, ("segment_alloc", "segment_map"))
        given_back = _back(history, new, ("segment_free", "segment_unmap"))
        if given_back < new < index:
            start = _back(history, given_back, ("free_completed",))
            result[start] = index
    return result


def _back(history: tuple[Entry, ...], index: int, actions: tuple[str, ...]) -> int:
    """The first of the entries right before ``index`` that are all of these actions; ``index`` if
    there are none.
    """
    while index > 0 and history[index - 1].action in actions:
        index -= 1
    return index


def _outline(segments: tuple[SegmentState, ...]) -> object:
    """Return what has to agree at the end: every segment with its blocks, but not what was asked
    for in blocks that are free.
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
