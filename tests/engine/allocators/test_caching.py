"""The caching allocator on hand-derived cases, and what must always hold."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hosim.engine.allocators import (
    BlockState,
    CachingAllocator,
    SegmentState,
    division_table,
    round_size,
)
from hosim.errors import InfeasibleError, InputError

KIB, MIB = 1 << 10, 1 << 20


def offsets(allocator):
    """Segments as (size, [(offset, size, use)]), in order of address."""
    return [
        (s.size_bytes, [(b.address - s.address, b.size_bytes, b.use) for b in s.blocks])
        for s in allocator.segments()
    ]


@pytest.mark.parametrize(
    ("request_bytes", "block", "segment"),
    [
        (1, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB - 511, 10 * MIB, 10 * MIB),
        (
            10 * MIB + 1,
            12 * MIB,
            12 * MIB,
        ),  # the rest of 2 MiB - 512 B is more than 1 MiB, but see below
        (19 * MIB + 1, 20 * MIB, 20 * MIB),
    ],
)
def test_rounding_of_requests_and_segments(request_bytes, block, segment):
    allocator = CachingAllocator(1 << 40)
    address = allocator.malloc(request_bytes)
    if request_bytes == 10 * MIB + 1:
        block = 10 * MIB + 512
    assert allocator.block_bytes(address) == block
    assert allocator.stats.reserved_bytes == segment


def test_small_requests_share_a_segment_and_best_fit_takes_the_smallest_then_lowest():
    allocator = CachingAllocator(1 << 40)
    # 5 blocks of a 2 MiB segment: 0, 1K, 3K, 4K, 6K; then the two of 2 KiB and the first of 1 KiB
    # are freed
    addresses = [allocator.malloc(size * KIB) for size in (1, 2, 1, 2, 1)]
    base = addresses[0]
    assert [a - base for a in addresses] == [0, 1 * KIB, 3 * KIB, 4 * KIB, 6 * KIB]
    allocator.free(addresses[3])
    allocator.free(addresses[1])
    assert (
        allocator.malloc(1500) - base == 1 * KIB
    )  # both free blocks of 2 KiB fit equally: the lower one; the rest of 512 B is split off
    assert allocator.malloc(300) - base == 1 * KIB + 1536
    assert allocator.malloc(2 * KIB) - base == 4 * KIB
    assert allocator.malloc(512) - base == 7 * KIB


def test_freed_blocks_merge_with_both_neighbours():
    allocator = CachingAllocator(1 << 40)
    a, b, c = (allocator.malloc(512) for _ in range(3))
    allocator.free(a)
    allocator.free(c)
    assert offsets(allocator) == [
        (2 * MIB, [(0, 512, "free"), (512, 512, "allocated"), (1024, 2 * MIB - 1024, "free")])
    ]
    assert allocator.stats.inactive_split_bytes == 2 * MIB - 512
    allocator.free(b)
    assert offsets(allocator) == [(2 * MIB, [(0, 2 * MIB, "free")])]
    assert allocator.stats.inactive_split_bytes == 0
    assert allocator.stats.largest_free_bytes == 2 * MIB


def test_large_blocks_keep_a_rest_of_up_to_a_mebibyte():
    allocator = CachingAllocator(1 << 40)
    kept = allocator.malloc(19 * MIB)  # of 20 MiB: the rest is exactly 1 MiB
    split = allocator.malloc(21 * MIB - 512)  # of 22 MiB: the rest is 1 MiB + 512 B
    assert allocator.block_bytes(kept) == 20 * MIB
    assert allocator.block_bytes(split) == 21 * MIB - 512
    stats = allocator.stats
    assert stats.allocated_bytes == 41 * MIB - 512
    assert stats.requested_bytes == 40 * MIB - 512
    assert stats.reserved_bytes == 42 * MIB
    assert stats.now.fragmentation == pytest.approx((MIB + 512) / (42 * MIB))


def test_streams_do_not_share_free_blocks():
    allocator = CachingAllocator(1 << 40)
    first = allocator.malloc(5 * MIB, stream=1)
    allocator.free(first)
    assert allocator.malloc(5 * MIB, stream=2) != first
    assert allocator.malloc(5 * MIB, stream=1) == first
    assert allocator.stats.segments == 2


def test_a_block_used_on_another_stream_waits_for_it():
    allocator = CachingAllocator(1 << 40)
    address = allocator.malloc(5 * MIB)
    allocator.record_stream(address, 0)  # its own stream is nothing to wait for
    allocator.record_stream(address, 7)
    allocator.record_stream(address, 8)
    allocator.free(address)
    assert (allocator.stats.allocated_bytes, allocator.stats.active_bytes) == (0, 5 * MIB)
    assert allocator.malloc(5 * MIB) == address + 5 * MIB
    allocator.synchronize(7)
    assert allocator.waits(address)
    allocator.synchronize(9)
    assert allocator.waits(address)
    allocator.synchronize(8)
    assert not allocator.waits(address)
    assert allocator.stats.active_bytes == 5 * MIB
    assert allocator.malloc(5 * MIB) == address


def test_out_of_memory_gives_cached_segments_back_and_tries_again():
    allocator = CachingAllocator(40 * MIB)
    first = allocator.malloc(20 * MIB)
    small = allocator.malloc(512)
    allocator.free(first)
    assert allocator.stats.reserved_bytes == 22 * MIB
    allocator.malloc(38 * MIB)  # the cached 20 MiB go, the held small segment stays
    assert allocator.stats.reserved_bytes == 40 * MIB
    assert (allocator.stats.retries, allocator.stats.failures, allocator.stats.device_frees) == (
        1,
        0,
        1,
    )
    with pytest.raises(
        InfeasibleError, match=r"cannot serve 2\.00 MiB: 40\.0 MiB of 40\.0 MiB are reserved"
    ) as caught:
        allocator.malloc(2 * MIB)
    assert "largest free block: 2096640 bytes" in caught.value.report
    assert allocator.stats.failures == 1
    assert allocator.malloc(512) == small + 512


def test_the_second_try_does_not_look_at_what_waited():
    # A 20 MiB block waits for another stream; the request frees it by waiting, but takes new
    # memory, as PyTorch does.
    allocator = CachingAllocator(60 * MIB)
    held = allocator.malloc(6 * MIB)
    waiting = allocator.malloc(14 * MIB)  # the rest of the first segment
    assert waiting == held + 6 * MIB
    cached = allocator.malloc(30 * MIB)
    allocator.record_stream(waiting, 1)
    allocator.free(waiting)
    allocator.free(cached)
    taken = allocator.malloc(14 * MIB)  # from the cached 30 MiB
    assert taken == cached
    allocator.free(taken)
    blocker = allocator.malloc(29 * MIB + 1)
    assert blocker == cached
    allocator.free(blocker)
    stream_one = allocator.malloc(
        20 * MIB, stream=1
    )  # 20 + 30 + 20 exceed 60: the 30 go back, the wait ends
    assert not allocator.waits(waiting)
    assert stream_one not in (waiting, cached)
    assert allocator.malloc(14 * MIB) == waiting


def test_emptying_the_cache_keeps_segments_with_held_blocks():
    allocator = CachingAllocator(1 << 40)
    kept, gone = allocator.malloc(512), allocator.malloc(50 * MIB)
    allocator.free(gone)
    assert allocator.releasable() == ((gone, 50 * MIB),)
    allocator.empty_cache()
    assert allocator.stats.reserved_bytes == 2 * MIB
    allocator.free(kept)
    allocator.empty_cache()
    assert allocator.stats.reserved_bytes == 0
    assert allocator.stats.peak_reserved_bytes == 52 * MIB
    assert allocator.segments() == ()


def test_blocks_over_the_split_limit_are_not_split_nor_lent_to_small_requests():
    allocator = CachingAllocator(140 * MIB, max_split_bytes=32 * MIB)
    big = allocator.malloc(60 * MIB)
    allocator.free(big)
    assert allocator.malloc(12 * MIB) != big  # below the limit: not from an oversize block
    assert allocator.malloc(38 * MIB) != big  # 60 is 20 MiB or more above 38
    assert allocator.malloc(41 * MIB) == big  # within 20 MiB
    assert allocator.block_bytes(big) == 60 * MIB
    allocator.free(big)
    # 60 + 12 + 38 = 110 MiB are reserved. For 40 MiB the oversize block is 20 MiB too large, and no
    # room is left: it goes back, alone.
    allocator.malloc(40 * MIB)
    assert (allocator.stats.reserved_bytes, allocator.stats.retries) == (90 * MIB, 0)


def test_expandable_segments_grow_in_place_and_give_pages_back():
    allocator = CachingAllocator(100 * MIB, expandable=True)
    a = allocator.malloc(30 * MIB)  # two pages of 20 MiB
    assert allocator.stats.reserved_bytes == 40 * MIB
    b = allocator.malloc(20 * MIB)  # from the 10 MiB that are left, and one more page
    assert b == a + 30 * MIB
    assert allocator.stats.reserved_bytes == 60 * MIB
    assert allocator.stats.segments == 1
    small = allocator.malloc(100)
    assert allocator.stats.reserved_bytes == 62 * MIB
    allocator.free(a)
    # of the 30 MiB in front, one page is whole; of the 10 MiB at the end, none
    allocator.empty_cache()
    assert allocator.stats.reserved_bytes == 42 * MIB
    assert offsets(allocator)[0] == (
        40 * MIB,
        [(0, 10 * MIB, "free"), (10 * MIB, 20 * MIB, "allocated"), (30 * MIB, 10 * MIB, "free")],
    )
    c = allocator.malloc(
        25 * MIB
    )  # the lowest addresses that have room: the page in front is mapped again
    assert c == a
    assert allocator.stats.reserved_bytes == 62 * MIB
    for address in (b, c, small):
        allocator.free(address)
    allocator.empty_cache()
    assert (allocator.stats.reserved_bytes, allocator.stats.segments) == (0, 0)


def test_expandable_segments_fail_at_the_capacity():
    allocator = CachingAllocator(50 * MIB, expandable=True)
    allocator.malloc(30 * MIB)
    with pytest.raises(InfeasibleError):
        allocator.malloc(15 * MIB)  # a third page of 20 MiB would make 60
    assert allocator.malloc(9 * MIB)


def test_roundup_divisions_follow_the_published_example():
    table = division_table(4)
    assert round_size(1200 * KIB, table) == 1280 * KIB  # between 1024 and 2048 in steps of 256
    assert [round_size(n, table) for n in (2 * MIB, 2 * MIB + 1, 100)] == [
        2 * MIB,
        2 * MIB + 512 * KIB,
        512,
    ]
    by_size = division_table({1: 8, 2: 0})
    assert round_size(MIB + 1, by_size) == MIB + 128 * KIB
    assert round_size(2 * MIB + 1, by_size) == 2 * MIB + 512
    for bad in (3, {3: 2}, {1: 5}, {1 << 16: 2}):
        with pytest.raises(InputError, match=r"^roundup_power2_divisions: expected powers of two"):
            division_table(bad)


def test_peaks_say_what_was_reserved_and_free_then():
    allocator = CachingAllocator(1 << 40)
    a = allocator.malloc(15 * MIB)
    b = allocator.malloc(6 * MIB)
    allocator.free(a)
    allocator.malloc(20 * MIB)
    allocator.free(b)
    stats = allocator.stats
    assert stats.peak_allocated_bytes == 26 * MIB
    assert stats.reserved_at_peak_bytes == 56 * MIB  # 16 + 20 + 20
    assert stats.largest_free_at_peak_bytes == 16 * MIB
    assert stats.peak_reserved_bytes == 56 * MIB


def test_misuse_is_named():
    allocator = CachingAllocator(1 << 40)
    assert allocator.malloc(0) == 0
    allocator.free(0)
    address = allocator.malloc(10)
    allocator.free(address)
    for call in (allocator.free, allocator.block_bytes, allocator.complete):
        with pytest.raises(InputError, match=f"at address {address}"):
            call(address)
    with pytest.raises(InputError, match="at least 0 bytes"):
        allocator.malloc(-1)
    with pytest.raises(InputError, match="max_split_bytes"):
        CachingAllocator(1, max_split_bytes=20 * MIB)
    with pytest.raises(InputError, match="expected a new allocator"):
        allocator.restore(())
    holes = SegmentState(0, 1024, 0, True, (BlockState(0, 512, "free"),))
    with pytest.raises(InputError, match="blocks that fill its 1024 bytes"):
        CachingAllocator(1).restore([holes])


program = st.lists(
    st.tuples(
        st.sampled_from(["malloc", "malloc", "free", "elsewhere", "pass", "empty"]),
        st.one_of(st.integers(1, 4 * KIB), st.integers(1, 3 * MIB), st.integers(1, 50 * MIB)),
        st.integers(0, 1),
    ),
    max_size=60,
)


@settings(max_examples=2 * settings.default.max_examples)
@given(program, st.booleans(), st.sampled_from([None, 24 * MIB]))
def test_held_blocks_never_overlap_and_accounts_agree(steps, expandable, split):
    allocator = CachingAllocator(
        150 * MIB,
        expandable=expandable,
        max_split_bytes=split,
        roundup_power2_divisions=4,
    )
    live = {}
    for action, size, stream in steps:
        if action == "malloc":
            address = allocator.try_malloc(size, stream)
            if address is not None:
                live[address] = size
        elif action in ("free", "elsewhere") and live:
            address = list(live)[size % len(live)]
            if action == "elsewhere":
                allocator.record_stream(address, 9)
            allocator.free(address)
            del live[address]
        elif action == "pass":
            allocator.synchronize(9)
        elif action == "empty":
            allocator.empty_cache()
        state = allocator.segments()
        blocks = [block for segment in state for block in segment.blocks]
        stats = allocator.stats
        assert {b.address: b.requested_bytes for b in blocks if b.use == "allocated"} == live
        assert all(
            left.address + left.size_bytes <= right.address
            for left, right in pairwise(state)
            for left in left.blocks
        )
        assert stats.allocated_bytes == sum(b.size_bytes for b in blocks if b.use == "allocated")
        assert stats.active_bytes == sum(b.size_bytes for b in blocks if b.use != "free")
        assert stats.reserved_bytes == sum(s.size_bytes for s in state) <= 150 * MIB
        assert stats.largest_free_bytes == max(
            (b.size_bytes for b in blocks if b.use == "free"), default=0
        )
        split_segments = [s for s in state if len(s.blocks) > 1 and not s.expandable]
        assert stats.inactive_split_bytes == sum(
            b.size_bytes for s in split_segments for b in s.blocks if b.use == "free"
        )
        assert not any(a.use == b.use == "free" for s in state for a, b in pairwise(s.blocks))
        again = CachingAllocator(150 * MIB, expandable=expandable)
        again.restore(state)
        assert again.segments() == state
