"""Places in ascending numbers, found by bisection."""

from __future__ import annotations

from hosim.engine.cells import Longs


def above(cells: Longs, low: int, high: int, at: int) -> int:
    """The first place from ``low`` to ``high`` whose number is above ``at``; the numbers ascend."""
    while low < high:
        middle = (low + high) >> 1
        if at < cells[middle]:
            high = middle
        else:
            low = middle + 1
    return low
