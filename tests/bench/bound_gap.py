"""How far the lower bound is below proved optima: ``python tests/bench/bound_gap.py --known
tests/bench/optima_seed_0.csv``.

Of the instances of ``tests/instances.py`` that the file has as proved it prints the mean, the 95th
percentile and the largest gap and CPU seconds, for two bounds: that on plans which leave tensors
where the workload puts them below, as all plans do that the solver chooses from, and that on plans
of any initial residency, which may truly be faster than the optimum. ``--step`` takes every n-th
instance. ``--parts`` takes steps that use parts of tensors: ``python tests/bench/bound_gap.py
--parts --known tests/bench/optima_parts_seed_0.csv``.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from instances import instance, instance_of_parts
from optimality import percentile, read_known

from hosim.analysis import homes_below
from hosim.analysis.costmodel import op_durations
from hosim.analysis.lower_bounds import lower_bound_ns


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--known", type=Path, required=True, help="file with what the solver found")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--step", type=int, default=1)
    parser.add_argument("--parts", action="store_true")
    given = parser.parse_args()
    gaps: dict[str, list[tuple[float, str]]] = {"homes below kept": [], "any initial residency": []}
    broken = 0
    begin = time.process_time()
    for number, (best, proved) in sorted(read_known(given.known).items())[:: given.step]:
        if best != proved:
            continue
        drawn = (instance_of_parts if given.parts else instance)(number, given.seed)
        graph, hardware = drawn.graph, drawn.hardware
        durations = op_durations(graph, hardware)
        homes = homes_below(graph, hardware)
        for which, starts in zip(gaps, (homes, None), strict=True):
            bound = lower_bound_ns(graph, durations, hardware, starts, drawn.budget_bytes)
            broken += bound > best
            gaps[which].append((1 - bound / best, drawn.name))
    for which, found in gaps.items():
        mean = sum(gap for gap, _ in found) / len(found)
        most = percentile([gap for gap, _ in found], 0.95)
        print(
            f"{which}: {len(found)} instances, below the optimum by {mean:.2%} on average, "
            f"{most:.2%} at the 95th percentile, "
            f"{max(found)[0]:.2%} at most ({max(found)[1]}), 3 % or less on "
            f"{sum(gap <= 0.03 for gap, _ in found)}"
        )
    count = sum(map(len, gaps.values()))
    print(
        f"bounds above an optimum: {broken}; CPU seconds a bound: "
        f"{(time.process_time() - begin) / count:.2f}"
    )
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
