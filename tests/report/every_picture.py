"""Every kind of picture in every format: ``python every_picture.py`` prints a digest of the bytes
of each, one a line.
"""

import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

from test_pictures import compared, swept  # noqa: E402
from timelines import everything, machine  # noqa: E402

from hosim.report.drawn import (  # noqa: E402
    Curve,
    blank,
    change_figure,
    image,
    recorded_memory,
    replay_figure,
    start_errors,
    studies,
    style,
)

KINDS = ("svg", "pdf", "png")


def pictures() -> Iterator[tuple[str, Figure]]:
    """Figures by name."""
    graph, result = everything()
    yield "replay", replay_figure(graph, machine(), result)
    yield "comparison", studies.comparison_figure(compared()[:3], "hbm")
    with style():
        frontier, (axes,) = blank([2])
        studies.frontier(axes, {"layerwise": [(20_000, 420), (40_000, 400)]}, 200)
        sweep, (axes,) = blank([2])
        studies.sweep_heat_map(
            axes, swept(), "bandwidth_bytes_per_s", "budget_bytes", "makespan_ns"
        )
        recording, (above, below) = blank([2, 2])
        held = np.array([1, 3, 2], np.int64) << 20
        recorded_memory(
            above, np.array([5, 7, 11], np.int64), {"recorded": held, "simulated": held}
        )
        start_errors(below, [0, 10, 20], [0, 1, 2])
    yield from (("frontier", frontier), ("sweep", sweep), ("recording", recording))
    before, now = Curve([0, 4000, 8000], 20), Curve([0, 5000, 9000], 22)
    yield "change", change_figure(before, now, "hbm")


if __name__ == "__main__":
    for name, figure in pictures():
        for kind in KINDS:
            print(name, kind, sha256(image(figure, kind, dpi=50)).hexdigest())
