"""Problems of static allocation with a packing that is known to waste nothing: memory over time,
cut into the lives of tensors.

They are meant to be like instance I of google/minimalloc: many short lives around a few long ones,
and at most times as much lives as there is memory. Some have tensors left out, so that memory is
free at some times; the largest sum stays the capacity.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from random import Random

Block = tuple[int, int, int, int]
"""First section, last section, offset and end of a tensor."""
Problem = tuple[list[int], list[int], list[int]]
"""Lower ends, upper ends and sizes."""
SIDE = 1024


def cut(
    seed: int,
    count: int,
    *,
    by_time: float,
    pinwheels: float,
    long: int,
    missing: float = 0.0,
    side: int = SIDE,
) -> Problem:
    """A square cut into about ``count`` blocks: in time, in memory, or into five around the middle
    one, which no straight cut does.

    ``long`` of them live all the time. ``by_time`` and ``pinwheels`` are the shares of such cuts,
    ``missing`` that of blocks left out.
    """
    lots = Random(seed)
    borders = [0, *sorted(lots.sample(range(1, side), 2 * long)), side]
    slabs = [(0, side, a, b) for a, b in pairwise(borders)]
    thin = [slab for slab in slabs[1::2] if 2 * long * (slab[3] - slab[2]) <= side]
    blocks = [slab for slab in slabs if slab not in thin]
    while len(blocks) + len(thin) < count:
        block = lots.choices(blocks, [(b - a) * (d - c) for a, b, c, d in blocks])[0]
        blocks.remove(block)
        blocks += _pieces(block, by_time, pinwheels, lots)
    return _problem(blocks + thin, missing, lots)


def _pieces(block: Block, by_time: float, pinwheels: float, lots: Random) -> list[Block]:
    a, b, c, d = block
    if b - a >= 4 and d - c >= 4 and lots.random() < pinwheels:
        m, n = sorted(lots.sample(range(a + 1, b), 2))
        o, p = sorted(lots.sample(range(c + 1, d), 2))
        if lots.random() < 0.5:
            return [(a, n, c, o), (n, b, c, p), (m, b, p, d), (a, m, o, d), (m, n, o, p)]
        return [(m, b, c, o), (a, m, c, p), (a, n, p, d), (n, b, o, d), (m, n, o, p)]
    if b - a > 1 and (lots.random() < by_time or d - c == 1):
        m = lots.randint(a + max(1, (b - a) // 5), b - max(1, (b - a) // 5))
        return [(a, m, c, d), (m, b, c, d)]
    if d - c > 1:
        o = lots.randint(c + max(1, (d - c) // 5), d - max(1, (d - c) // 5))
        return [(a, b, c, o), (a, b, o, d)]
    return [block]


def bricks(
    seed: int, count: int, *, live: int, long: int, missing: float = 0.0, side: int = SIDE
) -> Problem:
    """About ``live`` blocks at a time; at each moment some neighbours end, and others take exactly
    their place; ``long`` ones rarely do.
    """
    lots = Random(seed)
    borders = [0, *sorted(lots.sample(range(1, side), live - 1)), side]
    wall = [(0, a, b) for a, b in pairwise(borders)]
    stay = set(lots.sample(wall, long))
    blocks: list[Block] = []
    now = 0
    while len(blocks) + len(wall) < count:
        now += 1
        for _ in range(lots.choice((1, 1, 2))):
            at = lots.randrange(len(wall))
            run = wall[at : at + lots.choice((1, 1, 2, 2, 3))]
            if any(brick[0] == now or (brick in stay and lots.random() < 0.9) for brick in run):
                continue
            a, b = run[0][1], run[-1][2]
            parts = min(
                b - a,
                max(
                    1, len(run) + lots.choice((-1, 0, 1)) + (len(wall) < live) - (len(wall) > live)
                ),
            )
            cuts = [a, *sorted(lots.sample(range(a + 1, b), parts - 1)), b]
            blocks += [(begin, now, c, d) for begin, c, d in run]
            wall[at : at + len(run)] = [(now, c, d) for c, d in pairwise(cuts)]
    blocks += [(begin, now + 1, c, d) for begin, c, d in wall]
    return _problem(blocks, missing, lots)


def _problem(blocks: list[Block], missing: float, lots: Random) -> Problem:
    kept = lots.sample(blocks, len(blocks) - round(missing * len(blocks)))
    return [a for a, *_ in kept], [b for _, b, *_ in kept], [d - c for *_, c, d in kept]


LIKE_I: dict[str, Callable[[int], Problem]] = {
    "cut": lambda seed: cut(seed, 374, by_time=0.7, pinwheels=0.3, long=6),
    "pinwheels": lambda seed: cut(seed, 374, by_time=0.7, pinwheels=0.8, long=6),
    "short lives": lambda seed: cut(seed, 374, by_time=0.85, pinwheels=0.1, long=8),
    "none long": lambda seed: cut(seed, 374, by_time=0.5, pinwheels=0.3, long=0),
    "bricks": lambda seed: bricks(seed, 374, live=14, long=4),
    "low bricks": lambda seed: bricks(seed, 374, live=30, long=6),
    "pinwheels, 1 % missing": lambda seed: cut(
        seed, 374, by_time=0.7, pinwheels=0.8, long=6, missing=0.01
    ),
    "cut, 3 % missing": lambda seed: cut(
        seed, 374, by_time=0.7, pinwheels=0.3, long=6, missing=0.03
    ),
    "bricks, 2 % missing": lambda seed: bricks(seed, 374, live=14, long=4, missing=0.02),
}
"""Kinds of instances like I: its number of tensors is 374."""
