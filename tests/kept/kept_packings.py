"""Packings of the static allocator for drawn problems, a row each, with the steps that the exact
search took.

A packing is checked elsewhere to be one, and as low as can be where that is known; where it is not,
and how long the search is, these rows say. After a change that is meant to alter packings::

    python tests/kept/write.py kept_packings

writes the table anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from random import Random

import numpy as np
from kept_table import KeptTable, Row, checksum

from hosim.analysis.packing import SkylineSearch, improve, pack

COLUMNS = ("problem", "what", "figure", "known", "checksum")
SEED = 41
PROBLEMS = range(24)
EFFORTS = (0, 300_000, 3_000_000)
STEPS = 500_000


def problem(number: int) -> tuple[list[int], list[int], list[int]]:
    """Lower ends, upper ends and sizes: short and long lives, sizes alike or not; of every second
    problem as much lives all the time.
    """
    lots = Random(f"{SEED} {number}")
    if number % 2:
        return _flat(lots, 16 + number, 6 + number // 4)
    lowers = [lots.randrange(16) for _ in range(8 + 2 * number)]
    uppers = [low + lots.choice((0, 1, 2, 3, 5, 9)) for low in lowers]
    sizes = [lots.choice((0, 1, 3, 4, 8)) if number % 4 else lots.randrange(1, 40) for _ in lowers]
    return lowers, uppers, sizes


def _flat(lots: Random, height: int, sections: int) -> tuple[list[int], list[int], list[int]]:
    live: list[tuple[int, int]] = []
    ended: list[tuple[int, int, int]] = []
    for at in range(sections):
        kept = [entry for entry in live if entry[0] == at or lots.random() < 0.6]
        ended += [(begin, at, size) for begin, size in live if (begin, size) not in kept]
        live = kept
        while left := height - sum(size for _, size in live):
            live.append((at, min(left, lots.randint(1, height // 2))))
    ended += [(begin, sections, size) for begin, size in live]
    lots.shuffle(ended)
    return [a for a, _, _ in ended], [b for _, b, _ in ended], [size for *_, size in ended]


def rows(number: int) -> Iterator[Row]:
    """The rows of one problem."""
    lowers, uppers, sizes = problem(number)
    name = f"packing-{number}"
    for effort in EFFORTS:
        for alignment in (1, 4):
            made = pack(lowers, uppers, sizes, effort=effort, alignment=alignment, seed=number)
            yield (
                name,
                f"effort {effort} alignment {alignment}",
                str(made.height),
                str(made.optimal),
                checksum(made.offsets),
            )
    roomy = pack(lowers, uppers, sizes, capacity=2 * sum(sizes) // 3)
    yield name, "in two thirds", str(roomy.height), str(roomy.optimal), checksum(roomy.offsets)
    alive = [
        (a, b, size) for a, b, size in zip(lowers, uppers, sizes, strict=True) if a < b and size
    ]
    first, last, size = (np.array(column, np.int64) for column in zip(*alive, strict=True))
    most = max(sum(s for a, b, s in alive if a <= at < b) for at in range(int(last.max())))
    duration = last - first
    for above in (-1, 0, 1, 3):
        search = SkylineSearch(first, last, size, duration, most + above, number)
        found, spent = search.run(STEPS)
        yield (
            name,
            f"search {above} above",
            str(spent),
            str(search.exhausted),
            checksum(None if found is None else found.tolist()),
        )
    for enough in (most, most + 4):
        greedy = improve(first, last, size, duration, enough, number)
        yield (
            name,
            f"greedy for {enough - most} above",
            str(int((greedy + size).max())),
            "",
            checksum(greedy.tolist()),
        )


TABLE = KeptTable("kept_packings", COLUMNS, lambda: chain.from_iterable(map(rows, PROBLEMS)))
