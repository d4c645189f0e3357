"""Batches that others timed with all weights below the device, as served requests that arrive at
once.
"""

import pytest
from published_rows import FILE, generated

import hosim
from hosim.serving.requests import Request

ROWS = generated() if FILE.is_file() else {}

pytestmark = [pytest.mark.skipif(not ROWS, reason=f"no {FILE}"), pytest.mark.long]


@pytest.mark.parametrize(
    ("row", "machine", "weights", "link", "tokens"),
    [
        ("zero-inference-opt-30b-t4", "t4", "zero_inference", "h2d", 0.639),
        (
            "zero-inference-llama3-70b-nvme",
            "h100-96gb",
            "zero_inference:placement=by_kind/parameter=nvme",
            "nvme_read",
            8.838,
        ),
    ],
)
def test_a_batch_with_weights_below(compared, row, machine, weights, link, tokens):
    """The whole batch is prefilled in one iteration. The link is busy all the time, so the rival is
    its bandwidth alone.
    """
    run, model = ROWS[row].run, dict(ROWS[row].model)
    model.setdefault("intermediate_size", model.pop("ffn_hidden_size", None))
    batch, prompt = run["batch"], run["prompt"]
    served = hosim.serve(
        {"model": "llama-3.1-8b", "dtype": "fp16", "config": model},
        machine,
        [Request(0, prompt, run["generate"])] * batch,
        token_budget=batch * prompt,
        max_sequences=batch,
        weights=weights,
        weights_memory="8 GB",
    )
    found = served.summary()
    compared(
        "DeepSpeed, served",
        row,
        "tokens a second",
        ROWS[row].figure,
        found["output_tokens_per_s"],
        within=0.1,
    )
    assert found["output_tokens_per_s"] == pytest.approx(
        tokens, abs=0.0005
    )  # as docs/serving.md says
    assert found["weights"]["channels"][link]["utilization"] > 0.99
    assert [sample.running for sample in served.samples] == [batch] * run["generate"]
