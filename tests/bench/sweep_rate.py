"""How fast a sweep is: points a second of one process and of two, and what a point takes beyond a
direct call.

``python tests/bench/sweep_rate.py --points 1000`` sweeps Llama-3.1-8B's prefill with
``hyperoffload`` and exits with 1 unless two processes compute at least 1.7 times as many points a
second as one, and a point takes at most 1.2 times as long as a direct call.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hosim.io import load_any, load_hardware
from hosim.shipped import find_hardware, find_workload
from hosim.study import sweep
from hosim.study.asked import Settings, parse_choice, read_vary
from hosim.study.runs import (
    Question,
    Runner,
    Task,
    check,
    here,
    make_plan,
    pack,
    point_key,
    pool,
    replay,
    solve,
)

RATE, COST = 1.7, 1.2
"""Two processes to one, at least; a point to a direct call, at most."""


def asked(workload: str = "llama-3.1-8b-prefill-4k") -> Question:
    machine = load_hardware(find_hardware("h100-80gb-sxm"))
    return Question(
        load_any(find_workload(workload)), machine, parse_choice("hyperoffload"), "12 GiB"
    )


def points(count: int) -> list[Settings]:
    """Bandwidths, and for each four budgets."""
    budgets = 4
    steps = max(2, -(-count // budgets))
    return list(
        read_vary([f"channels.h2d.bandwidth=40..55GB/s:{steps}", "budget=12GiB,13GiB,14GiB,15GiB"])
    )[:count]


def cost_of_a_point(of: Question, at: Sequence[Settings]) -> float:
    """CPU time of a sweep's points over that of direct calls, one after the other in turns."""
    packed = pack(of)
    tasks = [Task(point_key(packed.digest, settings), packed, settings) for settings in at]
    questions = [of.with_settings(settings) for settings in at]
    solve(tasks[0])
    spent = [0.0, 0.0]
    for task, direct in zip(tasks, questions, strict=True):
        for which, call in enumerate((lambda q=direct: _direct(q), lambda t=task: solve(t))):
            begin = time.process_time()
            call()
            spent[which] += time.process_time() - begin
    return spent[1] / spent[0]


def _direct(of: Question) -> None:
    budget = of.budget_bytes
    plan = make_plan(of.graph, of.hardware, of.choice, budget)
    check(plan, of.hardware, budget)
    replay(plan, of.hardware, budget)


@dataclass(frozen=True)
class Rate:
    """Seconds of elapsed time and of CPU for a whole sweep."""

    seconds: float
    cpu_seconds: float
    rows: object


def rate(of: Question, at: Sequence[Settings], runner: Runner, cpu: Callable[[], float]) -> Rate:
    """What a sweep takes; ``cpu`` says how much CPU its processes have had until now."""
    spent, begin = cpu(), time.perf_counter()
    found = sweep(of, at, runner=runner)
    return Rate(time.perf_counter() - begin, cpu() - spent, found.rows)


def cpu_of_children() -> float:
    """Seconds of CPU of the processes that this one has started and that still run (Linux)."""
    ticks = 0
    for entry in Path("/proc").iterdir():
        try:
            figures = (entry / "stat").read_text().rpartition(")")[2].split()
            ticks += int(figures[11]) + int(figures[12]) if int(figures[1]) == os.getpid() else 0
        except (OSError, ValueError, IndexError):
            continue
    return ticks / os.sysconf("SC_CLK_TCK")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--direct", type=int, default=24, help="points that are compared with direct calls"
    )
    options = parser.parse_args()
    of, at = asked(), points(options.points)
    cost = cost_of_a_point(of, at[: options.direct])
    one = rate(of, at, here, time.process_time)
    many = rate(of, at, pool(options.jobs), cpu_of_children)  # their start included
    assert one.rows == many.rows
    whole, count = one.seconds / many.seconds, len(at)
    print(
        f"{count:,} points: {one.seconds:.1f} s by one process, {many.seconds:.1f} s by "
        f"{options.jobs}: {whole:.2f} times the rate"
    )
    print(
        f"CPU a point: {one.cpu_seconds / count:.3f} s, {many.cpu_seconds / count:.3f} s; "
        f"{cost:.3f} times that of a direct call"
    )
    return 0 if whole >= RATE and cost <= COST else 1


if __name__ == "__main__":
    sys.exit(main())
