"""The choices of the caching allocator among free blocks: the best one for a request, and those to
give back when memory is short.
"""

from __future__ import annotations

from collections.abc import Iterator

from hosim.engine.allocators.cached_blocks.blocks import Pool, SegmentBlock


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


def stale_blocks(pool: Pool, excess: int) -> Iterator[SegmentBlock]:
    """The cached segments to give back for ``excess`` bytes: those that waited at least the average
    number of searches, repeatedly.
    """
    cached = [(pool.searches - block.born, block) for block in pool if block.whole]
    while excess > 0 and cached:
        average = sum(age for age, _ in cached) / len(cached)
        stale = [block for age, block in cached if age >= average and block.reservation is None]
        if not stale:
            return
        excess -= sum(block.size for block in stale)
        cached = [
            (age, block) for age, block in cached if age < average or block.reservation is not None
        ]
        yield from stale
