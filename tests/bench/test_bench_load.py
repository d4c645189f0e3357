"""A workload of 100,000 ops loads in a few times what Python takes to parse its JSON, and in proportion to its size."""

import json
import time

import pytest

from hosim.graph import GraphBuilder
from hosim.io import load_workload, save_workload


def chain(n):
    b = GraphBuilder("chain")
    last = b.tensor("x", 4, "input")
    for i in range(n):
        inputs = [last, b.tensor(f"model.layers.{i}.weight", 2**20, "parameter")]
        last = b.tensor(f"model.layers.{i}.out", 2**20)
        b.op(f"model.layers.{i}.linear", "matmul", inputs=inputs, outputs=[last], flops=10**9, bytes_accessed=3 * 2**20)
    return b.build()


def seconds(function, *arguments):
    best = float("inf")
    for _ in range(4):
        start = time.process_time()
        function(*arguments)
        best = min(best, time.process_time() - start)
    return best


@pytest.mark.slow
def test_loading_and_saving_a_hundred_thousand_ops(tmp_path):
    measured = {}
    for n in (10_000, 100_000):
        graph, path = chain(n), tmp_path / f"{n}.json"
        save_workload(graph, path)
        assert load_workload(path) == graph
        measured[n] = seconds(load_workload, path), seconds(save_workload, graph, path), seconds(json.loads, path.read_text())
    (load, save, parse), (small_load, small_save, _) = measured[100_000], measured[10_000]
    print(f"100,000 ops: load {load:.2f} s, save {save:.2f} s, json.loads {parse:.2f} s of CPU")
    assert load < 5 * parse
    assert load < 18 * small_load
    assert save < 18 * small_save
