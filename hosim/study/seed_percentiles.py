"""What becomes of a figure over seeds: percentiles of the runs of each point; and which points no other one beats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hosim.nearest_rank import by_point, nearest_rank

SHARES = (5, 50, 95)
"""Percentiles, by the nearest rank: of fewer than 20 runs the least, the median and the most."""

Row = Mapping[str, Any]


def seed_percentiles(rows: Sequence[Row], varied: Sequence[str], figures: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each point and figure: the varied columns, ``figure``, ``runs``, ``failed``, and ``p5``, ``p50`` and ``p95`` of the others.

    Figures that no run of a point has are left out.
    """
    found = []
    for point, group in by_point(rows, varied).items():
        served = [row for row in group if row["feasible"]]
        for figure in figures:
            values = [row[figure] for row in served if row[figure] is not None]
            if values:
                told = {f"p{share}": nearest_rank(values, share) for share in SHARES}
                counts = {"figure": figure, "runs": len(group), "failed": len(group) - len(served)}
                found.append({**dict(zip(varied, point, strict=True)), **counts, **told})
    return found


def pareto(rows: Sequence[Row], least: str, most: str) -> list[bool]:
    """Whether each row is on the curve: no other has as little of ``least`` or less and more of ``most``, or as much for less.

    Of equal rows the first is on it. Rows without one of the two figures are not.

    >>> pareto([{"bytes": 1, "rate": 5}, {"bytes": 2, "rate": 5}, {"bytes": 2, "rate": 7}, {"bytes": 1, "rate": None}], "bytes", "rate")
    [True, False, True, False]
    """
    on = [False] * len(rows)
    best: float | None = None
    known = [i for i, row in enumerate(rows) if row[least] is not None and row[most] is not None]
    for i in sorted(known, key=lambda i: (rows[i][least], -rows[i][most], i)):
        if best is None or rows[i][most] > best:
            on[i], best = True, rows[i][most]
    return on
