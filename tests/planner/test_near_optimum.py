"""hyperoffload beside the exact optimum of small instances, some of those that the solver has solved."""

import sys
from pathlib import Path

import pytest
from instances import instance

BENCH = Path(__file__).resolve().parent.parent / "bench"
sys.path.insert(0, str(BENCH))

import optimality  # noqa: E402

OPTIMA = BENCH / "optima_seed_0.csv"
EVERY = 7
"""One instance in so many is planned (families come in turns of four); ``optimality.py --known``: all 200."""


@pytest.mark.long
def test_near_the_exact_optimum() -> None:
    # on average at most 0.6 %, at worst 7 % above what the solver has proved; feasible wherever something is. Each further instance that
    # is 5 % above moves the mean by 0.4 %, so that one may become a little worse, and two may not
    known = optimality.read_known(OPTIMA)
    rows = [optimality.measure(n, instance(n, 0), "hyperoffload", 0.0, True, known) for n in sorted(known)[::EVERY]]
    print(optimality.report(rows, "hyperoffload", 3))
    assert all(row.policy_ns is not None for row in rows)
    ratios = [row.ratio for row in rows if row.proved and row.ratio is not None]
    assert len(ratios) >= 20
    assert min(ratios) >= 1
    assert sum(ratios) / len(ratios) <= 1.006
    assert max(ratios) <= 1.07
