"""A workload of 100,000 ops loads in a few times what Python takes to parse its JSON, and in
proportion to its size.
"""

import json
import tempfile
from functools import cache
from pathlib import Path

from measures import least, measure

from hosim.graph import Graph, GraphBuilder
from hosim.io import load_workload, save_workload


def chain(n: int) -> Graph:
    b = GraphBuilder("chain")
    last = b.tensor("x", 4, "input")
    for i in range(n):
        inputs = [last, b.tensor(f"model.layers.{i}.weight", 2**20, "parameter")]
        last = b.tensor(f"model.layers.{i}.out", 2**20)
        b.op(
            f"model.layers.{i}.linear",
            "matmul",
            inputs=inputs,
            outputs=[last],
            flops=10**9,
            bytes_accessed=3 * 2**20,
        )
    return b.build()


@cache
def folder() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory()


def saved(n: int) -> Path:
    path = Path(folder().name) / f"{n}.json"
    save_workload(chain(n), path)
    return path


@measure("100,000 ops: load, in json.loads of the same text", most=5)
def load_and_parse() -> float:
    path = saved(100_000)
    load, parse = least(
        [lambda: load_workload(path), lambda: json.loads(path.read_text())], rounds=4
    )
    return load / parse


@measure("100,000 ops: load, in loads of 10,000", most=18)
def load_tenfold() -> float:
    small, large = saved(10_000), saved(100_000)
    few, many = least([lambda: load_workload(small), lambda: load_workload(large)], rounds=4)
    return many / few


@measure("100,000 ops: save, in saves of 10,000", most=18)
def save_tenfold() -> float:
    small, large, path = chain(10_000), chain(100_000), Path(folder().name) / "saved.json"
    few, many = least(
        [lambda: save_workload(small, path), lambda: save_workload(large, path)], rounds=4
    )
    return many / few
