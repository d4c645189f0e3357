"""An even spread: which of many tensors are offloaded if so many bytes of them have to be, so that
their transfers are as far apart as can be.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

LARGE = 4
"""Times the usual size: tensors that are larger than that, such as an embedding, make no even
spread.
"""


def evenly_spread(sizes: Sequence[int], wanted_bytes: float) -> Iterator[int]:
    """Positions in ``sizes``, spread evenly by bytes, that together have at least ``wanted_bytes``,
    or all there are.

    >>> list(evenly_spread([10, 10, 10, 10, 10, 10], 20)), list(evenly_spread([10, 10], 99))
    ([0, 3], [0, 1])
    """
    total, taken = sum(sizes), 0
    for k, (size, passed) in enumerate(zip(sizes, accumulate(sizes), strict=True)):
        if taken * total < wanted_bytes * passed:
            taken += size
            yield k


def usual_size(sizes: Iterable[int]) -> int:
    """The size of which, or of less, the tensors are that half of all bytes are in.

    >>> usual_size([10, 10, 10, 40]), usual_size([10, 10, 60]), usual_size([])
    (40, 60, 0)
    """
    ordered = sorted(sizes)
    passed = list(accumulate(ordered))
    return ordered[bisect_left(passed, passed[-1] / 2)] if ordered else 0
