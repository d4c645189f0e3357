"""Serving in draws of what is uncertain: iterations, links and room in a draw, and intervals of what
comes out.
"""

from dataclasses import replace

import numpy as np
import pytest
from rendered import lines

import hosim
from hosim.analysis.costmodel import op_durations
from hosim.analysis.costmodel.spreads import DrawnTimes
from hosim.data.draws import FEW_DRAWS, ends
from hosim.graph import Graph
from hosim.serving import Iteration, ModelledIterations, serve_defaults
from hosim.serving.api import in_draw, read_setup
from hosim.serving.report import serving
from hosim.serving.requests import Request

H100 = hosim.load_hardware(hosim.find_hardware("h100-80gb-sxm"))
MODEL = {"model": "llama-3.1-8b", "layers": 2}


@pytest.fixture(scope="module")
def modelled() -> ModelledIterations:
    return ModelledIterations(MODEL, H100)


def prompt(tokens: int) -> Iteration:
    return Iteration(((tokens, 0),), 0, 0, (0,))


def test_an_iteration_in_a_draw_is_the_sum_of_its_kernels_there(modelled) -> None:
    """Of a prompt of 16 tokens, whose attention and head are those that stand for their class."""
    graph = modelled.graph(16)
    times = DrawnTimes(graph, modelled.hardware)
    nominal = op_durations(graph, modelled.hardware)
    drawn, factors = times.durations(nominal, FEW_DRAWS), times.kernels(FEW_DRAWS)
    whole = modelled(prompt(16))
    for d in (0, 7, FEW_DRAWS - 1):
        expected = 0
        for i, op in enumerate(graph.ops):
            if op.kernel == "context_attention":
                one = modelled.attention_ns(prompt(16)) / 2
                expected += one * factors[i, d]
            elif op.name.endswith("lm_head"):
                head = replace(op, sizes=(1, *op.sizes[1:]), inputs=(), outputs=())
                of_head = DrawnTimes(Graph("head", (), (head,)), modelled.hardware)
                expected += modelled.head_ns(prompt(16)) * of_head.kernels(FEW_DRAWS)[0, d]
            else:
                expected += drawn[d, i]
        found = modelled.in_draw(d)(prompt(16))
        assert found == pytest.approx(expected, abs=3)
        assert found != whole
    assert modelled(prompt(16)) == whole  # as it was


def test_between_counts_of_tokens_a_draw_is_linear(modelled) -> None:
    there = modelled.in_draw(3)
    low, middle, high = (there.dense_ns(tokens) for tokens in (32, 40, 48))
    assert middle == (low + high) // 2


def test_a_host_in_a_draw_takes_what_its_calls_take() -> None:
    slow = {**MODEL, "runtime": {"name": "by hand", "host": {"value": 1e6, "spread": 0.3}}}
    issued = ModelledIterations(slow, H100)
    drawn = [issued.in_draw(d)(prompt(16)) / issued(prompt(16)) for d in range(FEW_DRAWS)]
    assert np.log(drawn).std() == pytest.approx(0.3, rel=0.25)


def test_intervals_of_one_request_are_those_of_its_iterations(modelled) -> None:
    served = hosim.serve(MODEL, H100, [Request(0, 16, 1)])
    took = [modelled.in_draw(d)(prompt(16)) for d in range(FEW_DRAWS)]
    found = served.intervals()
    assert (found["count"], found["unfit"]) == (FEW_DRAWS, 0)
    assert found["ttft_ns"]["mean"] == ends(took) == found["latency_ns"]["p99"]
    assert found["tpot_ns"]["mean"] is None
    low, high = found["requests_per_s"]
    assert (1e9 / high, 1e9 / low) == pytest.approx(ends(took), rel=0.02)
    assert served.intervals() == found
    assert served.summary() == hosim.serve(MODEL, H100, [Request(0, 16, 1)]).summary()


def test_links_of_a_draw_are_as_slow_as_copies_are_there(modelled) -> None:
    options = serve_defaults() | {"kv": "lru:tiers=ddr=1GB"}
    setup = read_setup(MODEL, H100, [Request(0, 16, 1)], **options)
    times = DrawnTimes(modelled.graph(1), setup.kv.machine)
    for d in (0, 5):
        there = in_draw(setup, d)
        for before, now in zip(setup.kv.machine.channels, there.kv.machine.channels, strict=True):
            factor = times.copies(before, "kv_cache", FEW_DRAWS)[d]
            assert before.bandwidth_bytes_per_s / now.bandwidth_bytes_per_s == pytest.approx(factor)
        assert there.blocks == setup.blocks  # no runtime says what else takes room


def test_room_is_drawn_where_a_runtime_takes_some() -> None:
    named = {"model": "llama-3.1-8b", "runtime": "vllm"}
    asked = [Request(0, 16, 1)]
    setup = read_setup(named, "rtx4090", asked, **serve_defaults())
    assert len(set(setup.drawn_blocks)) > FEW_DRAWS // 2
    low, high = setup.about["low_blocks"], setup.about["high_blocks"]
    assert low < setup.blocks < high
    within = [low <= blocks <= high for blocks in setup.drawn_blocks]
    assert 16 <= sum(within) < FEW_DRAWS
    assert [in_draw(setup, d).blocks for d in range(FEW_DRAWS)] == list(setup.drawn_blocks)
    given = read_setup(named, "rtx4090", asked, **(serve_defaults() | {"blocks": 100}))
    assert not given.drawn_blocks


def test_a_draw_without_room_for_a_request_is_counted() -> None:
    named = {"model": "llama-3.1-8b", "runtime": "vllm"}
    served = hosim.serve(named, "rtx4090", [Request(0, 16 * 2450, 1)])
    found = served.intervals()
    assert 0 < found["unfit"] < FEW_DRAWS


def test_the_interval_of_a_fit_is_that_of_serving_every_value_in_every_draw() -> None:
    requests = "poisson:rate=1:count=6:output=3"
    axis = [100, 400, 1600]
    kept = []
    for rate in axis:
        again = hosim.serve(MODEL, H100, f"poisson:rate={rate}:count=6:output=3").again
        first = [again(d).summary()["ttft_ns"]["p95"] for d in range(FEW_DRAWS)]
        kept.append([ns <= 2_200_000 for ns in first])
    lasts = sorted(max((k for k in range(3) if kept[k][d]), default=-1) for d in range(FEW_DRAWS))
    found = hosim.serve_fit(
        MODEL, H100, requests, largest="requests.rate=100,400,1600", within="ttft.p95=2.2ms"
    )
    assert found.interval == tuple([axis[k] if k >= 0 else None for k in (lasts[1], lasts[-2])])
    assert found.interval[0] != found.interval[1]
    assert "90 % interval " in str(found)


def test_the_table_has_intervals_and_what_does_not_fit() -> None:
    served = hosim.serve(MODEL, H100, [Request(0, 16, 2)])
    data = served.summary() | {"draws": served.intervals()}
    shown = "\n".join(lines(serving(data)))
    assert "90 % intervals, from 20 draws" in shown
    assert " in 9 of 10 draws" in shown
    some = data | {"draws": data["draws"] | {"unfit": 3}}
    assert "; in 3 of 20 the cache has no room for a request" in "\n".join(lines(serving(some)))
    never = data | {"draws": {"count": 20, "unfit": 20, "ttft_ns": {}}}
    assert "interval" not in "\n".join(lines(serving(never)))
