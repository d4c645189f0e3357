"""The Pareto front of a study: the points that no other one beats."""

from __future__ import annotations

from collections.abc import Sequence


def pareto(points: Sequence[tuple[float | None, float | None]]) -> list[bool]:
    """Return whether each point, a cost and a gain, is on the curve: no other has more gain for as
    little cost, or as much for less.

    Of equal points the first is on it. Points without one of the two are not.

    >>> pareto([(1, 5), (2, 5), (2, 7), (1, None)])
    [True, False, True, False]
    """
    known = sorted(
        (cost, -gain, i)
        for i, (cost, gain) in enumerate(points)
        if cost is not None and gain is not None
    )
    on = [False] * len(points)
    best: float | None = None
    for _, loss, i in known:
        if best is None or loss < best:
            on[i], best = True, loss
    return on
