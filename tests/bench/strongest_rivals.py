"""How far hyperoffload is ahead of its strongest rival: ``python tests/bench/strongest_rivals.py``, a table of every shipped workload.

A row for each workload and budget, in Markdown: what hyperoffload takes, the strongest rival and what that takes, by how much of it
hyperoffload takes less, the same for plans that only move (no ops run again, nor in another order), and whether not to offload is the
answer. Nothing is left out: what does not fit says so. ``--machine``, ``--budgets`` and ``--workloads`` choose others.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from hosim.analysis.budget import parse_budget
from hosim.analysis.no_offload import no_offload
from hosim.analysis.strongest_rival import OURS, fastest_with_ours, strongest_rival
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.importers import load_any
from hosim.io.hardware_file import load_hardware
from hosim.io.shipped import find_hardware, find_workload, workloads
from hosim.result import Result
from hosim.study.compare import compare
from hosim.study.policy_choice import PolicyChoice, parse_choices
from hosim.units import human_size, human_time

MOVES_ONLY = {"recompute": False, "reorder": False}


def percent(ahead: float) -> str:
    """A share with its sign."""
    return f"{100 * ahead:+.1f} %"


def row(graph: Graph, machine: Hardware, budget: str, effort: float) -> list[str]:
    """The cells of one workload within one budget."""
    _, budget_bytes = parse_budget(budget, graph, machine)
    ours = [PolicyChoice(OURS, {"effort": effort}, OURS), PolicyChoice(OURS, {"effort": effort, **MOVES_ONLY}, f"{OURS}:moves")]
    rivals = [choice for choice in parse_choices(None) if choice.name != OURS]
    results = compare(graph, machine, [*ours, *rivals], budget_bytes)
    full, moves, others = results[0], results[1], results[2:]
    answer = no_offload(graph, machine, budget_bytes, fastest_with_ours(results))
    cells = [graph.name, f"{budget}, {human_size(budget_bytes)}", taken(full)]
    rival = strongest_rival([full, *others])
    if rival is None:
        fitting = ", ".join(result.policy for result in others if result.feasible)
        return [*cells, fitting or "none fits", "-", "-", "-", answer.reason if answer else "-"]
    only_moves = strongest_rival([moves, *others])
    ahead = [percent(rival.ahead), percent(only_moves.ahead) if only_moves else "does not fit"]
    return [*cells, rival.policy, human_time(rival.makespan_ns), *ahead, answer.reason if answer else "-"]


def taken(result: Result) -> str:
    """The makespan of a result, or that there is none."""
    return "does not fit" if result.makespan_ns is None or not result.feasible else human_time(result.makespan_ns)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, each row when it is known."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", default="h100-80gb-sxm")
    parser.add_argument("--budgets", default="75%,50%", help="shares of the resident peak, or sizes")
    parser.add_argument("--workloads", default="", help="names, separated by commas; by default every shipped one")
    parser.add_argument("--effort", type=float, default=1.0)
    given = parser.parse_args(arguments)
    machine = load_hardware(find_hardware(given.machine))
    columns = ["workload", "budget", "hyperoffload", "strongest rival", "takes", "ahead", "ahead, moves only", "do not offload"]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}", flush=True)
    for name in given.workloads.split(",") if given.workloads else sorted(workloads()):
        graph = load_any(find_workload(name))
        for budget in given.budgets.split(","):
            print(f"| {' | '.join(row(graph, machine, budget, given.effort))} |", flush=True)


if __name__ == "__main__":
    main()
