"""Training whose products are in fp8: what is rounded when, by hand; FLOP and gradients as before,
less kept for the backward pass.
"""

import pytest

from hosim.analysis import static_peak
from hosim.analysis.costmodel import op_durations
from hosim.errors import InputError
from hosim.hardware import Compute, Hardware, Tier
from hosim.io.models import build

TINY = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 96,
}
STEP = {
    "model": "llama-3.1-8b",
    "config": {**TINY, "intermediate_size": 80},
    "sequence": 32,
    "phase": "train",
    "fused": True,
}
PRODUCTS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@pytest.mark.parametrize("checkpoint", [False, True])
def test_what_is_rounded(checkpoint):
    """A layer rounds what goes into q, k and v once, into o, into gate and up once, and into down;
    and each weight, in each pass.

    Going backward it rounds the gradient of what each of the seven products gives. Computed again,
    a layer rounds both operands again, but for a weight and an input whose rounded form is not
    needed after that.
    """
    plain, graph = [
        build("x", {**STEP, "checkpoint": checkpoint, **more}) for more in ({}, {"products": "fp8"})
    ]
    assert sum(op.flops for op in graph.ops) == sum(op.flops for op in plain.ops)
    layers = [
        op for op in graph.ops if op.kind == "matmul" and op.name.rpartition(".")[0].count("layers")
    ]
    assert {op.dtype for op in layers} == {"fp8"}
    assert {op.dtype for op in graph.ops if "lm_head" in op.name and op.kind == "matmul"} == {
        "bf16"
    }
    rounded = [op.name for op in graph.ops if "quantise" in op.name and ".layers.0." in op.name]
    forward, backward = [
        [n for n in rounded if n.startswith("backward.") is back and not n.startswith("recompute.")]
        for back in (False, True)
    ]
    assert (sum("weight" in n for n in forward), sum("weight" not in n for n in forward)) == (7, 4)
    assert (sum("weight" in n for n in backward), sum("weight" not in n for n in backward)) == (
        7,
        7,
    )
    gradients = [
        {t.name: t.size_bytes for t in one.tensors if t.kind == "gradient"}
        for one in (plain, graph)
    ]
    assert gradients[0] == gradients[1]


def test_less_is_kept_and_products_take_the_peak_of_fp8():
    """Of a layer's inputs of products 1 byte an element is kept for 2. 2 * 32 * 64 * 80 FLOP at 2 *
    10^9 FLOP/s take 163,840 ns.
    """
    long = {**STEP, "sequence": 2048, "batch": 4}
    assert (
        static_peak(build("x", {**long, "products": "fp8"})).bytes
        < static_peak(build("x", long)).bytes
    )
    machine = Hardware(
        "x",
        (Tier("hbm", 10**9, 10**15),),
        (),
        Compute({"bf16": 10**9, "fp8": 2 * 10**9, "fp32": 10**9}),
    )
    graph = build("x", {**STEP, "products": "fp8"})
    times = op_durations(graph, machine)
    for name in ("", ".grad_input", ".grad_weight"):
        at = graph.op_index[f"{'backward.' if name else ''}model.layers.0.mlp.down_proj{name}"]
        assert times[at] == 163_840


@pytest.mark.parametrize("checkpoint", [False, True])
def test_grouped_products_of_experts(checkpoint):
    """Both are in fp8 in all three passes, the router is not. Each operand of both is rounded once
    going forward; going backward the gradients of what both give and both weights, as of a linear
    layer. FLOP and gradients are as before.
    """
    mixture = {
        **STEP,
        "model": "qwen3-30b-a3b",
        "config": {**TINY, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48},
    }
    plain, graph = [
        build("x", {**mixture, "checkpoint": checkpoint, **more})
        for more in ({}, {"products": "fp8"})
    ]
    assert sum(op.flops for op in graph.ops) == sum(op.flops for op in plain.ops)
    experts = [op for op in graph.ops if op.kernel == "expert_product" and ".layers.0." in op.name]
    assert len(experts) == (8 if checkpoint else 6)
    assert {op.dtype for op in experts} == {"fp8"}
    assert {op.dtype for op in graph.ops if ".gate.router" in op.name} == {"bf16"}
    rounded = [
        op.name.rpartition(".")[2]
        for op in graph.ops
        if ".layers.0.mlp.experts.quantise" in op.name and "recompute" not in op.name
    ]
    assert [
        rounded.count(name)
        for name in ("quantise_weight", "quantise_weight_1", "quantise", "quantise_1")
    ] == [2, 2, 2, 2]
    # 2 of 8 experts for each of 32 tokens: a forward product reads 64 rows of 64 in fp8, writes 64
    # of 96 in bf16, and 0.9999 of the weights
    first = next(op for op in experts if op.name.endswith("experts.gate_up"))
    offsets = next(
        graph.tensors[t].size_bytes
        for t in first.inputs
        if graph.tensors[t].name.endswith("cumsum")
    )
    assert (
        first.bytes_accessed
        == 64 * 64 + 64 * 96 * 2 + round(8 * 96 * 64 * (1 - 0.75**32)) + offsets
    )
    gradients = [
        {t.name: t.size_bytes for t in one.tensors if t.kind == "gradient"}
        for one in (plain, graph)
    ]
    assert gradients[0] == gradients[1]


@pytest.mark.parametrize(
    "changes", [{"phase": "prefill"}, {"dtype": "fp32"}], ids=["phase", "dtype"]
)
def test_what_is_refused(changes):
    with pytest.raises(InputError, match=r"^products: works for phase=train in 16 bits$"):
        build("x", {**STEP, "products": "fp8", **changes})


def test_sharded_and_in_micro_batches():
    """Weights are rounded for each micro-batch, from what is gathered for it."""
    graph = build("x", {**STEP, "products": "fp8", "data": 4, "zero": 3, "micro_batches": 2})
    weights = [
        op
        for op in graph.ops
        if op.name.endswith("quantise_weight") and ".layers.0.mlp." in op.name
    ]
    assert len(weights) == 2 * 2
    assert all([graph.tensors[t].name.endswith("parameters") for op in weights for t in op.inputs])
