"""What builders say of kernels: products, attention, experts and collectives with the sizes that
they have on one device.
"""

from collections import Counter

import pytest

from hosim.analysis import static_peak
from hosim.analysis.costmodel.kernels import CLASSES
from hosim.errors import InputError
from hosim.graph import Graph
from hosim.io.models import build

TINY = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 96,
    "vocab_size": 320, "head_dim": 16,
}  # fmt: skip
MIXED = TINY | {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "qk_norm": False,
}


def made(
    model: str = "llama-3.1-8b", config: dict[str, object] = TINY, **parameters: object
) -> Graph:
    return build(
        "tiny", {"model": model, "config": config, "batch": 3, "fused": True, **parameters}
    )


def sizes_of(graph: Graph, kernel: str) -> Counter[tuple[int, ...]]:
    return Counter(op.sizes for op in graph.ops if op.kernel == kernel)


@pytest.mark.parametrize(
    "parameters",
    [
        {"phase": "train"},
        {"phase": "prefill"},
        {"phase": "decode"},
        {"phase": "decode", "merged": True},
    ],
)
def test_every_product_and_attention_is_a_kernel_of_as_many_sizes_as_its_class_has(
    parameters,
) -> None:
    graph = made(sequence=40, context=40, tensor=2, **parameters)
    assert all(op.kernel for op in graph.ops if op.kind in ("matmul", "attention", "all_reduce"))
    assert all(len(op.sizes) == len(CLASSES[op.kernel].sizes) for op in graph.ops if op.kernel)


def test_a_product_says_its_rows_columns_and_depth() -> None:
    graph = made(phase="prefill", sequence=40, tensor=2)
    # 3 x 40 tokens; 8 heads of 16 on two devices, 2 of keys; the last token's 320 logits
    assert sizes_of(graph, "gemm") == {
        (120, 64, 64): 4,
        (120, 16, 64): 4,
        (120, 48, 64): 4,
        (120, 64, 48): 2,
        (3, 160, 64): 1,
    }


def test_a_products_gradients_are_products_of_the_same_flop() -> None:
    graph = made(phase="train", sequence=40)
    assert {
        2 * m * n * k == op.flops
        for op in graph.ops
        if op.kernel == "gemm"
        for m, n, k in [op.sizes]
    } == {True}
    assert (
        sizes_of(graph, "gemm")[64, 128, 120] == 2
    )  # the gradient of a weight [64, 128]: of o_proj


@pytest.mark.parametrize(
    ("parameters", "kernel", "sizes"),
    [
        ({"phase": "prefill", "sequence": 40}, "context_attention", (3, 40, 0, 8, 2, 16, 2**40)),
        (
            {"phase": "prefill", "sequence": 40, "merged": True},
            "context_attention",
            (3, 40, 0, 8, 2, 16, 2**40),
        ),
        ({"phase": "decode", "context": 40}, "generation_attention", (3, 40, 8, 2, 16)),
        (
            {"phase": "decode", "context": 40, "merged": True, "tensor": 2},
            "generation_attention",
            (3, 40, 4, 1, 16),
        ),
        ({"phase": "train", "sequence": 40}, "context_gradient", (3, 40, 0, 8, 2, 16, 2**40)),
        (
            {"phase": "train", "sequence": 40, "attention_kernel": "flash1"},
            "flash1_attention",
            (3, 40, 0, 8, 2, 16, 2**40),
        ),
        (
            {"phase": "train", "sequence": 40, "attention_kernel": "flash2"},
            "flash2_gradient",
            (3, 40, 0, 8, 2, 16, 2**40),
        ),
    ],
)
def test_attention_says_what_it_goes_over(parameters, kernel, sizes) -> None:
    assert sizes_of(made(**parameters), kernel) == {sizes: 2}


def test_latent_attention_is_a_kernel_of_its_own() -> None:
    latent = {"num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4}
    assert sizes_of(
        made("deepseek-v3", latent, phase="decode", context=40), "latent_attention"
    ) == {(3, 40, 4): 1}
    assert sizes_of(
        made("deepseek-v3", latent, phase="prefill", sequence=40), "context_latent"
    ) == {(3, 40, 0, 4): 1}


def test_attention_that_is_not_causal_says_of_no_kernel() -> None:
    assert {
        op.kernel
        for op in build("b", {"model": "bert-base", "layers": 1}).ops
        if op.kind == "attention"
    } == {""}


def test_experts_say_how_many_tokens_choose_among_how_many_and_read_those_that_can_be_expected() -> (
    None
):
    graph = made("qwen3-30b-a3b", MIXED, phase="decode", context=40, expert=2)
    # 3 tokens on each of two devices choose 2 of 8 experts; this device has 4 of them, whose
    # products are 64 x 64 and 64 x 32
    assert sizes_of(graph, "expert_product") == {(6, 2, 8, 2, 64, 64): 2, (6, 2, 8, 2, 64, 32): 2}
    gate_up = next(
        op for op in graph.ops if op.name.endswith("gate_up") and op.kernel == "expert_product"
    )
    read = round(4 * 64 * 64 * 2 * (1 - 0.75**6))
    assert gate_up.bytes_accessed == read + 6 * 64 * 2 * 2 + 4 * 4  # rows in and out, 4 offsets


def test_collectives_say_ranks_and_bytes() -> None:
    assert sizes_of(made(phase="decode", context=40, tensor=2), "custom_all_reduce") == {
        (2, 3 * 64 * 2): 5
    }
    assert sizes_of(made(phase="train", sequence=40, tensor=2), "all_reduce")[2, 120 * 64 * 2] == 10
    assert sizes_of(
        made("qwen3-30b-a3b", MIXED, phase="decode", context=40, expert=2), "all_to_all"
    ) == {(2, 6 * 64 * 2): 4}


def test_merged_kernels_are_those_of_an_engine() -> None:
    merged, apart = (made(phase="decode", context=40, merged=merged) for merged in (True, False))
    # a layer: norm, qkv, attention, o, norm, gate and up, swiglu, down; besides them embedding,
    # positions, norm and logits
    assert Counter(op.name.rpartition(".")[2] for op in merged.ops if ".layers.1." in op.name) == {
        "add_rms_norm": 2, "qkv_proj": 1, "attention": 1, "o_proj": 1, "gate_up_proj": 1, "swiglu": 1, "down_proj": 1,
    }  # fmt: skip
    assert sizes_of(merged, "gemm") == {
        (3, 192, 64): 4,
        (3, 64, 128): 2,
        (3, 64, 96): 2,
        (3, 320, 64): 1,
    }
    assert sum(op.flops for op in merged.ops) == sum(op.flops for op in apart.ops)
    assert static_peak(merged).breakdown["parameter"] == static_peak(apart).breakdown["parameter"]
    assert static_peak(merged).breakdown["kv_cache"] == static_peak(apart).breakdown["kv_cache"]


def test_merged_experts_are_one_kernel() -> None:
    graph = made("qwen3-30b-a3b", MIXED, phase="decode", context=40, merged=True, expert=2)
    assert sizes_of(graph, "moe") == {(6, 64, 32, 2, 8, 1, 2): 2}
    whole = made("qwen3-30b-a3b", MIXED, phase="decode", context=40, expert=2)
    assert sum(t.size_bytes for t in graph.tensors if t.kind == "expert") == sum(
        t.size_bytes for t in whole.tensors if t.kind == "expert"
    )


@pytest.mark.parametrize(
    "parameters", [{"phase": "train"}, {"phase": "decode", "kv_block": 8, "context": 40}]
)
def test_merged_is_for_inference(parameters) -> None:
    with pytest.raises(InputError, match="merged: merged works for inference only"):
        made(merged=True, **parameters)


def test_a_plain_mlp_has_two_products() -> None:
    graph = made(
        config=TINY | {"gated_mlp": False, "hidden_act": "gelu"}, phase="prefill", sequence=40
    )
    assert Counter(
        op.name.rpartition(".")[2] for op in graph.ops if ".layers.1.mlp." in op.name
    ) == {
        "up_proj": 1,
        "gelu": 1,
        "down_proj": 1,
    }
    merged = made(
        config=TINY | {"gated_mlp": False, "hidden_act": "gelu"},
        phase="prefill",
        sequence=40,
        merged=True,
    )
    assert sum(op.flops for op in merged.ops) == sum(op.flops for op in graph.ops)


def test_dropout_keeps_a_byte_for_each_element_that_it_may_drop() -> None:
    def masks(**parameters: object) -> int:
        graph = made(
            config=TINY | {"dropout": 0.1, "attention_dropout": 0.1}, sequence=40, **parameters
        )
        return sum(
            graph.tensors[t].size_bytes
            for op in graph.ops
            if op.kind in ("random", "attention")
            for t in op.outputs[1:]
        )

    added = 2 * 2 * 120 * 64  # what attention and MLP of two layers add
    statistics, scores = 2 * 3 * 8 * 40 * 4, 2 * 3 * 8 * 40 * 40
    gradients = (
        2 * 2 * 120 * 2 * 16 * 2
    )  # of keys and values, which the gradient of attention gives beside that of queries
    assert masks(phase="train") == added + statistics + gradients
    assert masks(phase="train", fused=False) == added + statistics + gradients
    # probabilities in four bytes, and which of them count; keys and values are repeated to the
    # heads of queries
    assert masks(phase="train", attention="math") == added + 5 * scores + 4 * gradients
    assert masks(phase="prefill") == 0


def test_main_gradients_are_in_fp32_and_outlive_the_step() -> None:
    apart, main = (
        made(phase="train", sequence=40, main_gradients=wanted) for wanted in (False, True)
    )
    kept = [tensor for tensor in main.tensors if tensor.kind == "gradient" and tensor.persistent]
    parameters = sum(tensor.size_bytes for tensor in main.tensors if tensor.kind == "parameter")
    assert sum(tensor.size_bytes for tensor in kept) == 2 * parameters
    assert not [
        tensor for tensor in apart.tensors if tensor.kind == "gradient" and tensor.persistent
    ]
    steps = [op for op in main.ops if op.kind == "optimizer"]
    assert all(any(main.tensors[t].name.endswith(".main_grad") for t in op.inputs) for op in steps)
