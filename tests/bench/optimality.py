"""How far hyperoffload is from the exact optimum: ``python tests/bench/optimality.py --instances
200 --seed 0``.

Draws the instances of ``tests/instances.py``, solves each exactly, plans it with the policy and
prints the mean and the 95th percentile of makespan over the optimum, whether the policy is feasible
wherever the optimum is, times, and the worst instances by name. An instance that the solver does
not prove is compared with its lower bound, which can only make the policy look worse. ``--cold``
keeps the policy's plan from the solver, which otherwise starts from it; the proved optimum is the
same. ``--known FILE`` takes what the solver found from a file instead of solving again; ``--write
FILE`` writes such a file.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from instances import Instance, instance

from hosim.cache_plan import Plan
from hosim.engine import replay
from hosim.errors import InfeasibleError
from hosim.planner.exact import solve
from hosim.policies import policy_named


@dataclass(frozen=True)
class Row:
    """One instance: makespans (None: infeasible), the solver's bound, and seconds."""

    number: int
    name: str
    ops: int
    optimum_ns: int | None
    bound_ns: int
    policy_ns: int | None
    solve_s: float
    plan_s: float

    @property
    def proved(self) -> bool:
        return self.optimum_ns == self.bound_ns or self.optimum_ns is None

    @property
    def ratio(self) -> float | None:
        """Makespan over the optimum, or over the bound where that is not proved."""
        return (
            self.policy_ns / self.bound_ns if self.policy_ns is not None and self.bound_ns else None
        )


Known = Mapping[int, tuple[int, int]]
"""Best makespan and lower bound by number of the instance, as the solver found them."""


def read_known(path: Path) -> Known:
    """What an earlier run has written."""
    with path.open(newline="") as file:
        return {
            int(row["number"]): (int(row["best_ns"]), int(row["bound_ns"]))
            for row in csv.DictReader(file)
        }


def write_known(path: Path, rows: Sequence[Row]) -> None:
    """Keep what the solver found; an instance that nothing fits is left out."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["number", "name", "best_ns", "bound_ns"])
        writer.writerows(
            [row.number, row.name, row.optimum_ns, row.bound_ns]
            for row in rows
            if row.optimum_ns is not None
        )


def measure(
    number: int, drawn: Instance, policy: str, limit: float, cold: bool, known: Known | None = None
) -> Row:
    """Plan and solve one instance."""
    graph, hardware, budget = drawn.graph, drawn.hardware, drawn.budget_bytes
    begin = time.process_time()
    plan: Plan | None = None
    policy_ns = None
    try:
        plan = policy_named(policy).plan(graph, hardware, budget)
        policy_ns = replay(plan, hardware, budget).makespan_ns
    except InfeasibleError:
        pass
    planned = time.process_time()
    if known is not None:
        optimum, bound = known.get(number, (None, 0))
        return Row(
            number, drawn.name, len(graph.ops), optimum, bound, policy_ns, 0.0, planned - begin
        )
    try:
        warm = (
            plan
            if policy_ns is not None and plan is not None and plan.runtime is None and not cold
            else None
        )
        solution = solve(graph, hardware, budget, limit=limit, begin=warm)
        optimum, bound = solution.makespan_ns, solution.bound_ns
    except InfeasibleError:
        optimum, bound = None, 0
    return Row(
        number,
        drawn.name,
        len(graph.ops),
        optimum,
        bound,
        policy_ns,
        time.process_time() - planned,
        planned - begin,
    )


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * round(share * 1000) // 1000) - 1)]


def report(rows: Sequence[Row], policy: str, worst: int) -> str:
    """The figures of the bar, as lines."""
    ratios = [(row.ratio, row) for row in rows if row.ratio is not None]
    both = [ratio for ratio, _ in ratios]
    solve_s = [row.solve_s for row in rows]
    missed = [row.number for row in rows if row.optimum_ns is not None and row.policy_ns is None]
    unproved = [row for row in rows if not row.proved]
    lines = [
        f"instances {len(rows)}, solved exactly {len(rows) - len(unproved)}, feasible "
        f"{sum(row.optimum_ns is not None for row in rows)}",
        f"{policy}: infeasible where a plan exists: {len(missed)} {missed or ''}",
    ]
    if both:
        lines += [
            f"makespan over optimum: mean {sum(both) / len(both):.4f}, 95th percentile "
            f"{percentile(both, 0.95):.4f}, "
            f"largest {max(both):.4f}, optimal on {sum(ratio == 1 for ratio in both)}",
            f"CPU seconds: solver mean {sum(solve_s) / len(rows):.2f}, median "
            f"{percentile(solve_s, 0.5):.2f}, "
            f"95th percentile {percentile(solve_s, 0.95):.2f}, largest {max(solve_s):.2f}; "
            f"{policy} mean {sum(row.plan_s for row in rows) / len(rows):.2f}",
        ]
        proved = [ratio for ratio, row in ratios if row.proved]
        if unproved and proved:
            lines.append(
                f"on the proved ones alone: mean {sum(proved) / len(proved):.4f}, 95th percentile "
                f"{percentile(proved, 0.95):.4f}"
            )
    lines += [
        f"not proved: {row.name}: best {row.optimum_ns}, bound {row.bound_ns}" for row in unproved
    ]
    lines += [
        f"worst: {row.name} ({row.ops} ops): {row.policy_ns} against {row.bound_ns}"
        for _, row in sorted(ratios, key=lambda r: -r[0])[:worst]
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--instances", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first instance")
    parser.add_argument("--policy", default="hyperoffload")
    parser.add_argument(
        "--limit", type=float, default=6.0, help="deterministic seconds of the solver per instance"
    )
    parser.add_argument(
        "--cold", action="store_true", help="do not start the solver from the policy's plan"
    )
    parser.add_argument("--known", type=Path, help="file with what the solver found")
    parser.add_argument("--write", type=Path, help="file to keep that in")
    parser.add_argument("--worst", type=int, default=10)
    parser.add_argument("--verbose", action="store_true", help="a line for each instance")
    given = parser.parse_args(arguments)
    known = read_known(given.known) if given.known else None
    rows = []
    for number in range(given.first, given.first + given.instances):
        row = measure(
            number, instance(number, given.seed), given.policy, given.limit, given.cold, known
        )
        rows.append(row)
        if given.verbose:
            print(row, file=sys.stderr, flush=True)
    if given.write:
        write_known(given.write, rows)
    print(report(rows, given.policy, given.worst))
    return 0


if __name__ == "__main__":
    sys.exit(main())
