"""Static allocation: published instances, some that are meant to be like one that is not at hand,
and many tensors.

``python tests/bench/packing.py`` prints the figures instance by instance.
"""

import csv
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve()
if __name__ == "__main__":
    sys.path[:0] = [str(HERE.parents[2]), str(HERE.parents[1] / "packing")]

import numpy as np  # noqa: E402
from cut_memory import LIKE_I, SIDE, Problem  # noqa: E402
from measures import cpu_seconds, measure  # noqa: E402

from hosim.analysis.packing import pack  # noqa: E402

PUBLISHED = HERE.parents[3] / "shared" / "data" / "minimalloc"
PUBLISHED_CAPACITY = 1 << 20
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Packed:
    """What became of an instance: the height reached, its capacity, and the CPU seconds taken."""

    instance: str
    height: int
    capacity: int
    seconds: float


def packed(instance: str, problem: Problem, capacity: int) -> Packed:
    """Pack an instance into its capacity, or as low as can be found."""
    heights: list[int] = []
    seconds = cpu_seconds(lambda: heights.append(pack(*problem, capacity=capacity).height))
    return Packed(instance, heights[0], capacity, seconds)


def published_instances() -> Iterator[Packed]:
    """Those of google/minimalloc that are at hand."""
    for path in sorted(PUBLISHED.glob("*.csv")):
        with path.open() as file:
            rows = list(csv.DictReader(file))
        lowers, uppers, sizes = (
            [int(row[key]) for row in rows] for key in ("lower", "upper", "size")
        )
        yield packed(f"minimalloc {path.name[0]}", (lowers, uppers, sizes), PUBLISHED_CAPACITY)


def instances_like_i() -> Iterator[Packed]:
    """Memory cut into 374 tensors or so, of each kind as many as there are seeds, where the most
    that lives fills the capacity.
    """
    for kind, of in LIKE_I.items():
        for seed in SEEDS:
            problem = of(seed)
            if _most_live(problem) == SIDE:
                yield packed(f"{kind}, seed {seed}", problem, SIDE)


def _most_live(problem: Problem) -> int:
    lowers, uppers, sizes = problem
    change = np.zeros(max(uppers) + 1, np.int64)
    np.add.at(change, lowers, sizes)
    np.subtract.at(change, uppers, sizes)
    return int(np.cumsum(change).max())


@measure(
    "the slowest of minimalloc's published instances, packed into the known height",
    most=30,
    unit="s",
)
def published() -> float:
    return max(each.seconds for each in published_instances())


@measure("the highest of them, in the known height", most=1)
def published_height() -> float:
    return max(each.height / each.capacity for each in published_instances())


@measure("the slowest of instances like minimalloc's I", most=60, unit="s")
def like_i() -> float:
    return max(each.seconds for each in instances_like_i())


@measure("the highest of them, in the most that lives at once", most=1)
def like_i_height() -> float:
    return max(each.height / each.capacity for each in instances_like_i())


@measure("60,000 tensors", most=20, unit="s")
def many() -> float:
    rng = np.random.default_rng(1)
    lowers = rng.integers(0, 100_000, 60_000)
    problem = (
        lowers.tolist(),
        (lowers + rng.geometric(0.01, 60_000)).tolist(),
        (512 * rng.integers(1, 1000, 60_000)).tolist(),
    )
    return cpu_seconds(lambda: pack(*problem))


if __name__ == "__main__":
    print("| instance | reached | capacity | times | CPU s |\n|---|--:|--:|--:|--:|")
    for made in (*published_instances(), *instances_like_i()):
        print(
            f"| {made.instance} | {made.height} | {made.capacity} | "
            f"{made.height / made.capacity:.4f} | {made.seconds:.1f} |",
            flush=True,
        )
