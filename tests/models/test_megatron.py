"""What Megatron-LM keeps of a layer, by the formulas of Korthikanti et al. (arXiv 2205.05198, table
2), and what it computes again.
"""

import pytest

import hosim
from hosim.analysis import static_peak
from hosim.errors import InputError
from hosim.io.models import build

S, B, H, A, T = 512, 2, 1024, 16, 4
"""Tokens of a sequence, sequences, width, heads, devices that share a layer."""
CONFIG = {
    "hidden_size": H,
    "num_attention_heads": A,
    "num_key_value_heads": A,
    "head_dim": H // A,
    "intermediate_size": 4 * H,
}
CONFIG |= {
    "num_hidden_layers": 4,
    "vocab_size": 1024,
    "gated_mlp": False,
    "dropout": 0.1,
    "attention_dropout": 0.1,
}
STEP = {
    "model": "llama-3.1-8b",
    "config": CONFIG,
    "phase": "train",
    "fused": True,
    "sequence": S,
    "batch": B,
    "tensor": T,
}
STEP |= {"attention": "scores", "main_gradients": True, "optimizer": "none"}
OWN = {"sequence_parallel": True}
SELECTIVE = {"recompute_attention": True}


def kept_of_a_layer(**more):
    """Bytes by which one more layer raises the peak, less its weights in two bytes and their
    gradients in four.
    """
    of_two, of_three = [
        static_peak(build("x", {**STEP, "layers": layers, **more})).bytes for layers in (2, 3)
    ]
    return of_three - of_two - 6 * (12 * H * H // T + 2 * H)


@pytest.mark.parametrize(
    ("more", "times_sbh"),
    [
        ({}, 10 + (24 + 5 * A * S / H) / T),
        (OWN | {"regather": True}, (34 + 5 * A * S / H) / T),
        (SELECTIVE, 10 + 24 / T),
        (OWN | SELECTIVE | {"regather": True}, 34 / T),
        ({"checkpoint": True}, 2),
    ],
)
def test_a_layer_keeps_what_the_paper_says(more, times_sbh):
    """Beside that, each of its two norms keeps four bytes of a token, of which the paper has none;
    a checkpointed layer keeps its input.
    """
    norms = (
        0 if more.get("checkpoint") else 2 * 4 * S * B // (T if "sequence_parallel" in more else 1)
    )
    assert kept_of_a_layer(**more) == times_sbh * S * B * H + norms


def test_without_gathering_again_what_both_products_read_is_kept_of_all_devices():
    whole, own = [kept_of_a_layer(**OWN, **SELECTIVE, regather=again) for again in (False, True)]
    assert whole - own == 2 * 2 * S * B * H * (T - 1) // T


def test_attention_alone_runs_again():
    plain, again = [build("x", {**STEP, "layers": 2, **more}) for more in ({}, SELECTIVE)]
    assert [op.name for op in again.ops if op.name.startswith("recompute.")] == [
        f"recompute.model.layers.{layer}.self_attn.sdpa" for layer in (1, 0)
    ]
    forward = 4 * B * (A // T) * S * S * (H // A)
    assert sum(op.flops for op in again.ops) - sum(op.flops for op in plain.ops) == 2 * forward
    assert len(again.ops) == len(plain.ops) + 2


def test_tokens_are_gathered_again_once_for_each_product():
    """Going backward, before the gradients of the output layer, the second and the first product of
    each layer.
    """
    plain, again = [
        build("x", {**STEP, **OWN, "layers": 2, "regather": on}) for on in (False, True)
    ]
    more = [op.name for op in again.ops if op.name.endswith(".again")]
    layers = [f"model.layers.{layer}.{part}." for layer in (1, 0) for part in ("mlp", "self_attn")]
    assert more == [f"backward.{scope}gather_tokens.again" for scope in ("", *layers)]
    assert len(again.ops) == len(plain.ops) + len(more)
    assert {op.kind for op in again.ops if op.name in more} == {"all_gather"}


@pytest.mark.parametrize(
    ("more", "where"),
    [
        ({"recompute_attention": True, "checkpoint": True}, "recompute_attention"),
        (
            {"recompute_attention": True, "phase": "prefill", "main_gradients": False},
            "recompute_attention",
        ),
        (
            {
                "recompute_attention": True,
                "attention": "causal",
                "context_parallel": 2,
                "tensor": 1,
            },
            "recompute_attention",
        ),
        ({"regather": True}, "regather"),
    ],
)
def test_what_does_not_go_together_is_refused(more, where):
    with pytest.raises(InputError) as caught:
        build("x", {**STEP, "optimizer": "adamw", **more})
    assert caught.value.where == where


@pytest.mark.parametrize("mode", ["masked", "math", "scores"])
@pytest.mark.parametrize("phase", ["train", "prefill"])
def test_attention_with_a_mask_computes_in_the_dtype_of_the_step(mode, phase):
    """Up to version 6 of graphs the mask, which comes first, decided: products took the time of
    integers, and results half their bytes.
    """
    given = {
        "model": "llama-3.1-8b",
        "config": {**CONFIG, "dropout": 0.0, "attention_dropout": 0.0},
        "layers": 1,
        "sequence": 64,
    }
    graph = build("x", {**given, "phase": phase, "attention": mode})
    found = [op for op in graph.ops if op.kind == "attention" and op.flops]
    assert {op.dtype for op in found} == {"bf16"}
    assert graph.tensors[found[0].outputs[0]].size_bytes == 64 * H * 2


@pytest.mark.parametrize(("stages", "chunks", "count"), [(2, 1, 4), (4, 2, 4), (4, 2, 8)])
def test_collectives_of_a_stage_hold_up_no_message(stages, chunks, count):
    """With two devices for each stage, the bubble is the part of the step that it is with one: sums
    of a layer are no part of it.
    """
    sizes = {
        **CONFIG,
        "num_hidden_layers": stages * chunks,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "hidden_size": 64,
        "head_dim": 4,
    }
    given = {
        "model": "llama-3.1-8b",
        "config": {**sizes, "intermediate_size": 64},
        "phase": "train",
        "sequence": 16,
        "fused": True,
    }
    given |= {"pipeline": stages, "micro_batches": count}
    given |= {"schedule": "interleaved", "chunks": chunks} if chunks > 1 else {}
    shares = []
    for devices in (1, 2):
        step = hosim.replay_stages(
            hosim.plan_stages({**given, "tensor": devices}, "a100-80gb-sxm", "resident")
        )
        shares.append([bubble / step.step_ns for bubble in step.bubble_ns])
    assert shares[1] == pytest.approx(shares[0], abs=0.02)
