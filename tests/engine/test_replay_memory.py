"""What a replay of many ops takes in memory."""

import sys
import tracemalloc
from pathlib import Path

import pytest

from hosim.cache_plan import Plan
from hosim.engine import replay
from hosim.graph import Graph

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "bench"))

from test_bench_replay import MACHINE, OPS, chain_and_branches

BYTES_AN_OP = 1_500


@pytest.mark.slow
@pytest.mark.parametrize("streams", [2])
def test_memory_an_op(streams):
    plan = chain_and_branches(OPS, streams)
    replay(Plan(plan.graph, "resident", (), dict.fromkeys(plan.graph.initial, ("hbm",))), MACHINE)
    graph = Graph(plan.graph.name, plan.graph.tensors, plan.graph.ops)  # nothing derived from it yet
    plan = Plan(graph, plan.policy, plan.cache_ops)
    tracemalloc.start()
    replay(plan, MACHINE)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    print(f"{streams} streams: at most {peak / OPS:.0f} bytes an op while replaying, with all that is derived from the graph")
    assert peak <= BYTES_AN_OP * OPS
