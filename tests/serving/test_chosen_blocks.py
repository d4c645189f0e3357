"""Serving a model whose attention chooses blocks, whatever the family calls its parts."""

import pytest
from typer.testing import CliRunner

import hosim
from hosim.cli.main import app
from hosim.serving import ModelledIterations

MACHINE = hosim.load_hardware(hosim.find_hardware("h100"))


@pytest.mark.parametrize(
    ("preset", "heads", "key_heads", "width"),
    [
        ("llama-3.1-8b", 32, 8, 128),
        ("gpt2", 12, 12, 64),
        ("bloom-560m", 16, 16, 64),
        ("falcon-7b", 71, 1, 64),
        ("gpt-j-6b", 16, 16, 256),
    ],
)
def test_a_gate_scores_each_block_with_each_head(preset, heads, key_heads, width):
    gate = ModelledIterations({"model": preset, "layers": 2, "kv_block": 64}, MACHINE).gate
    assert (gate.flops, gate.query_bytes, gate.block_bytes, gate.layers) == (
        2 * heads * width,
        2 * heads * width,
        2 * key_heads * width,
        2,
    )


def test_blocks_of_a_small_model_are_served_or_refused_by_name():
    asked = ["serve", "gpt2", "-H", "h100", "--requests", "poisson:rate=1:count=1", "--set"]
    assert CliRunner().invoke(app, [*asked, "kv_block=64"]).exit_code == 0
    refused = CliRunner().invoke(app, [*asked, "kv_block=512"])
    assert refused.exit_code == 2
    assert refused.stderr.startswith(
        "error: kv_block: expected blocks of which the model has at least three"
    )
