"""Training steps of GPTs on one node of A100s that vTrain's authors timed, beside the project, under
the runtime that was fitted to some of them.
"""

import csv
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import mean

import pytest

import hosim
from hosim.io import load_named

FILE = Path(__file__).parents[3] / "shared" / "data" / "practitioners" / "vtrain_a100.csv"
EVERY = 9
"""One row of so many is replayed."""

pytestmark = [pytest.mark.long, pytest.mark.skipif(not FILE.is_file(), reason=f"no {FILE}")]


def step(row: Mapping[str, str], micro_batches: int) -> str:
    """The workload of a row with so many micro-batches."""
    sizes = (
        f"config.n_embd={row['hidden']}:config.n_layer={row['layers']}:config.n_head={row['heads']}"
    )
    ways = "".join(
        [f":{way}={row[way]}" for way in ("tensor", "data", "pipeline") if row[way] != "1"]
    )
    return (
        f"gpt2:phase=train:{sizes}:batch={row['micro_batch']}:sequence={row['sequence']}"
        f":checkpoint=true:runtime=megatron-2022{ways}"
        + (f":micro_batches={micro_batches}" if micro_batches > 1 else "")
    )


def milliseconds(row: Mapping[str, str]) -> float:
    """Of a step with at most four micro-batches; each further one takes what the last did."""
    count = int(row["global_batch"]) // (int(row["data"]) * int(row["micro_batch"]))

    def replayed(micro_batches: int) -> float:
        asked = step(row, micro_batches)
        if row["pipeline"] != "1":
            plans = hosim.plan_stages(asked, "a100", "resident")
            return hosim.replay_stages(plans, "a100").whole.makespan_ns / 1e6
        return hosim.replay(hosim.Plan(load_named(asked)), "a100").makespan_ns / 1e6

    least = 1 if row["pipeline"] == "1" else int(row["pipeline"])
    if count <= least + 1:
        return replayed(count)
    first, second = replayed(least), replayed(least + 1)
    return second + (count - least - 1) * (second - first)


def test_steps_by_how_they_are_split(compared) -> None:
    off: defaultdict[str, list[float]] = defaultdict(list)
    for row in list(csv.DictReader(FILE.read_text().splitlines()))[::EVERY]:
        ours, truth = milliseconds(row), float(row["iteration_ms"])
        ways = [way for way in ("tensor", "data", "pipeline") if row[way] != "1"]
        off[", ".join(ways)].append(ours / truth - 1)
        compared(
            "vTrain", f"GPT {row['hidden']} wide, {', '.join(ways)}", "ms", truth, ours, within=0.4
        )
    every = [abs(error) for errors in off.values() for error in errors]
    assert mean(every) <= 0.12, {ways: mean(map(abs, errors)) for ways, errors in off.items()}
