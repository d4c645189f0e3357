"""Is hyperoffload ever the worse choice? ``python tests/bench/grid.py``: every shipped workload, 4 machines, 4 budgets, all policies.

A line for each cell: the makespan of hyperoffload, the best rival's, their ratio, how far both are from the lower bound, and times of
planning. At the end how many cells there were, and those in which a rival is faster, or fits where hyperoffload does not.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass

from hosim.analysis.budget import parse_budget
from hosim.importers import load_any
from hosim.io.hardware_file import load_hardware
from hosim.io.shipped import find_hardware, find_workload, workloads
from hosim.study.compare import compare
from hosim.study.policy_choice import parse_choices

MACHINES = ("a100-80gb-sxm", "h100-80gb-sxm", "gh200-96gb", "ascend-910c-supernode")
SHARES = ("90%", "75%", "60%", "45%")
OWN = "hyperoffload"


@dataclass(frozen=True)
class Cell:
    """One comparison: makespans in nanoseconds, ``None`` where nothing fits."""

    workload: str
    machine: str
    share: str
    own_ns: int | None
    rival: str
    rival_ns: int | None
    bound_ns: int | None
    planning_s: float

    @property
    def worse(self) -> bool:
        return self.rival_ns is not None and (self.own_ns is None or self.own_ns > self.rival_ns)

    def __str__(self) -> str:
        over = f"{self.own_ns / self.bound_ns:.3f}" if self.own_ns and self.bound_ns else "-"
        against = f"{self.own_ns / self.rival_ns:.4f}" if self.own_ns and self.rival_ns else "-"
        figures = f"own {self.own_ns} {self.rival or 'no rival'} {self.rival_ns} ratio {against} over bound {over}"
        return (
            f"{'WORSE' if self.worse else 'ok':5} {self.workload} {self.machine} {self.share}: {figures} planned in {self.planning_s:.1f} s"
        )


def measure(workload: str, machine: str, share: str) -> Cell:
    """All policies on one workload, machine and budget."""
    graph = load_any(find_workload(workload))
    hardware = load_hardware(find_hardware(machine))
    _, budget = parse_budget(share, graph, hardware)
    results = compare(graph, hardware, parse_choices(None), budget)
    own = next(r for r in results if r.policy == OWN)
    fitting = [r for r in results if r.policy != OWN and r.makespan_ns is not None]
    best = min(fitting, key=lambda r: (r.makespan_ns, r.policy), default=None)
    return Cell(
        workload,
        machine,
        share,
        own.makespan_ns,
        best.policy if best else "",
        best.makespan_ns if best else None,
        own.lower_bound_ns,
        own.planning_s or 0.0,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", default=",".join(workloads()))
    parser.add_argument("--machines", default=",".join(MACHINES))
    parser.add_argument("--shares", default=",".join(SHARES))
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    given = parser.parse_args(arguments)
    todo = [(w, m, s) for w in given.workloads.split(",") for m in given.machines.split(",") for s in given.shares.split(",")]
    cells = []
    with ProcessPoolExecutor(given.processes) as pool:
        for done in as_completed([pool.submit(measure, *cell) for cell in todo]):
            cells.append(done.result())
            print(cells[-1], flush=True)
    worse = [cell for cell in cells if cell.worse]
    print(f"{len(cells)} cells, hyperoffload worse in {len(worse)}")
    for cell in worse:
        print(cell)
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
