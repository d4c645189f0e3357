"""How far hyperoffload is from proved optima on new instances: ``python tests/bench/new_optima.py
FILE --instances 400 --seed 1``.

Instances have one to three streams and one to three tiers below
(:func:`instances.instance_on_streams`). Each becomes a row of FILE as soon as it is solved, and a
run that finds rows there goes on behind them; ``--seconds`` ends it after so many seconds of CPU.
At the end the figures: how many are proved, whether the policy fits wherever a plan exists, and the
mean, the 95th percentile and the largest ratio of its makespan to the proved optimum, of all and by
number of streams.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Sequence
from dataclasses import astuple, fields
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from instances import instance_on_streams
from optimality import Row, measure, percentile

COLUMNS = tuple(field.name for field in fields(Row))


def read_rows(path: Path) -> list[Row]:
    """What earlier runs have written; a last line that was cut off is left out."""
    if not path.exists():
        return []
    rows = []
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["plan_s"]:
                figures = [
                    int(row[name]) if row[name] else None
                    for name in ("optimum_ns", "bound_ns", "policy_ns")
                ]
                rows.append(
                    Row(
                        int(row["number"]),
                        row["name"],
                        int(row["ops"]),
                        *figures,
                        float(row["solve_s"]),
                        float(row["plan_s"]),
                    )
                )
    return rows


def summary(rows: Sequence[Row], title: str) -> str:
    """One line of figures."""
    proved = [row for row in rows if row.optimum_ns is not None and row.proved]
    missed = [row.number for row in rows if row.optimum_ns is not None and row.policy_ns is None]
    ratios = [
        row.policy_ns / row.optimum_ns
        for row in proved
        if row.policy_ns is not None and row.optimum_ns
    ]
    said = (
        f"{title}: {len(rows)} instances, {len(proved)} proved; infeasible where a plan "
        f"exists: {len(missed)} {missed or ''}"
    )
    if not ratios:
        return said
    worst = max(ratios)
    return (
        f"{said}; makespan over the optimum: mean {sum(ratios) / len(ratios):.4f}, 95th "
        f"percentile {percentile(ratios, 0.95):.4f}, "
        f"largest {worst:.4f}, optimal on {sum(ratio == 1 for ratio in ratios)}; CPU seconds: "
        f"solver {sum(r.solve_s for r in rows):.0f}, "
        f"policy {sum(r.plan_s for r in rows):.0f}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--instances", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--policy", default="hyperoffload")
    parser.add_argument(
        "--limit", type=float, default=6.0, help="deterministic seconds of the solver per instance"
    )
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="CPU seconds after which to end"
    )
    given = parser.parse_args(arguments)
    rows = read_rows(given.file)
    done = {row.number for row in rows}
    with given.file.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(astuple(row) for row in rows)
        for number in range(given.instances):
            if number in done:
                continue
            if time.process_time() > given.seconds:
                break
            row = measure(
                number,
                instance_on_streams(number, given.seed),
                given.policy,
                given.limit,
                cold=False,
            )
            rows.append(row)
            writer.writerow(astuple(row))
            file.flush()
            print(f"{len(rows)} of {given.instances}: {row}", file=sys.stderr, flush=True)
    print(summary(rows, "all"))
    for streams in (1, 2, 3):
        print(
            summary(
                [row for row in rows if f"-{streams}-streams-" in row.name], f"{streams} streams"
            )
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
