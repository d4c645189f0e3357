"""The percentiles of a figure over seeds, from the runs of each point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hosim.base.nearest_rank import by_point, nearest_rank

SHARES = (5, 50, 95)
"""Percentiles, by the nearest rank: of fewer than 20 runs the least, the median and the most."""

Row = Mapping[str, Any]


def seed_percentiles(
    rows: Sequence[Row], varied: Sequence[str], figures: Sequence[str]
) -> list[dict[str, Any]]:
    """A row for each point and figure: the varied columns, ``figure``, ``runs``, ``failed``, and
    ``p5``, ``p50`` and ``p95`` of the others.

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
