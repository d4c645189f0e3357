"""With faster channels or more memory README's workload takes no longer, but for what copies take
from the ops beside them.
"""

import csv
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hosim.cli.main import app

STEP = ("llama-3.1-8b-prefill-4k", "-H", "h100-80gb-sxm", "--jobs", "1")
HARDLY = 0.00005
"""The part by which a makespan may rise: the same plan takes as much longer on a faster channel,
where copies slow down other ops.
"""


def makespans(file: Path, *options: str) -> Sequence[int]:
    """What each point of a sweep takes, in the order of the points."""
    result = CliRunner().invoke(app, ["sweep", *STEP, *options, "-o", str(file)])
    assert result.exit_code == 0, result.output
    with file.open(newline="") as rows:
        return [int(row["makespan_ns"]) for row in csv.DictReader(rows)]


@pytest.mark.long
def test_along_twelve_bandwidths(tmp_path: Path) -> None:
    found = makespans(
        tmp_path / "bandwidths.csv",
        "--vary",
        "channels.h2d.bandwidth=8GB/s..30GB/s:12",
        "--budget",
        "12GiB",
    )
    print("ms along bandwidths:", [round(ns / 1e6, 2) for ns in found])
    assert len(found) == 12
    assert all(more <= less * (1 + HARDLY) for less, more in pairwise(found))
    assert found[2] < 126_100_000  # from 12 GB/s on nothing waits


@pytest.mark.long
def test_along_budgets_in_steps_of_five_per_cent(tmp_path: Path) -> None:
    found = makespans(tmp_path / "budgets.csv", "--vary", "budget=20..100%:17")
    print("ms along budgets:", [round(ns / 1e6, 2) for ns in found])
    assert len(found) == 17
    assert all(more <= less for less, more in pairwise(found))
