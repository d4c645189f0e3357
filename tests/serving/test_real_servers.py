"""Requests that a real vLLM served, with the recorded times of its kernels and with the cost
model.
"""

import csv
import gzip
import json
import math

import pytest
from rendered import facts
from typer.testing import CliRunner

import hosim
from hosim.cli.main import app
from hosim.errors import InfeasibleError, InputError
from hosim.io import load_hardware
from hosim.serving import (
    Iteration,
    ModelledIterations,
    as_served,
    beside_measured,
    read_measured_requests,
)
from hosim.serving.requests import Request, read_request_rows
from hosim.shipped import find_hardware

H100 = load_hardware(find_hardware("h100-80gb-sxm"))


RTX_4090 = "rtx4090_llama-3.1-8b", {"blocks": 2588}
PRO_6000 = "rtxpro6000_llama-3.1-8b", {"max_sequences": 128}
FITTED_TO = 100
"""Requests to which the overhead is fitted; those behind them are compared."""


@pytest.mark.parametrize(
    ("machine", "hardware", "recorded", "overhead_ns", "mean", "rest", "throughput"),
    [
        pytest.param(
            RTX_4090, "rtx-pro-6000", True, 148_437, 0.02, 0.05, 0.02, id="rtx-4090-recorded"
        ),
        pytest.param(
            PRO_6000, "rtx-pro-6000", True, 2_523_437, 0.05, 0.05, 0.05, id="rtx-pro-6000-recorded"
        ),
        pytest.param(
            RTX_4090,
            "rtx-4090",
            False,
            593_750,
            0.15,
            0.15,
            0.1,
            id="rtx-4090-alone",
            marks=pytest.mark.long,
        ),
        pytest.param(
            PRO_6000,
            "rtx-pro-6000",
            False,
            6_787_109,
            0.15,
            0.15,
            0.1,
            id="rtx-pro-6000-alone",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_real_server(
    machine, hardware, recorded, overhead_ns, mean, rest, throughput, shared, compared
):
    """The 200 requests behind the first 100, with recorded times of kernels or the cost model
    alone; the bounds are those aimed at.
    """
    folder = shared / "data" / "serving"
    if not folder.exists():
        pytest.skip(f"no folder {folder}")
    rows = read_request_rows(folder / "sharegpt_300.jsonl.gz")
    real = as_served(
        read_measured_requests(folder / machine[0] / "measured_requests.jsonl.gz"), rows
    )
    options = {**machine[1], "iterations": folder / machine[0] if recorded else None}
    beside = beside_measured(
        hosim.serve("llama-3.1-8b", hardware, rows, overhead=overhead_ns, **options),
        real,
        FITTED_TO,
    )
    card, kernels = (
        machine[0].partition("_")[0],
        "recorded kernels" if recorded else "cost model alone",
    )
    for figure in ("ttft", "tpot", "latency"):
        of = beside[f"{figure}_ns"]
        for name, truth in of["measured"].items():
            compared(
                "vLLM",
                f"{card}, {kernels}",
                f"{figure} {name}",
                truth,
                of["simulated"][name],
                mean if name == "mean" else rest,
            )
            rival = truth * (1 + of["rival"][name])
            compared(
                "vLLM",
                f"{card}, as the first {FITTED_TO}",
                f"{figure} {name}",
                truth,
                rival,
                within=1,
            )
    of = beside["throughput"]
    truth, ours = (of[name]["output_tokens_per_s"] for name in ("measured", "simulated"))
    compared("vLLM", f"{card}, {kernels}", "output tokens/s", truth, ours, throughput)
    compared(
        "vLLM",
        f"{card}, as the first {FITTED_TO}",
        "output tokens/s",
        truth,
        truth * (1 + of["rival"]["output_tokens_per_s"]),
        within=1,
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("machine", "hardware", "recorded", "overhead_ns"),
    [
        (RTX_4090, "rtx-pro-6000", True, 148_437),
        (PRO_6000, "rtx-pro-6000", True, 2_523_437),
        (RTX_4090, "rtx-4090", False, 593_750),
        (PRO_6000, "rtx-pro-6000", False, 6_787_109),
    ],
    ids=["rtx-4090-recorded", "rtx-pro-6000-recorded", "rtx-4090-alone", "rtx-pro-6000-alone"],
)
def test_the_overhead_is_fitted_to_the_first_requests(
    machine, hardware, recorded, overhead_ns, shared
):
    """Their mean latency is as measured, to 10 us of overhead."""
    folder = shared / "data" / "serving"
    if not folder.exists():
        pytest.skip(f"no folder {folder}")
    rows = read_request_rows(folder / "sharegpt_300.jsonl.gz")
    real = as_served(
        read_measured_requests(folder / machine[0] / "measured_requests.jsonl.gz"), rows
    )
    options = {**machine[1], "iterations": folder / machine[0] if recorded else None}
    wanted = sum(real.latency_ns[:FITTED_TO]) / FITTED_TO

    def mean(overhead):
        frame = hosim.serve("llama-3.1-8b", hardware, rows, overhead=overhead, **options).frame()
        return frame["latency_ns"][:FITTED_TO].mean()

    assert mean(overhead_ns) < wanted <= mean(overhead_ns + 10_000)


@pytest.mark.parametrize(
    ("machine", "least", "most"), [("rtx-4090", 0.67, 0.88), ("rtx-pro-6000", 0.62, 0.74)]
)
def test_recorded_attention_reads_a_part_of_the_memory(machine, least, most, shared):
    """Of 16 to 128 sequences with 1,024 keys of 4 KiB: less of the bandwidth than kernels of the
    cost model reach there.
    """
    path = (
        shared
        / "data"
        / "serving"
        / f"{machine.replace('-', '')}_llama-3.1-8b"
        / "kernels_attention.csv.gz"
    )
    if not path.exists():
        pytest.skip(f"no file {path}")
    with gzip.open(path, "rt") as file:
        rows = [row for row in csv.DictReader(file) if row["prefill_chunk"] == "0"]
    bandwidth = load_hardware(find_hardware(machine)).device.bandwidth_bytes_per_s
    shares = [
        int(row["n_decode"]) * 1024 * 4096 / float(row["time_us"]) * 1e6 / bandwidth
        for row in rows
        if row["kv_decode"] == "1024" and 16 <= int(row["n_decode"]) <= 128
    ]
    assert len(shares) == 4
    assert (round(min(shares), 2), round(max(shares), 2)) == (least, most)


@pytest.fixture(scope="module")
def modelled():
    return ModelledIterations({"model": "llama-3.1-8b"}, H100)


def test_modelled_sizes(modelled):
    """8.03 B parameters and 32 layers of keys and values of 8 heads of 128, in 16 bits."""
    assert modelled.layers == 32
    assert modelled.cache_bytes_per_token == 32 * 2 * 8 * 128 * 2
    assert modelled.weight_bytes == pytest.approx(2 * 8_030_261_248, rel=1e-6)


def test_no_decode_is_faster_than_the_memory(modelled):
    """Weights are read once, and of each sequence its keys and values."""
    for sequences, keys in ((1, 100), (64, 1000), (256, 4000)):
        read = (
            modelled.weight_bytes
            + sequences * keys * modelled.cache_bytes_per_token
            - 128256 * 4096 * 2
        )
        assert (
            modelled(Iteration((), sequences, sequences * keys, ()))
            > read / H100.device.bandwidth_bytes_per_s * 1e9
        )


def test_an_iteration_takes_longer_the_more_it_does(modelled):
    def ns(prefills=(), decodes=0, keys=0):
        return modelled(Iteration(prefills, decodes, keys, ()))

    assert (
        ns(((512, 0),))
        < ns(((512, 0),), 8, 8000)
        < ns(((512, 4096),), 8, 8000)
        < ns(((512, 4096), (512, 0)), 8, 8000)
    )
    between = ns(((700, 0),))
    assert ns(((512, 0),)) < between < ns(((768, 0),))
    assert modelled(Iteration((), 1, 16, ())) + 7 == ModelledIterations(
        {"model": "llama-3.1-8b"}, H100, 7
    )(Iteration((), 1, 16, ()))


def test_a_prefill_is_the_builders(modelled):
    """One prompt of 2,048 tokens takes what a replay of the prefill takes, kernel by kernel."""
    graph = hosim.load({"model": "llama-3.1-8b", "sequence": 2048, "merged": True, "fused": True})
    replayed = hosim.replay(
        hosim.plan(graph, "h100-80gb-sxm", "resident"), "h100-80gb-sxm"
    ).makespan_ns
    assert math.isclose(modelled(Iteration(((2048, 0),), 0, 0, ())), replayed, rel_tol=0.01)


def test_an_iteration_may_have_more_tokens_than_a_prompt():
    """gpt2 has 1,024 positions: an iteration of 2,048 tokens is of two prompts, and takes twice
    what one of half as many takes, or less.
    """
    small = ModelledIterations({"model": "gpt2", "layers": 2}, H100)
    one, two = (small(Iteration(((1000, 0),) * prompts, 0, 0, ())) for prompts in (1, 2))
    assert one < two < 2.1 * one
    served = hosim.serve({"model": "gpt2", "layers": 2}, "h100-80gb-sxm", [Request(0, 900, 2)] * 3)
    assert served.samples[0].tokens == 2048


def test_latent_attention_is_served():
    served = hosim.serve(
        {"model": "deepseek-v2-lite", "layers": 3}, "h100-80gb-sxm", [Request(0, 100, 2)]
    )
    assert len(served.token_ns[0]) == 2


@pytest.mark.parametrize(
    ("model", "hardware", "options", "error"),
    [
        (
            "llama-3.1-8b",
            "ascend-910c-supernode",
            {},
            "ascend-910c-supernode: the profile does not describe the processor "
            "(compute.processor), by which ",
        ),
        (
            "vit-l-16",
            "h100-80gb-sxm",
            {},
            "vit-l-16: expected a decoder, which continues a prompt; hosim cannot serve this model",
        ),
        (
            "t5-small",
            "h100-80gb-sxm",
            {},
            "t5-small: expected a decoder, which continues a prompt; hosim cannot serve this model",
        ),
        (
            "gpt2",
            "h100-80gb-sxm",
            {"requests": [Request(0, 1000, 25)]},
            "requests: cannot build a request of 1,025 tokens: the model has 1024 positions, got "
            "1025",
        ),
        (
            {"model": "llama-3.1-8b", "batch": 2},
            "h100-80gb-sxm",
            {},
            "model: batch: the requests say this: leave it out",
        ),
        (
            "llama-3.1-8b",
            "h100-80gb-sxm",
            {"requests": [(0, 1, 1)]},
            "requests[0]: expected a hosim.Request, got tuple",
        ),
        (
            "llama-3.1-8b",
            "h100-80gb-sxm",
            {"requests": [Request(0, 1, 0)]},
            "requests[0].output_tokens: expected a whole number of at ",
        ),
        (
            "llama-3.1-8b",
            "h100-80gb-sxm",
            {"requests": [Request(-1, 1, 1)]},
            "requests[0].arrival_ns: expected a whole number of at ",
        ),
        (
            "llama-3.1-8b",
            "h100-80gb-sxm",
            {"requests": [Request(0, 0, 1)]},
            "requests[0].prompt_tokens: expected a whole number of at ",
        ),
        (
            "llama-3.1-8b",
            "h100-80gb-sxm",
            {"memory_share": 2},
            "memory_share: expected a share above 0 and at most 1, got 2",
        ),
        (
            "llama-3.1-8b",
            "h100-80gb-sxm",
            {"blocks": 0},
            "blocks: expected a whole number of at least 1, got 0",
        ),
        (
            "llama-3.1-8b",
            "h100-80gb-sxm",
            {"requests": []},
            "requests: expected at least one request, by arrival",
        ),
        (
            "llama-3.1-8b",
            "h100-80gb-sxm",
            {"overhead": "soon"},
            "overhead: expected a time such as '10 us', got 'soon'",
        ),
    ],
)
def test_what_cannot_be_served(model, hardware, options, error):
    with pytest.raises(InputError) as caught:
        hosim.serve(model, hardware, options.pop("requests", [Request(0, 10, 1)]), **options)
    assert str(caught.value).startswith(error)


def test_a_request_arrives_at_a_whole_ns():
    with pytest.raises(
        InputError, match=r"^request, arrival_ns: expected a whole number of ns, got 0\.5$"
    ):
        Request(0.5, 1, 1)


def test_weights_that_leave_no_room():
    with pytest.raises(
        InfeasibleError,
        match=r"weights of 131 GiB leave no room for a cache in 90 % of 79\.6 GiB "
        r"\(h100-80gb-sxm\): an iteration takes ",
    ):
        hosim.serve("llama-3.1-70b", "h100-80gb-sxm", [Request(0, 10, 1)])


def test_the_table(tmp_path):
    path = tmp_path / "requests.jsonl"
    path.write_text(
        "\n".join(
            json.dumps({"arrival_s": i / 10, "prompt_tokens": 100, "output_tokens": 4})
            for i in range(3)
        )
    )
    line = ["serve", "llama-3.1-8b", "-H", "h100", "--requests", str(path)]
    outcome = CliRunner().invoke(
        app, [*line, "--overhead", "1ms", "--detail"], env={"COLUMNS": "200"}
    )
    assert outcome.exit_code == 0, outcome.stderr
    assert "llama-3.1-8b on h100-80gb-sxm: 3 requests" in outcome.stdout
    assert "first token" in outcome.stdout
    assert "12, 1.00 ms" in facts(outcome.stdout)
    assert "0 preemptions" in outcome.stdout
    assert "the kernels alone" not in outcome.stdout
    assert "--overhead" in CliRunner().invoke(app, line).stdout  # nobody knows the host's
    both = CliRunner().invoke(
        app, [*line, "--fit-first", "1", "--measured", str(path), "--overhead", "1ms"]
    )
    assert (both.exit_code, both.stderr) == (
        2,
        "error: serve: --fit-first and --overhead exclude each other: it fits the overhead\n",
    )
    wrong = CliRunner().invoke(app, [*line, "--fit-first", "1"])
    assert (wrong.exit_code, wrong.stderr) == (
        2,
        "error: serve: --fit-first requires --measured\n",
    )
