"""Blocks of a paged cache: who holds them, which are taken first, and which are found again."""

from hypothesis import given
from hypothesis import strategies as st

from hosim.serving.blocks import BlockPool


def test_blocks_are_taken_in_the_order_of_their_release_the_last_of_a_request_first():
    pool = BlockPool(4)
    first, second = pool.take(2), pool.take(2)
    assert (first, second, pool.free) == ([0, 1], [2, 3], 0)
    pool.release(second)
    pool.release(first)
    assert pool.take(4) == [3, 2, 1, 0]


def test_what_a_free_block_holds_is_found_until_it_is_taken():
    pool = BlockPool(2)
    one, two = pool.take(2)
    pool.name(one, "a")
    pool.name(two, "b")
    pool.release([one, two])
    assert pool.found("ab") == [one, two]
    assert pool.found("xb") == []
    assert pool.idle([one, two]) == 2
    pool.hold([one])
    assert (pool.idle([one, two]), pool.free) == (1, 1)
    assert pool.take(1) == [two]
    assert pool.found("ab") == [one]
    pool.hold([one])  # a second holder
    pool.release([one])
    assert pool.free == 0
    pool.release([one])
    assert pool.free == 1


def test_of_two_blocks_that_hold_the_same_the_first_has_the_name():
    pool = BlockPool(2)
    one, two = pool.take(2)
    pool.name(one, "a")
    pool.name(two, "a")
    assert pool.found("a") == [one]


def test_a_pool_of_any_size_takes_no_room_before_its_blocks_are_taken():
    pool = BlockPool(10**15)
    assert pool.take(2) == [0, 1]
    assert (pool.count, pool.free) == (10**15, 10**15 - 2)
    pool.release([0])
    assert (pool.take(1), pool.free) == ([2], 10**15 - 2)  # freed ones last


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=40))
def test_no_block_is_lost_or_held_twice(steps):
    """Random takes, releases and prefix hits: every block is free or held by as many as hold it."""
    pool = BlockPool(8)
    held: dict[int, list[int]] = {}
    for who, count in steps:
        if who in held:
            pool.release(held.pop(who))
            continue
        hits = pool.found(range(count))
        if count - len(hits) > pool.free - pool.idle(hits):
            continue
        pool.hold(hits)
        held[who] = hits + pool.take(count - len(hits))
        for key, block in enumerate(held[who]):
            pool.name(block, key)
        assert len(set(held[who])) == count
    owned = {block for blocks in held.values() for block in blocks}
    assert pool.free == 8 - len(owned)
    for blocks in held.values():
        pool.release(blocks)
    assert pool.free == 8
