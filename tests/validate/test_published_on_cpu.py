"""Steps that others timed with a part of them on the CPU: attention over a cache (FlexGen), the optimizer (ZeRO-Offload)."""

import csv
import json

import pytest
from published_rows import FILE, generated, generation_graph

from hosim.costmodel.op_time import op_durations
from hosim.engine import replay
from hosim.graph import Graph, GraphBuilder
from hosim.io import find_hardware, load_hardware
from hosim.models.build import build
from hosim.policies import registry

pytestmark = pytest.mark.skipif(not FILE.is_file(), reason=f"no {FILE}")


def step_ns(graph: Graph, machine: str, policy: str, **parameters: float) -> int:
    hardware = load_hardware(find_hardware(machine))
    result = replay(registry.get(policy).plan(graph, hardware, **parameters), hardware)
    assert result.makespan_ns is not None, result.error
    return result.makespan_ns


def test_attention_on_the_cpu(compared) -> None:
    """Weights as published in the decode, 20 % on the GPU; in the prompt, whose batch is not split here, as many as fit beside it."""
    row = generated()["flexgen-opt-30b-t4"]
    prompt = step_ns(generation_graph(row, "prefill", "ddr"), "t4", "flexgen")
    decode = step_ns(generation_graph(row, "decode", "ddr", attention_on="ddr"), "t4", "flexgen", weights=0.8)
    tokens = row.run["batch"] * row.run["generate"] * 1e9 / (prompt + (row.run["generate"] - 1) * decode)
    compared("FlexGen", row.id, "tokens a second", row.figure, tokens, within=0.2)


@pytest.mark.long
def test_an_optimizer_on_the_cpu(compared) -> None:
    """GPT-2 in eager mode. Whether the source counts recomputation is not said; DeepSpeed's calculators do, by which hosim is too fast."""
    (row,) = [row for row in csv.DictReader(FILE.read_text().splitlines()) if row["id"] == "zero-offload-10b-v100"]
    model, run = json.loads(row["model"]), json.loads(row["run"])
    sizes = {"n_embd": model["hidden_size"], "n_layer": model["num_hidden_layers"], "n_head": model["num_attention_heads"]}
    graph = build(
        row["id"],
        {
            "model": "gpt2-xl",
            "config": {**sizes, "vocab_size": model["vocab_size"]},
            "phase": "train",
            "batch": run["batch"],
            "sequence": run["sequence"],
            "checkpoint": True,
            "dtype": "fp16",
            "attention": "math",
            "optimizer_on": "ddr",
        },
    )
    took = step_ns(graph, "v100-32gb", "zero_offload")
    flops = sum(op.flops for op in graph.ops)
    again = sum(op.flops for op in graph.ops if op.name.startswith("recompute"))
    published = float(row["value"])
    compared("ZeRO-Offload", row["id"], "TFLOP/s, without recomputation", published, (flops - again) / took / 1e3, within=0.2)
    compared("ZeRO-Offload", row["id"], "TFLOP/s", published, flops / took / 1e3, within=0.5)


def test_products_of_a_v100(compared) -> None:
    """Part of why steps on it are too fast: zzc0721/torch-performance-test-data#140 measured 97.36 TFLOP/s for 8192 in fp16."""
    n = 8192
    b = GraphBuilder("product")
    for name, kind in (("a", "input"), ("b", "input"), ("c", "output")):
        b.tensor(name, 2 * n * n, kind)
    kernel = {"kernel": "gemm", "sizes": (n, n, n), "flops": 2 * n**3, "bytes_accessed": 6 * n * n, "dtype": "fp16"}
    b.op("product", "matmul", inputs=["a", "b"], outputs=["c"], **kernel)
    (took,) = op_durations(b.build(), load_hardware(find_hardware("v100-32gb")))
    compared("torch benchmark", "V100, product of 8192 in fp16", "TFLOP/s", 97.36, 2 * n**3 / took / 1e3, within=0.1)
