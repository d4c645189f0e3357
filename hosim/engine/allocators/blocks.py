"""The caching allocator's blocks at work: linked in their segment, and sorted in their pool while
they are free.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import pairwise

from hosim.engine.allocators.state import BlockState, BlockUse, PoolId, SegmentState
from hosim.errors import InputError


class Reservation:
    """The addresses ``[base, base + size)`` of an expandable segment, mapped in steps of ``page``
    bytes.
    """

    __slots__ = ("base", "page", "size")

    def __init__(self, base: int, size: int, page: int) -> None:
        self.base = base
        self.size = size
        self.page = page

    def up(self, address: int) -> int:
        """The first page boundary at or after ``address``."""
        return self.base + -(-(address - self.base) // self.page) * self.page

    def down(self, address: int) -> int:
        """The last page boundary at or before ``address``."""
        return self.base + (address - self.base) // self.page * self.page


class SegmentBlock:
    """A range of a segment. ``streams`` are the other streams that used it."""

    __slots__ = (
        "address",
        "mapped",
        "next",
        "pool",
        "prev",
        "requested",
        "reservation",
        "size",
        "stream",
        "streams",
        "use",
    )

    def __init__(
        self,
        address: int,
        size: int,
        stream: int,
        pool: Pool,
        reservation: Reservation | None = None,
        *,
        mapped: bool = True,
    ) -> None:
        self.address = address
        self.size = size
        self.stream = stream
        self.pool = pool
        self.reservation = reservation
        self.mapped = mapped
        self.requested = 0
        self.use: BlockUse = "free"
        self.streams: set[int] | None = None
        self.prev: SegmentBlock | None = None
        self.next: SegmentBlock | None = None

    def split(self, size: int) -> SegmentBlock:
        """Cut off all but the first ``size`` bytes, and return that rest as a block of its own.
        Neither may be in a pool.
        """
        rest = SegmentBlock(
            self.address + size,
            self.size - size,
            self.stream,
            self.pool,
            self.reservation,
            mapped=self.mapped,
        )
        rest.prev, rest.next = self, self.next
        if rest.next is not None:
            rest.next.prev = rest
        self.next = rest
        self.size = size
        return rest

    @property
    def whole(self) -> bool:
        """Return whether this is its segment's only block."""
        return self.prev is None and self.next is None

    @property
    def grown(self) -> int:
        """The bytes of a free block and of the unmapped range right after it, into which it can
        grow.
        """
        return self.size + (self.next.size if self.next is not None and not self.next.mapped else 0)

    @property
    def extent(self) -> tuple[int, int]:
        """(address, bytes) of what can go back to the driver: a whole segment, or the whole pages
        in this block; 0 bytes: nothing.
        """
        if self.reservation is None:
            return self.address, self.size if self.whole else 0
        start, end = (
            self.reservation.up(self.address),
            self.reservation.down(self.address + self.size),
        )
        return start, max(end - start, 0)

    def has_room(self, size: int) -> bool:
        """Return whether ``size`` bytes from this block's start on are free or unmapped."""
        block: SegmentBlock | None = self
        while size > 0 and block is not None and block.use == "free":
            size -= block.size
            block = block.next
        return size <= 0


class Pool:
    """The free blocks of a pool by stream, size and address, and the unmapped ranges of its
    expandable segments by stream and address.
    """

    __slots__ = ("free", "pool_id", "small", "split_bytes", "unmapped")

    def __init__(self, pool_id: PoolId, *, small: bool) -> None:
        self.pool_id = pool_id
        self.small = small
        self.free: dict[int, list[tuple[int, int, SegmentBlock]]] = {}
        self.unmapped: dict[int, list[tuple[int, SegmentBlock]]] = {}
        self.split_bytes = 0

    def add(self, block: SegmentBlock) -> None:
        """Take in a free block, mapped or not."""
        if not block.mapped:
            insort(self.unmapped.setdefault(block.stream, []), (block.address, block))
            return
        insort(self.free.setdefault(block.stream, []), (block.size, block.address, block))
        if block.reservation is None and (block.prev is not None or block.next is not None):
            self.split_bytes += block.size

    def remove(self, block: SegmentBlock) -> None:
        """Drop a free block; call it before its links or its size change."""
        if not block.mapped:
            ranges = self.unmapped[block.stream]
            del ranges[
                bisect_left(ranges, (block.address,))
            ]  # a shorter tuple sorts before its extensions
            return
        blocks = self.free[block.stream]
        del blocks[bisect_left(blocks, (block.size, block.address))]
        if block.reservation is None and (block.prev is not None or block.next is not None):
            self.split_bytes -= block.size

    def merge(self, block: SegmentBlock, neighbour: SegmentBlock | None) -> None:
        """Let ``block`` (which is in no pool) absorb a neighbour that is free, and mapped like it;
        do nothing with another.
        """
        if neighbour is None or neighbour.use != "free" or neighbour.mapped is not block.mapped:
            return
        self.remove(neighbour)
        if neighbour is block.prev:
            block.address = neighbour.address
            block.prev = neighbour.prev
            if block.prev is not None:
                block.prev.next = block
        else:
            block.next = neighbour.next
            if block.next is not None:
                block.next.prev = block
        block.size += neighbour.size

    def fitting(self, stream: int, size: int) -> int:
        """The position of the smallest free block of ``stream`` with at least ``size`` bytes (that
        of the end, if there is none).
        """
        return bisect_left(self.free.get(stream, ()), (size,))

    def __iter__(self) -> Iterator[SegmentBlock]:
        """The free mapped blocks by stream, size and address."""
        for stream in sorted(self.free):
            for _, _, block in self.free[stream]:
                yield block

    @property
    def largest_free_bytes(self) -> int:
        """The bytes of the largest free block of any stream; 0 if there is none."""
        return max((blocks[-1][0] for blocks in self.free.values() if blocks), default=0)


def blocks_of(
    segment: SegmentState, pool: Pool, reservation: Reservation | None = None
) -> list[SegmentBlock]:
    """The blocks of a segment (of an expandable one: of a mapped range), not linked yet. Raises
    `InputError` if they do not fill it.
    """
    end = segment.address
    blocks = []
    for state in segment.blocks:
        if state.address != end or state.size_bytes <= 0:
            raise InputError(
                f"segment at {segment.address}: expected a block at {end}, got {state.size_bytes} "
                f"bytes at {state.address}"
            )
        end += state.size_bytes
        block = SegmentBlock(state.address, state.size_bytes, segment.stream, pool, reservation)
        block.use = state.use
        block.requested = state.requested_bytes if state.use != "free" else 0
        blocks.append(block)
    if not blocks or end != segment.address + segment.size_bytes:
        raise InputError(
            f"segment at {segment.address}: expected blocks that fill its {segment.size_bytes} "
            f"bytes, got them up to {end}"
        )
    return blocks


def blocks_of_ranges(
    ranges: list[SegmentState], pool: Pool, reservation: Reservation
) -> list[SegmentBlock]:
    """The blocks of an expandable segment, not linked yet: those of its mapped ``ranges``, and the
    unmapped ones around those.
    """
    blocks: list[SegmentBlock] = []
    end = reservation.base
    stream = ranges[0].stream
    for mapped in ranges:
        if end < mapped.address:
            blocks.append(
                SegmentBlock(end, mapped.address - end, stream, pool, reservation, mapped=False)
            )
        blocks += blocks_of(mapped, pool, reservation)
        end = mapped.address + mapped.size_bytes
    rest = reservation.base + reservation.size - end
    if rest > 0:
        blocks.append(SegmentBlock(end, rest, stream, pool, reservation, mapped=False))
    return blocks


def link(blocks: list[SegmentBlock]) -> list[SegmentBlock]:
    """Make neighbours of consecutive ``blocks``."""
    for left, right in pairwise(blocks):
        left.next, right.prev = right, left
    return blocks


def segment_of(head: SegmentBlock) -> SegmentState:
    """The segment (or mapped range) that starts with the block ``head``, at rest."""
    states = []
    block: SegmentBlock | None = head
    while block is not None and block.mapped:
        states.append(
            BlockState(
                block.address, block.size, block.use, block.requested if block.use != "free" else 0
            )
        )
        block = block.next
    size = sum(state.size_bytes for state in states)
    base = None if head.reservation is None else head.reservation.base
    return SegmentState(
        head.address,
        size,
        head.stream,
        head.pool.small,
        tuple(states),
        base is not None,
        head.pool.pool_id,
        base,
    )


# -- block choice
# --------------------------------------------------------------------------------------------------
# The choices of the caching allocator among free blocks: the best one for a request, and those to
# give back when memory is short.


def best_fit(pool: Pool, stream: int, size: int, *, expandable: bool) -> SegmentBlock | None:
    """The smallest free block of ``stream`` with at least ``size`` bytes, the lowest address among
    equals.

    With ``expandable`` on, a block that can grow counts with what it can grow to, so that a larger
    block that cannot is preferred; with it off, blocks of expandable segments (from before it was
    turned off) are passed over.
    """
    blocks = pool.free.get(stream, [])
    index = pool.fitting(stream, size)
    if index == len(blocks):
        return None
    best = blocks[index][2]
    if best.reservation is None:
        return best
    others = (blocks[i][2] for i in range(index + 1, len(blocks)))
    if not expandable:
        return next((other for other in others if other.reservation is None), None)
    for other in others:
        if best.reservation is None or other.grown >= best.grown:
            break
        best = other
    return best


def oversize_blocks(pool: Pool, stream: int, size: int, oversize: int) -> list[SegmentBlock]:
    """The cached blocks of ``stream`` to give back for a request of ``size`` bytes (at least
    ``oversize``).

    That is the smallest one that is large enough, else those of at least ``oversize`` bytes from
    the largest down, which may not be enough.
    """
    wanted = max(size, oversize)
    blocks = [block for _, _, block in pool.free.get(stream, ())]
    index = pool.fitting(stream, wanted)
    if index < len(blocks) and blocks[index].reservation is None:
        return [blocks[index]]
    chosen: list[SegmentBlock] = []
    bytes_ = 0
    for block in reversed(blocks[:index]):
        if bytes_ >= wanted or block.size < oversize:
            break
        if block.reservation is None:
            chosen.append(block)
            bytes_ += block.size
    return chosen
