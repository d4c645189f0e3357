"""What a random search finds beside the planner's plans: ``python tests/bench/searching.py
--seconds 60 --rows build/searched.csv``.

Twelve workloads with waits, each planned and then searched from its plan (:mod:`random_search`) for
so many seconds of CPU, or for so many replays. A row for each: the milliseconds of the plan, those
of the best plan found, what part of the time was saved, and how many replays a minute the search
made. With ``--rows`` a file keeps the rows, and those that it has are not searched again.

Plans of another revision: ``--export FOLDER`` writes workloads and a script that plans them there
by whatever ``hosim`` is in the path; ``--plans FOLDER`` searches from these plans.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from measures import measure
from random_search import search

from hosim.cache_plan import Plan
from hosim.engine import read_budget
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.io import load_any, load_hardware, load_plan, make, save_workload
from hosim.policies import policy_named
from hosim.shipped import find_hardware, find_workload

MIXTRAL = {
    "model": "llama-3.1-8b",
    "config": {
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 14336,
        "vocab_size": 32000,
    },
    "layers": 8,
    "batch": 1,
}
"""Eight layers of Mixtral 8x7B, which are those of Llama 3.1 8B with experts."""


@dataclass(frozen=True)
class Searched:
    """A workload, as the parameters of a builder or the name of one that is shipped, on a machine
    within a budget.
    """

    name: str
    workload: dict[str, object] | str
    machine: str
    budget: str

    def graph(self) -> Graph:
        """The workload."""
        if isinstance(self.workload, str):
            return load_any(find_workload(self.workload))
        return make(
            {
                "format": "hosim.spec/1",
                "name": self.name,
                "builder": {**self.workload, "fused": True},
            },
            self.name,
        )

    def hardware(self) -> Hardware:
        """The machine."""
        return load_hardware(find_hardware(self.machine))


CASES = (
    Searched(
        "gpt2-train",
        {"model": "gpt2", "phase": "train", "batch": 8, "sequence": 1024},
        "rtx-4090",
        "60%",
    ),
    Searched(
        "gpt2-xl-6-train",
        {"model": "gpt2-xl", "phase": "train", "batch": 4, "sequence": 1024, "layers": 6},
        "a100-80gb-sxm",
        "75%",
    ),
    Searched(
        "dit-12-train",
        {"model": "dit-xl-2", "phase": "train", "batch": 16, "layers": 12},
        "rtx-4090",
        "60%",
    ),
    Searched("vit-train", {"model": "vit-l-16", "phase": "train", "batch": 64}, "rtx-4090", "50%"),
    Searched(
        "bert-train", {"model": "bert-large", "phase": "train", "batch": 16}, "h100-80gb-sxm", "70%"
    ),
    Searched(
        "t5-train",
        {"model": "t5-large", "phase": "train", "batch": 4, "layers": 4},
        "a100-80gb-sxm",
        "60%",
    ),
    Searched(
        "mixtral-prefill", {**MIXTRAL, "phase": "prefill", "sequence": 2048}, "rtx-4090", "40%"
    ),
    Searched(
        "mixtral-decode",
        {**MIXTRAL, "phase": "decode", "batch": 8, "context": 2048},
        "rtx-4090",
        "40%",
    ),
    Searched("qwen3-decode", "qwen3-30b-a3b-decode-experts-below", "ascend-910c-supernode", "40%"),
    Searched("deepseek-decode", "deepseek-v3-decode-slice", "ascend-910c-supernode", "60%"),
    Searched("qwen3-train", "qwen3-30b-a3b-train-slice", "h100-80gb-sxm", "60%"),
    Searched("llama-train", "llama-3.1-8b-train-4k-states-below", "gh200-96gb", "60%"),
)
"""Each of them waits for transfers under the plans of revision 8704295."""


@dataclass(frozen=True)
class Row:
    """What the search found for one of them."""

    name: str
    plan_ms: float
    found_ms: float
    saved: float
    replays: int
    verified: int
    seconds: float

    def __str__(self) -> str:
        minute = (
            f"{60 * self.replays / max(self.seconds, 1e-9):6.0f} replays and "
            f"{60 * self.verified / max(self.seconds, 1e-9):5.0f} verified"
        )
        return (
            f"{self.name:18} {self.plan_ms:10.3f} ms {self.found_ms:10.3f} ms "
            f"{self.saved:7.2%}  {minute} a minute"
        )


def measured(
    case: Searched,
    plans: Path | None,
    seed: int,
    replays: int | None,
    seconds: float | None,
    enough: float,
) -> Row:
    """Plan, or take the plan from the folder, and search."""
    graph, hardware = case.graph(), case.hardware()
    _, budget = read_budget(case.budget).of(graph, hardware)
    plan: Plan = (
        policy_named("hyperoffload").plan(graph, hardware, budget)
        if plans is None
        else load_plan(plans / f"{case.name}.plan.json", graph)
    )
    found = search(
        plan,
        hardware,
        budget,
        seed=seed,
        replays=replays,
        seconds=seconds,
        enough=enough,
        tell=lambda line: print(f"{case.name}: {line}", file=sys.stderr, flush=True),
    )
    milliseconds = found.begin_ns / 1e6, found.makespan_ns / 1e6
    return Row(case.name, *milliseconds, found.gain, found.replays, found.verified, found.seconds)


def export(folder: Path) -> None:
    """Writes the workloads, the machines, and a script that plans them."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for case in CASES:
        save_workload(case.graph(), folder / f"{case.name}.json.gz")
        machine = Path(find_hardware(case.machine))
        (folder / machine.name).write_bytes(machine.read_bytes())
        lines.append(
            f"hosim plan {case.name}.json.gz -H {machine.name} -b {case.budget} -o "
            f"{case.name}.plan.json"
        )
    (folder / "plan.sh").write_text(
        'cd "$(dirname "$0")" || exit\n' + "".join(f"{line}\n" for line in lines)
    )


def read_rows(path: Path | None) -> dict[str, Row]:
    """The rows in a file, by name."""
    if path is None or not path.exists():
        return {}
    with path.open(newline="") as file:
        return {
            line["name"]: Row(
                line["name"],
                *(float(line[key]) for key in ("plan_ms", "found_ms", "saved")),
                int(line["replays"]),
                int(line["verified"]),
                float(line["seconds"]),
            )
            for line in csv.DictReader(file)
        }


def add_row(path: Path | None, row: Row) -> None:
    """One more row at the end of a file."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = not path.exists()
        with path.open("a", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            if new:
                writer.writerow(field.name for field in fields(Row))
            writer.writerow(astuple(row))


@measure(
    "the most that 60 s of random search save of a plan's time, of 12 workloads", most=1, unit="%"
)
def saved() -> float:
    return max(100 * measured(case, None, 0, None, 60, 1.0).saved for case in CASES)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--seconds", type=float, help="CPU seconds of each search (default: 60 without --replays)"
    )
    parser.add_argument(
        "--replays", type=int, help="replays of each search: the same result each time"
    )
    parser.add_argument(
        "--enough",
        type=float,
        default=1.0,
        help="a search ends when it has saved this part of the time",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="only workloads with this in their name"
    )
    parser.add_argument("--rows", type=Path, help="file that keeps the rows")
    parser.add_argument("--plans", type=Path, help="folder of NAME.plan.json to search from")
    parser.add_argument(
        "--export", type=Path, metavar="FOLDER", help="write workloads and plan.sh there, and end"
    )
    given = parser.parse_args(arguments)
    if given.export:
        export(given.export)
        return 0
    seconds = 60.0 if given.seconds is None and given.replays is None else given.seconds
    rows = read_rows(given.rows)
    for case in CASES:
        if given.only in case.name:
            if case.name not in rows:
                rows[case.name] = measured(
                    case, given.plans, given.seed, given.replays, seconds, given.enough
                )
                add_row(given.rows, rows[case.name])
            print(rows[case.name], flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
