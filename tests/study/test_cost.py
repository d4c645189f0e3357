"""What tokens cost, by hand."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

import hosim
from hosim.cli.main import app
from hosim.errors import InputError
from hosim.io import hardware_from_dict, hardware_to_dict
from hosim.study.searches import priced, step_cost, tokens_of

TINY = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 96,
}
MODEL = {"model": "llama-3.1-8b", "config": {**TINY, "intermediate_size": 80}, "batch": 3}


@pytest.mark.parametrize(
    ("parameters", "tokens", "devices"),
    [
        ({"sequence": 32}, 96, 1),
        ({"phase": "decode", "context": 32}, 3, 1),  # a token of each sequence
        ({"phase": "train", "sequence": 32, "micro_batches": 2}, 192, 1),
        ({"sequence": 32, "tensor": 2}, 96, 2),  # both work on the same tokens
        ({"phase": "train", "sequence": 32, "data": 4, "zero": 3}, 96, 1),  # each has its own
        ({"phase": "train", "sequence": 32, "context_parallel": 4}, 24, 1),
    ],
)
def test_tokens_and_the_devices_that_share_them(parameters, tokens, devices):
    graph, machine = (
        hosim.load({**MODEL, **parameters}),
        hosim.load_hardware(hosim.find_hardware("h100-80gb-sxm")),
    )
    assert tokens_of(graph) == tokens
    result = replace(
        hosim.replay(hosim.plan(graph, machine, "resident"), machine), makespan_ns=3600 * 10**9
    )
    cost = step_cost(result, graph, priced(machine, 2.5))
    assert cost is not None
    assert (cost.step, cost.per_million_tokens) == (
        2.5 * devices,
        pytest.approx(2.5 * devices / tokens * 1e6),
    )
    assert step_cost(result, graph, machine) is None


def test_a_frontier_says_what_tokens_cost(tmp_path):
    (tmp_path / "w.json").write_text(
        json.dumps({"format": "hosim.spec/1", "name": "w", "builder": {**MODEL, "sequence": 32}})
    )
    ask = [
        "frontier",
        str(tmp_path / "w.json"),
        "-H",
        "h100-80gb-sxm",
        "-p",
        "resident",
        "--points",
        "2",
        "--refine",
        "0",
    ]
    plain, with_price = [
        CliRunner().invoke(app, [*ask, *more]) for more in ([], ["--price", "3.6"])
    ]
    assert "1M tokens" in with_price.output
    assert "1M tokens" not in plain.output
    rows = json.loads(CliRunner().invoke(app, [*ask, "--price", "3.6", "--json"]).output)["rows"]
    assert rows[-1]["cost_per_million_tokens"] == pytest.approx(
        3.6 / 3.6e12 * rows[-1]["makespan_ns"] / 96 * 1e6
    )
    frame = hosim.frontier(
        str(tmp_path / "w.json"), "h100-80gb-sxm", "resident", points=2, refine=0, price=3.6
    ).frame
    assert frame["cost_per_million_tokens"].iloc[-1] == rows[-1]["cost_per_million_tokens"]
    made = hosim.GraphBuilder("toy")
    made.tensor("w", 40, "parameter")
    made.op("f", "matmul", inputs=["w"], duration_ns=50)
    no_tokens = hosim.frontier(made.build(), "toy", "resident", points=2, refine=0, price=3.6).frame
    assert no_tokens["cost"].iloc[-1] > 0
    assert no_tokens["cost_per_million_tokens"].isna().all()


def test_a_profile_has_a_price():
    machine = hosim.load_hardware(hosim.find_hardware("toy"))
    written = hardware_to_dict(machine)
    assert "price_per_hour" not in written
    dear = hardware_from_dict({**written, "price_per_hour": 1.25})
    assert (dear.price_per_hour, hardware_to_dict(dear)["price_per_hour"], dear) == (
        1.25,
        1.25,
        machine,
    )
    with pytest.raises(InputError, match="price_per_hour"):
        hardware_from_dict({**written, "price_per_hour": -1})


@pytest.mark.parametrize("price", [0, -1, float("nan"), float("inf"), "2", True, 1e7])
def test_a_price_that_is_none_is_refused(price):
    with pytest.raises(
        InputError,
        match=r"^price: expected what a device costs an hour, from above 0 to 1,000,000, got ",
    ):
        priced(hosim.load_hardware(hosim.find_hardware("toy")), price)
