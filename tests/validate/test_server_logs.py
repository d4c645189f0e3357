"""A runtime from what a server says: lines of vLLM and SGLang, and a page of metrics."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import hosim
from hosim.cli.main import app
from hosim.data.runtime import RUNTIME, Runtime, as_data
from hosim.errors import InputError
from hosim.io.runtimes import runtime_named
from hosim.serving import Iteration, ModelledIterations
from hosim.validate.logged import ServedStep, server_figures

VLLM = (
    "INFO 02-17 15:54:51 [loggers.py:248] Engine 000: Avg prompt throughput: {prompts} tokens/s, "
    "Avg generation throughput: {rate} tokens/s, Running: {running} reqs, Waiting: 0 reqs, "
    "GPU KV cache usage: {usage}%, Prefix cache hit rate: 12.0%"
)
SGLANG = (
    "[2026-02-17 15:54:51] Decode batch, #running-req: {running}, #token: {tokens}, token usage: "
    "0.10, cuda graph: True, gen throughput (token/s): {rate:.2f}, #queue-req: 0,"
)


def vllm(running: int, rate: float, usage: float, prompts: float = 0.0) -> str:
    return VLLM.format(running=running, rate=f"{rate:.1f}", usage=usage, prompts=prompts)


def test_lines_of_vllm_by_hand() -> None:
    """10 requests, 1,000 tokens a second: 10 ms each; 5 % of 40,000 tokens are 200 of each. A line
    with a prompt and one after a change of the batch tell of no single kind of iteration.
    """
    lines = [
        vllm(5, 900, 5.0),
        vllm(10, 1000, 5.0),
        vllm(10, 1000, 5.0),
        vllm(10, 700, 5.0, prompts=300.0),
        "INFO: 127.0.0.1 - POST /v1/completions",
    ]
    assert server_figures(lines, 40_000).steps == (ServedStep(10.0, 200.0, 0.01),)
    assert "KV cache size" in server_figures(lines, 0).lacks
    assert "no two lines" in server_figures(lines[:2], 40_000).lacks


def test_lines_of_sglang_by_hand() -> None:
    """What was prefilled between two lines is in the rate of the second; batches of 8 to 15 are
    told together.
    """
    lines = [
        SGLANG.format(running=8, tokens=8000, rate=800),
        "Prefill batch, #new-seq: 1, #new-token: 512, #cached-token: 0",
        SGLANG.format(running=9, tokens=9000, rate=100),
        SGLANG.format(running=12, tokens=6000, rate=600),
        SGLANG.format(running=16, tokens=1600, rate=1600),
    ]
    assert server_figures(lines, 0).steps == (
        ServedStep(10.0, 750.0, 0.015),
        ServedStep(16.0, 100.0, 0.01),
    )


PAGE = """
# HELP vllm:inter_token_latency_seconds Histogram of inter-token latency in seconds.
# TYPE vllm:inter_token_latency_seconds histogram
vllm:inter_token_latency_seconds_sum{engine="0",model_name="m"} 10.0
vllm:inter_token_latency_seconds_count{engine="0",model_name="m"} 1000.0
vllm:iteration_tokens_total_sum{engine="0"} 6000
vllm:iteration_tokens_total_count{engine="0"} 250
vllm:generation_tokens_total{engine="0"} 1000.0
vllm:request_prompt_tokens_sum{engine="0"} 5000.0
vllm:request_prompt_tokens_count{engine="0"} 10.0
vllm:request_generation_tokens_sum{engine="0"} 1000.0
vllm:request_generation_tokens_count{engine="0"} 10.0
vllm:time_to_first_token_seconds_sum{engine="0"} 0.5
vllm:time_to_first_token_seconds_count{engine="0"} 10.0
vllm:request_queue_time_seconds_sum{engine="0"} 0.1
vllm:request_queue_time_seconds_count{engine="0"} 10.0
vllm:request_prefill_time_seconds_sum{engine="0"} 0.3
vllm:request_prefill_time_seconds_count{engine="0"} 10.0
"""


def test_a_page_by_hand() -> None:
    """250 iterations of 24 tokens, 4 of which are of answers: one in 25 has a prompt of 500. A
    first token takes 50 ms, 10 of them in the queue and 30 computed: 10 are left.
    """
    found = server_figures(PAGE.splitlines(), 0)
    assert found.steps == (ServedStep(4.0, 550.0, 0.01, 0.04, 500.0),)
    assert found.request_s == pytest.approx(0.01)
    assert "needs" in server_figures(PAGE.splitlines()[:5], 0).lacks


PAGE_OF_SGLANG = """
# TYPE sglang:prompt_tokens_total counter
sglang:prompt_tokens_total{model_name="m"} 5000.0
sglang:cached_tokens_total{model_name="m",cache_source="device"} 900.0
sglang:cached_tokens_total{model_name="m",cache_source="host"} 100.0
sglang:generation_tokens_total{model_name="m"} 1e+03
sglang:num_requests_total{model_name="m"} 10.0
sglang:num_running_reqs{dp_rank="0"} 3.0
sglang:num_running_reqs{dp_rank="1"} 5.0
sglang:inter_token_latency_seconds_sum{model_name="m"} 9.9
sglang:inter_token_latency_seconds_count{model_name="m"} 990.0
"""


def test_a_page_of_sglang_by_hand() -> None:
    """10 requests of 500 tokens, 100 of them from the cache, with answers of 100: an engine of two
    has 4 sequences in the mean, which begin every 25th iteration. A page of an idle server, which
    has none, and one without answers are of no use.
    """
    found = server_figures(PAGE_OF_SGLANG.splitlines(), 0)
    assert found.steps == (ServedStep(4.0, 550.0, pytest.approx(0.01), 0.04, 400.0),)
    assert found.request_s is None
    for gone in ("running", "sum", "generation"):
        left = [line for line in PAGE_OF_SGLANG.splitlines() if gone not in line]
        assert "page of SGLang's metrics needs" in server_figures(left, 0).lacks
        assert not server_figures(left, 0).steps
    for name, count in (("requests", "10.0"), ("latency", "990.0")):
        left = [
            line.replace(count, "1e-320") if name in line else line
            for line in PAGE_OF_SGLANG.splitlines()
        ]
        assert not server_figures(left, 0).steps


@given(st.text(st.characters(codec="ascii")), st.floats(0, 1e300))
def test_any_line_is_passed_over_or_read(noise: str, rate: float) -> None:
    """Whatever stands in a log, what is read is finite."""
    for line in (vllm(3, rate, 7.0) + noise, SGLANG.format(running=3, tokens=9, rate=rate) + noise):
        for step in server_figures([line, line], 1000).steps:
            assert 0 < step.seconds < 1e18
            assert 0 < step.tokens < 1e18


def test_a_long_line_is_read_in_time_that_grows_with_it() -> None:
    """Half a megabyte in which every part of a line stands thousands of times, but the last."""
    for line in (vllm(3, 9, 7.0), SGLANG.format(running=3, tokens=9, rate=9)):
        parts = line.rpartition("usage" if "Engine" in line else "throughput")[0].split(", ")
        lines = ["".join([part * 4000 for part in parts])]
        assert not server_figures(lines, 1000).steps


def modelled_s(running: int, tokens: int) -> float:
    alone = ModelledIterations(
        {"model": "gpt2", RUNTIME: as_data(Runtime("alone"))},
        hosim.load_hardware(hosim.find_hardware("rtx-4090")),
    )
    return alone(Iteration((), running, running * tokens, ())) / 1e9


def test_what_a_server_says_is_what_the_fitted_runtime_gives(tmp_path) -> None:
    """Steps of 4, 8 and 16 sequences that take a quarter longer than kernels alone: a speed of 0.8,
    which moved from 1. An iteration under it takes what the line says.
    """
    path = tmp_path / "server.log"
    lines = [
        SGLANG.format(running=n, tokens=300 * n, rate=n / modelled_s(n, 300) * 0.8)
        for n in (4, 8, 16)
    ]
    path.write_text("\n".join(["run gpt2 -H rtx-4090", *lines]))
    found = hosim.runtime_fit(path, Runtime("plain", runs=("inference",)))
    assert found.runtime.speed.value == pytest.approx(0.8, rel=0.01)
    assert found.moved == {"speed": (1.0, found.runtime.speed.value)}
    assert found.left.values() == pytest.approx([1, 1, 1], rel=0.01)
    words = ["runtime", "fit", str(path), "--base", "vllm", "--json"]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0, shown.output
    assert list(json.loads(shown.stdout)["moved"]) == ["speed"]
    assert "speed -20.0 %" in CliRunner().invoke(app, words[:-1]).stdout


def test_blocks_alone_need_no_processor_of_the_machine(tmp_path) -> None:
    """The Ascend's profile has none, by which attention would be timed."""
    path = tmp_path / "server.log"
    path.write_text("run llama-3.1-8b -H ascend-910b3\n# GPU blocks: 20200\n")
    found = hosim.runtime_fit(path, runtime_named("vllm"))
    assert list(found.moved) == ["iteration"]


@pytest.mark.parametrize(
    ("factors", "words"),
    [
        ((0.6, 3.0), "explains nothing"),
        ((500.0, 500.0), "no known runtime takes more"),
        ((0.3, 0.3), "no known runtime takes less"),
    ],
)
def test_a_fit_that_explains_nothing_is_refused(tmp_path, factors, words) -> None:
    """Half of the steps take 0.6 of what kernels take, half of them three times; all of them 500
    times; and all of them a third.
    """
    path = tmp_path / "server.log"
    lines = [
        SGLANG.format(running=n, tokens=300 * n, rate=n / modelled_s(n, 300) / factor)
        for n, factor in zip((4, 8), factors, strict=True)
    ]
    path.write_text("\n".join(["run gpt2 -H rtx-4090", *lines]))
    with pytest.raises(InputError, match=words) as caught:
        hosim.runtime_fit(path, runtime_named("vllm"))
    assert caught.value.source == str(path)
