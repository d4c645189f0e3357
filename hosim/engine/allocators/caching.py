"""PyTorch's CUDA caching allocator, as published: which address it gives, what it reserves, when it
fails.

The rules are those of ``c10/cuda/CUDACachingAllocator.cpp`` (pytorch/pytorch); the code is hosim's
own. In short:

* A request is rounded to 512 B, or to a part of a power of two (``roundup_power2_divisions``). Up
  to 1 MiB the *small* pool serves it, above that the *large* one.
* A pool serves it from the free block of the same stream that fits best (smallest, then lowest
  address). The block is split if the rest is at least 512 B (small pool, or expandable segments) or
  more than 1 MiB (large pool).
* If none fits, a new *segment* comes from the driver: 2 MiB (small), 20 MiB (large, below 10 MiB),
  else the request rounded to 2 MiB.
* If the driver has no room, cached segments go back to it and it is asked again: first oversize
  ones (``max_split_bytes``), then all.
* A freed block merges with its free neighbours. One that other streams used is free only once their
  work has passed.
* Expandable segments reserve addresses for 9/8 of the device, and map pages of 2 MiB (small) or 20
  MiB (large) as they grow.

Sizes are bytes; streams and addresses are integers. Nothing here knows of time, nor of the engine.
"""

from collections.abc import Collection, Iterable, Mapping

from hosim.data.allocator_blocks import MIN_BLOCK
from hosim.engine.allocators.blocks import (
    Pool,
    Reservation,
    SegmentBlock,
    best_fit,
    blocks_of,
    blocks_of_ranges,
    link,
    oversize_blocks,
    segment_of,
)
from hosim.engine.allocators.sizes import (
    LARGE_SEGMENT,
    PLAIN,
    SMALL_LIMIT,
    SMALL_SEGMENT,
    division_table,
    round_size,
    segment_size,
)
from hosim.engine.allocators.state import (
    SHARED_POOL,
    AllocatorStats,
    Driver,
    PoolId,
    SegmentState,
    out_of_memory,
)
from hosim.errors import InputError

_NEVER_OVERSIZE = 1 << 63


class CachingAllocator:
    """The allocator of one device, whose driver has ``capacity_bytes`` for segments.

    ``expandable`` is PyTorch's ``expandable_segments``, ``max_split_bytes`` its
    ``max_split_size_mb``: blocks of this size or more are never split, and serve only requests of
    this size or more, to which they may add less than 20 MiB. ``roundup_power2_divisions``: see
    `division_table`. ``driver`` says where segments come from. PyTorch's
    ``garbage_collection_threshold`` is not modelled.
    """

    def __init__(
        self,
        capacity_bytes: int,
        *,
        expandable: bool = False,
        max_split_bytes: int | None = None,
        roundup_power2_divisions: int | Mapping[int, int] = 0,
        driver: Driver | None = None,
    ) -> None:
        if capacity_bytes < 0:
            raise InputError(
                f"expected at least 0 bytes, got {capacity_bytes}", where="capacity_bytes"
            )
        if max_split_bytes is not None and max_split_bytes <= LARGE_SEGMENT:
            raise InputError(
                f"expected more than {LARGE_SEGMENT} bytes (20 MiB), got {max_split_bytes}",
                where="max_split_bytes",
            )
        self._capacity = capacity_bytes
        self._expandable = expandable
        self._oversize = _NEVER_OVERSIZE if max_split_bytes is None else max_split_bytes
        self._divisions = division_table(roundup_power2_divisions)
        self._plain = self._divisions == PLAIN
        self._driver = driver or Driver()
        self._pools: dict[tuple[PoolId, bool], Pool] = {}
        self._held: dict[int, SegmentBlock] = {}
        self._pending: dict[int, SegmentBlock] = {}
        self._allocated = self._active = self._requested = self._reserved = 0
        self._peak_allocated = self._peak_active = self._peak_reserved = 0
        self._reserved_at_peak = self._largest_free_at_peak = 0
        self._segments = self._device_frees = self._retries = self._failures = 0

    # --- what a program calls
    # -------------------------------------------------------------------------------------

    def malloc(self, size_bytes: int, stream: int = 0, pool_id: PoolId = SHARED_POOL) -> int:
        """Allocate ``size_bytes`` on ``stream`` and return the address (0 for 0 bytes, which take
        nothing).

        Raises `InfeasibleError` when out of memory, even after all that is cached went back to the
        driver.
        """
        address = self.try_malloc(size_bytes, stream, pool_id)
        if address is None:
            raise out_of_memory(size_bytes, self.stats)
        return address

    def try_malloc(
        self,
        size_bytes: int,
        stream: int = 0,
        pool_id: PoolId = SHARED_POOL,
        *,
        cached: bool = True,
    ) -> int | None:
        """As `malloc`, but None where that raises. The failure still counts, and what was cached is
        gone.

        Without ``cached`` it takes new memory from the driver even if a cached block would do, as
        PyTorch does on its second try.
        """
        if size_bytes <= 0:
            if size_bytes < 0:
                raise InputError(f"expected at least 0 bytes, got {size_bytes}", where="size_bytes")
            return 0
        size = (
            -(-size_bytes // MIN_BLOCK) * MIN_BLOCK
            if self._plain
            else round_size(size_bytes, self._divisions)
        )
        pool = self._pool(pool_id, small=size <= SMALL_LIMIT)
        block = self._best(pool, size, stream) if cached else None
        if block is not None:
            pool.remove(block)
        else:
            block = self._grow_or_release(pool, size, stream)
        if block is None:
            self._failures += 1
            return None
        rest = block.size - size
        if (
            rest >= MIN_BLOCK
            if pool.small or self._expandable
            else rest > SMALL_LIMIT and size < self._oversize
        ):
            pool.add(block.split(size))
        block.use = "allocated"
        block.requested = size_bytes
        self._held[block.address] = block
        self._count(block)
        return block.address

    def free(self, address: int) -> None:
        """Free the block at ``address``. If other streams used it, it stays active until their work
        has passed.

        Raises `InputError` if nothing is allocated there.
        """
        if address == 0:
            return
        block = self._allocated_block(address)
        self._allocated -= block.size
        if block.streams:
            block.use = "pending"
            self._pending[address] = block
        else:
            self._free_block(block)

    def record_stream(self, address: int, stream: int) -> None:
        """Say that ``stream`` uses the block at ``address``, which is another stream's (its own is
        ignored).
        """
        block = self._allocated_block(address)
        if stream != block.stream:
            block.streams = (block.streams or set()) | {stream}

    def synchronize(self, stream: int | None = None) -> None:
        """The work now on ``stream`` (None: on any) has passed: freed blocks that waited only for
        it become free, in order of freeing.
        """
        for address, block in list(self._pending.items()):
            waits = block.streams or set()
            if stream is None or waits == {stream}:
                self.complete(address)
            else:
                waits.discard(stream)

    def complete(self, address: int) -> None:
        """The other streams' work on the freed block at ``address`` has passed: it becomes free.

        Raises `InputError` if no freed block waits there.
        """
        block = self._pending.pop(address, None)
        if block is None:
            raise InputError(f"no freed block waits for a stream at address {address}")
        self._free_block(block)

    def empty_cache(self) -> None:
        """Give every cached segment in which no block is held (of expandable ones: every such page)
        back to the driver.
        """
        self.synchronize()
        self.release()

    # --- what reports and replays need
    # ----------------------------------------------------------------------------

    @property
    def stats(self) -> AllocatorStats:
        """The counters now. Takes time in proportion to the pools and streams, not to the
        blocks.
        """
        return AllocatorStats(
            capacity_bytes=self._capacity,
            allocated_bytes=self._allocated,
            active_bytes=self._active,
            requested_bytes=self._requested,
            reserved_bytes=self._reserved,
            peak_allocated_bytes=self._peak_allocated,
            peak_active_bytes=self._peak_active,
            peak_reserved_bytes=self._peak_reserved,
            reserved_at_peak_bytes=self._reserved_at_peak,
            largest_free_at_peak_bytes=self._largest_free_at_peak,
            largest_free_bytes=self._largest_free(),
            inactive_split_bytes=sum(pool.split_bytes for pool in self._pools.values()),
            segments=self._segments,
            device_frees=self._device_frees,
            retries=self._retries,
            failures=self._failures,
        )

    @property
    def held_bytes(self) -> tuple[int, int]:
        """(allocated, reserved) bytes now."""
        return self._allocated, self._reserved

    def has_cached(self, size_bytes: int, stream: int = 0, pool_id: PoolId = SHARED_POOL) -> bool:
        """Return whether a cached block would serve the request, without asking the driver for
        memory.
        """
        size = round_size(size_bytes, self._divisions)
        return self._best(self._pool(pool_id, small=size <= SMALL_LIMIT), size, stream) is not None

    def waits(self, address: int) -> bool:
        """Return whether a block at ``address`` was freed but waits for another stream."""
        return address in self._pending

    def block_bytes(self, address: int) -> int:
        """The bytes of the block allocated at ``address``, rounding and unsplit rest included."""
        return self._allocated_block(address).size

    def segments(self) -> tuple[SegmentState, ...]:
        """The state at rest, by address; `restore` takes it back."""
        blocks = [*self._held.values(), *(block for pool in self._pools.values() for block in pool)]
        heads = (block for block in blocks if block.prev is None or not block.prev.mapped)
        return tuple(sorted(map(segment_of, heads), key=lambda segment: segment.address))

    def restore(self, segments: Iterable[SegmentState]) -> None:
        """Start from ``segments`` instead of from nothing. Peaks start at what is held there.

        Raises `InputError` if the blocks of a segment do not fill it, or if something is already
        reserved.
        """
        if self._reserved:
            raise InputError(
                f"expected a new allocator to restore, got one with {self._reserved} bytes reserved"
            )
        expandable: dict[tuple[PoolId, bool, int, int], list[SegmentState]] = {}
        for segment in sorted(segments, key=lambda segment: segment.address):
            self._driver.avoid(segment.address + segment.size_bytes)
            if segment.expandable:
                base = segment.address if segment.base is None else segment.base
                expandable.setdefault(
                    (segment.pool_id, segment.small, segment.stream, base), []
                ).append(segment)
            else:
                self._segments += 1
                self._adopt(blocks_of(segment, self._pool(segment.pool_id, small=segment.small)))
        for (pool_id, small, _, base), ranges in expandable.items():
            pool = self._pool(pool_id, small=small)
            self._adopt(blocks_of_ranges(ranges, pool, self._reservation(base, pool)))
        self._note_peaks()

    def releasable(self) -> tuple[tuple[int, int], ...]:
        """(address, bytes) of each cached segment, or range of pages, that `release` gives back, in
        its order.
        """
        return tuple(block.extent for block in self._cached())

    def release(self, extents: Collection[tuple[int, int]] | None = None) -> None:
        """Give cached segments back to the driver: those among ``extents``, by default all that are
        `releasable`.
        """
        for block in self._cached():
            if extents is None or block.extent in extents:
                self._release(block)

    # --- finding a block
    # ------------------------------------------------------------------------------------------

    def _pool(self, pool_id: PoolId, *, small: bool) -> Pool:
        pool = self._pools.get((pool_id, small))
        if pool is None:
            pool = self._pools[pool_id, small] = Pool(pool_id, small=small)
        return pool

    def _best(self, pool: Pool, size: int, stream: int) -> SegmentBlock | None:
        """The free block of the pool that serves ``size`` bytes on ``stream``."""
        block = best_fit(pool, stream, size, expandable=self._expandable)
        if block is None:
            return None
        if size < self._oversize <= block.size or (
            size >= self._oversize and block.size >= size + LARGE_SEGMENT
        ):
            return None
        return block

    def _grow_or_release(self, pool: Pool, size: int, stream: int) -> SegmentBlock | None:
        """A block from the driver, after giving cached ones back to it if that is what it takes."""
        block = self._grow(pool, size, stream)
        if block is None and self._oversize < _NEVER_OVERSIZE:
            released = oversize_blocks(pool, stream, size, self._oversize)
            bytes_ = sum(cached.size for cached in released)
            for cached in released:
                self._release(cached)
            if bytes_ >= max(size, self._oversize):
                block = self._grow(pool, size, stream)
        if block is None:
            self.empty_cache()
            self._retries += 1
            block = self._grow(pool, size, stream)
        return block

    def _grow(self, pool: Pool, size: int, stream: int) -> SegmentBlock | None:
        if self._expandable:
            return self._grow_expandable(pool, size, stream)
        whole = segment_size(size)
        if self._reserved + whole > self._capacity:
            return None
        self._segments += 1
        self._reserve(whole)
        return SegmentBlock(self._driver.allocate(whole, stream, pool.pool_id), whole, stream, pool)

    def _grow_expandable(self, pool: Pool, size: int, stream: int) -> SegmentBlock | None:
        """Map pages at the lowest address in the stream's segments where ``size`` bytes, free or
        unmapped, lie side by side.
        """
        for _, unmapped in pool.unmapped.get(stream, ()):
            before = unmapped.prev
            block = before if before is not None and before.use == "free" else unmapped
            if block.has_room(size):
                break
        else:
            base = self._driver.reserve(self._reservation_bytes(pool), stream, pool.pool_id)
            reservation = self._reservation(base, pool)
            block = SegmentBlock(base, reservation.size, stream, pool, reservation, mapped=False)
            pool.add(block)
        if not block.mapped and not self._map(block, min(block.size, size)):
            return None
        while block.size < size:
            following = block.next
            assert (
                following is not None
            )  # there is room, and what follows a free mapped block and is free is unmapped
            if not self._map(following, min(size - block.size, following.size)):
                return None
            block = following
        pool.remove(block)
        return block

    def _map(self, block: SegmentBlock, size: int) -> bool:
        """Map the pages of the first ``size`` bytes of an unmapped block; False if the driver has
        not so many.
        """
        assert block.reservation is not None
        mapped = block.reservation.up(block.address + size) - block.address
        if self._reserved + mapped > self._capacity:
            return False
        pool = block.pool
        pool.remove(block)
        self._reserve(mapped)
        self._driver.map(block.address, mapped)
        if mapped < block.size:
            pool.add(block.split(mapped))
        block.mapped = True
        pool.merge(block, block.prev)
        pool.merge(block, block.next)
        pool.add(block)
        return True

    def _reservation(self, base: int, pool: Pool) -> Reservation:
        self._segments += 1
        return Reservation(base, self._reservation_bytes(pool), _page(pool))

    def _reservation_bytes(self, pool: Pool) -> int:
        """9/8 of the capacity in whole pages, at least one."""
        return max(1, -(-(self._capacity + self._capacity // 8) // _page(pool))) * _page(pool)

    # --- freeing and giving back
    # ----------------------------------------------------------------------------------

    def _free_block(self, block: SegmentBlock) -> None:
        del self._held[block.address]
        self._active -= block.size
        self._requested -= block.requested
        block.use = "free"
        block.streams = None
        pool = block.pool
        pool.merge(block, block.prev)
        pool.merge(block, block.next)
        pool.add(block)

    def _cached(self) -> list[SegmentBlock]:
        """The free blocks of which something can go back: the large pool's first, and in each pool
        expandable segments last.
        """
        pools = (self._pools.get((SHARED_POOL, small)) for small in (False, True))
        blocks = [
            sorted(pool, key=lambda block: block.reservation is not None)
            for pool in pools
            if pool is not None
        ]
        return [block for pool_blocks in blocks for block in pool_blocks if block.extent[1]]

    def _release(self, block: SegmentBlock) -> None:
        """Give the segment of a free block, or the whole pages in it, back to the driver."""
        pool = block.pool
        address, size = block.extent
        pool.remove(block)
        self._device_frees += 1
        self._reserve(-size)
        if block.reservation is None:
            self._segments -= 1
            self._driver.free(address, size)
            return
        if block.address < address:
            before, block = block, block.split(address - block.address)
            pool.add(before)
        if block.size > size:
            pool.add(block.split(size))
        self._driver.unmap(address, size)
        block.mapped = False
        pool.merge(block, block.prev)
        pool.merge(block, block.next)
        if block.whole:
            self._segments -= 1  # nothing of it is mapped any more, so its addresses go back, too
        else:
            pool.add(block)

    # --- accounts
    # ----------------------------------------------------------------------------------------------

    def _count(self, block: SegmentBlock) -> None:
        self._allocated += block.size
        self._active += block.size
        self._requested += block.requested
        if self._active > self._peak_active or self._allocated > self._peak_allocated:
            self._note_peaks()

    def _note_peaks(self) -> None:
        self._peak_active = max(self._peak_active, self._active)
        if self._allocated > self._peak_allocated:
            self._peak_allocated = self._allocated
            self._reserved_at_peak = self._reserved
            self._largest_free_at_peak = self._largest_free()

    def _reserve(self, size: int) -> None:
        self._reserved += size
        self._peak_reserved = max(self._peak_reserved, self._reserved)

    def _adopt(self, blocks: list[SegmentBlock]) -> None:
        """Take restored blocks into the pools and accounts."""
        for block in link(blocks):
            self._reserve(block.size if block.mapped else 0)
            if block.use == "free":
                block.pool.add(block)
                continue
            self._held[block.address] = block
            self._active += block.size
            self._requested += block.requested
            if block.use == "pending":
                self._pending[block.address] = block
            else:
                self._allocated += block.size

    def _largest_free(self) -> int:
        return max((pool.largest_free_bytes for pool in self._pools.values()), default=0)

    def _allocated_block(self, address: int) -> SegmentBlock:
        block = self._held.get(address)
        if block is None or block.use != "allocated":
            raise InputError(f"nothing is allocated at address {address}")
        return block


def _page(pool: Pool) -> int:
    return SMALL_SEGMENT if pool.small else LARGE_SEGMENT
