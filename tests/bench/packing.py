"""Static allocation: published instances, and many tensors."""

import csv
from pathlib import Path

import numpy as np
from measures import cpu_seconds, measure

from hosim.engine.allocators.static import pack

PUBLISHED = Path(__file__).resolve().parents[3] / "shared" / "data" / "minimalloc"


@measure("the slowest of minimalloc's published instances, packed into the known height", most=30, unit="s")
def published() -> float:
    seconds = []
    for path in sorted(PUBLISHED.glob("*.csv")):
        with path.open() as file:
            rows = list(csv.DictReader(file))
        problem = [[int(row[key]) for row in rows] for key in ("lower", "upper", "size")]
        seconds.append(cpu_seconds(lambda problem=problem: pack(*problem, capacity=1 << 20)))
    return max(seconds)


@measure("60,000 tensors", most=20, unit="s")
def many() -> float:
    rng = np.random.default_rng(1)
    lowers = rng.integers(0, 100_000, 60_000)
    problem = lowers.tolist(), (lowers + rng.geometric(0.01, 60_000)).tolist(), (512 * rng.integers(1, 1000, 60_000)).tolist()
    return cpu_seconds(lambda: pack(*problem))
