"""What the caching allocator picks among free blocks, on pools made by hand."""

from __future__ import annotations

import pytest

from hosim.engine.allocators import Pool, Reservation, SegmentBlock, best_fit, oversize_blocks


def pool_of(*blocks: tuple[int, int, str]) -> Pool:
    """A pool of free blocks of stream 0: (address, bytes, ``plain``, ``expandable`` or
    ``expandable+N``, which can grow by N bytes).
    """
    pool = Pool(0, small=False)
    for address, size, kind in blocks:
        reservation = None if kind == "plain" else Reservation(address, 10**6, 10)
        block = SegmentBlock(address, size, 0, pool, reservation)
        if "+" in kind:
            block.next = SegmentBlock(
                address + size, int(kind.partition("+")[2]), 0, pool, reservation, mapped=False
            )
        pool.add(block)
    return pool


@pytest.mark.parametrize(
    ("expandable", "blocks", "chosen"),
    [
        (True, [], None),
        (True, [(0, 99, "plain")], None),
        (
            True,
            [(0, 99, "plain"), (500, 100, "plain"), (300, 100, "plain"), (900, 101, "plain")],
            300,
        ),
        (True, [(0, 100, "expandable"), (500, 200, "expandable")], 0),
        # what can grow counts with what it can grow to
        (
            True,
            [(0, 100, "expandable+500"), (1000, 200, "expandable+300"), (2000, 300, "expandable")],
            2000,
        ),
        (
            True,
            [(0, 100, "expandable+500"), (1000, 200, "expandable+400"), (2000, 300, "expandable")],
            0,
        ),
        (True, [(0, 100, "expandable+500"), (1000, 200, "plain"), (2000, 300, "expandable")], 1000),
        (True, [(0, 100, "expandable+500"), (1000, 599, "plain")], 1000),
        (True, [(0, 100, "expandable+500"), (1000, 600, "plain")], 0),
        # switched off, they are passed over
        (
            False,
            [
                (0, 100, "expandable"),
                (500, 200, "expandable"),
                (1000, 300, "plain"),
                (1500, 400, "plain"),
            ],
            1000,
        ),
        (False, [(0, 100, "expandable"), (500, 200, "expandable")], None),
        (False, [(0, 100, "plain"), (500, 90, "plain")], 0),
    ],
)
def test_the_best_fit(
    expandable: bool, blocks: list[tuple[int, int, str]], chosen: int | None
) -> None:
    pool = pool_of(*blocks)
    best = best_fit(pool, 0, 100, expandable=expandable)
    assert (None if best is None else best.address) == chosen
    assert best_fit(pool, 1, 1, expandable=expandable) is None  # another stream's


@pytest.mark.parametrize(
    ("size", "blocks", "chosen"),
    [
        (100, [], []),
        (100, [(0, 100, "plain"), (500, 120, "plain")], [0]),
        (100, [(0, 99, "plain"), (500, 120, "plain")], [500]),
        (
            30,
            [(0, 49, "plain"), (500, 50, "plain"), (900, 60, "plain")],
            [500],
        ),  # at least 50 all the same
        # none is large enough: from the largest down, none below 50, until there are 200
        (200, [(0, 49, "plain"), (500, 50, "plain"), (900, 60, "plain")], [900, 500]),
        (200, [(0, 60, "plain"), (500, 90, "plain"), (900, 110, "plain")], [900, 500]),
        (200, [(0, 60, "plain"), (500, 90, "plain"), (900, 109, "plain")], [900, 500, 0]),
        # an expandable one is never given back whole
        (100, [(0, 60, "plain"), (500, 70, "expandable"), (900, 120, "expandable")], [0]),
    ],
)
def test_oversize_blocks_to_give_back(
    size: int, blocks: list[tuple[int, int, str]], chosen: list[int]
) -> None:
    pool = pool_of(*blocks)
    assert [block.address for block in oversize_blocks(pool, 0, size, 50)] == chosen
    assert oversize_blocks(pool, 1, size, 50) == []
