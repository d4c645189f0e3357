"""Experts on the devices that share layers: the time of their products alone is another one; what
is not modelled is refused.
"""

from dataclasses import replace

import pytest
from typer.testing import CliRunner

import hosim
from hosim.analysis.costmodel import op_durations
from hosim.cli.main import app
from hosim.errors import InputError
from hosim.io.runtimes import with_runtime
from hosim.serving import Iteration, ModelledIterations

H100 = hosim.load_hardware(hosim.find_hardware("h100-80gb-sxm"))


@pytest.mark.parametrize("tokens", [16, 512])
def test_only_the_products_of_experts_take_another_time(tokens):
    """Four devices with 32 whole experts each, or with a quarter of each of 128.

    The product of a layer's experts is of all tokens in both cases: (tokens, 2048, 768, 8 of 128,
    on 1 or 4 parts, on 4 or 1 ranks).
    """
    model = {"model": "qwen3-30b-a3b", "layers": 2, "tensor": 4}
    parts, whole = ModelledIterations(model, H100), ModelledIterations({**model, "expert": 4}, H100)
    graph = parts.graph(tokens)
    (first, second) = [op for op in graph.ops if op.kernel == "moe"]
    assert first.sizes == second.sizes == (tokens, 2048, 768, 8, 128, 4, 1)
    other = tuple(
        replace(op, sizes=(tokens, 2048, 768, 8, 128, 1, 4)) if op.kernel == "moe" else op
        for op in graph.ops
    )
    before, after = (sum(op_durations(replace(graph, ops=ops), H100)) for ops in (graph.ops, other))
    iteration = Iteration(((tokens, 0),), 0, 0, (0,))
    assert whole(iteration) - parts(iteration) == after - before != 0
    assert (whole.devices, whole.weight_bytes, whole.cache_bytes_per_token) == (
        4,
        parts.weight_bytes,
        parts.cache_bytes_per_token,
    )


def test_products_by_groups():
    """DeepSeek's experts are two products, whose columns and rows are whole then."""
    model = {"model": "deepseek-v2-lite", "layers": 2, "tensor": 4}
    graphs = [ModelledIterations({**model, **more}, H100).graph(64) for more in ({}, {"expert": 4})]
    parts, whole = (
        [op.sizes for op in graph.ops if op.kernel in ("moe", "expert_product")] for graph in graphs
    )
    assert len(parts) == len(whole) > 0
    assert all(one[0] == other[0] == 64 for one, other in zip(parts, whole, strict=True))
    assert parts != whole


@pytest.mark.parametrize(
    ("more", "error"),
    [
        (
            {"expert": 4},
            "expert: hosim serves experts on the devices that share layers alone: expected 1, or "
            "what tensor is (1), got 4",
        ),
        (
            {"tensor": 2, "expert": 4},
            "expert: hosim serves experts on the devices that share layers alone: expected 1, or "
            "what tensor is (2), ",
        ),
        ({"pipeline": 2}, "pipeline: hosim does not serve on stages of a pipeline: leave it out"),
    ],
)
def test_what_is_refused(more, error):
    with pytest.raises(InputError) as caught:
        ModelledIterations({"model": "mixtral-8x7b", **more}, H100)
    assert str(caught.value).startswith(f"mixtral-8x7b: {error}")


def test_the_command():
    line = [
        "serve",
        "gpt-oss-20b",
        "-H",
        "h100",
        "--requests",
        "poisson:rate=50:count=2:output=2",
        "--expert",
        "2",
    ]
    assert CliRunner().invoke(app, [*line, "--tensor", "2", "--json"]).exit_code == 0
    refused = CliRunner().invoke(app, line)
    assert (
        refused.exit_code,
        "expected 1, or what tensor is (1), got 2" in refused.stderr.replace("\n", " "),
    ) == (2, True)


def test_popular_experts_are_read_once():
    """As with a builder's trace, some experts are popular, and fewer of them are read."""
    model = {"model": "qwen3-30b-a3b", "layers": 2}
    even, usual, steep = (
        ModelledIterations({**model, **more}, H100).dense_ns(16)
        for more in ({"routing": None}, {}, {"routing": {"zipf": 3}})
    )
    assert steep < usual < even
    said = ModelledIterations({**model, "routing": {"zipf": 1.0}}, H100)
    assert said.dense_ns(16) == usual


def test_steps_that_others_measured():
    """gpt-oss-120b on eight H100 under vLLM, answers of 1,024 tokens to prompts of 1,024: each token
    took so many milliseconds with so many requests at once (SemiAnalysisAI/InferenceX#828, on which
    nothing is fitted). What more requests add is what the experts add that they read; evenly chosen
    ones add too much.
    """
    measured = {4: 3.72, 8: 4.05, 16: 4.83, 32: 5.82, 64: 7.36}
    model = {"model": "gpt-oss-120b", "weights": "mxfp4", "tensor": 8, "runtime": "vllm"}
    found, even = (
        {n: ModelledIterations(made, H100)(Iteration((), n, 1536 * n, ())) / 1e6 for n in measured}
        for made in map(with_runtime, (model, {**model, "routing": None}))
    )
    for n, ms in measured.items():
        assert found[n] == pytest.approx(ms, rel=0.1)
    assert found[64] - found[4] == pytest.approx(measured[64] - measured[4], rel=0.05)
    assert even[64] - even[4] > 1.2 * (measured[64] - measured[4])


@pytest.mark.parametrize(
    ("model", "routing", "where"),
    [
        ("llama-3.1-8b", {"zipf": 1.0}, "routing"),
        ("qwen3-30b-a3b", {"steps": 2}, "routing"),
        ("qwen3-30b-a3b", {"zipf": "much"}, "routing.zipf"),
        ("qwen3-30b-a3b", {"zipf": -1}, "routing.zipf"),
    ],
)
def test_routings_that_serving_refuses(model, routing, where):
    with pytest.raises(InputError) as refused:
        ModelledIterations({"model": model, "layers": 2, "routing": routing}, H100)
    assert refused.value.where == where
