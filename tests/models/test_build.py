"""Builders: what they refuse, what training, sharding and the cache add; figures derived from
shapes.
"""

from collections import Counter
from itertools import pairwise

import pytest
from counting import lines_run
from hypothesis import given
from hypothesis import strategies as st
from wholes import wholes

from hosim.analysis import static_peak
from hosim.analysis.verifying import verify
from hosim.cache_plan import Plan
from hosim.errors import InputError
from hosim.hardware import Compute, Hardware, Tier
from hosim.io import load_any
from hosim.io.models import PRESETS, Decoder, Tape, add, build, scale

TINY = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 96,
}
DENSE = {"model": "llama-3.1-8b", "config": {**TINY, "intermediate_size": 80}, "sequence": 32}
EXPERTS = {
    "model": "qwen3-30b-a3b",
    "config": {**TINY, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
    "sequence": 32,
}


def by_kind(graph):
    sizes = Counter()
    for tensor in graph.tensors:
        sizes[tensor.kind] += tensor.size_bytes
    return sizes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model": "llama-3.1-80b"},
            r"^model: expected a model .*; did you mean 'llama-3.1-8b'\?$",
        ),
        ({"model": None}, "^model: expected a model"),
        ({"sequenze": 3}, r"^sequenze: unknown parameter 'sequenze'; did you mean 'sequence'\?$"),
        ({"sequence": 0}, "^sequence: expected at least 1, got 0$"),
        ({"sequence": 2**50}, r"^sequence: expected at most 2\^40"),
        ({"sequence": "4k"}, "^sequence: expected an integer, got '4k'$"),
        ({"sequence": True}, "^sequence: expected an integer, got True$"),
        ({"fused": 1}, "^fused: expected true or false, got 1$"),
        ({"layers": 3}, "^layers: the model has 2 layers, got 3$"),
        (
            {"phase": "forward"},
            "^phase: llama-3.1-8b is built for train, prefill, decode; got 'forward'$",
        ),
        ({"dtype": "int4"}, "^dtype: expected one of bf16, fp16, fp32; got 'int4'$"),
        ({"config": 3}, "^config: expected a mapping"),
        ({"config": {"hidden": 3}}, r"^config.hidden: unknown parameter 'hidden'; did you mean"),
        ({"config": {"dropout": 7}}, "^config.dropout: expected a share from 0 to 1, got 7$"),
        (
            {"config": {"embedding_dropout": -0.5}},
            "^config.embedding_dropout: expected a share from 0 to 1, got -0.5$",
        ),
        (
            {"config": {"hidden_size": "big"}},
            "^config.hidden_size: expected an integer, got 'big'$",
        ),
        ({"tensor": 3}, "^tensor: 3 devices cannot share num_attention_heads 4 evenly$"),
        ({"expert": 2}, "^expert: "),
        ({"pipeline": 3}, "^pipeline: 3 stages need at least one layer each$"),
        ({"stage": 1}, "^stage: expected a stage from 0 to 0, got 1$"),
        ({"link": "400 Gb/s"}, "^link: "),
        ({"link": 400}, "^link: expected a rate"),
        ({"routing": 3}, "^routing: expected a mapping"),
        (
            {"routing": {"step": 3}},
            r"^routing.step: unknown parameter 'step'; did you mean 'steps'\?$",
        ),
        ({"routing": {}}, "^routing: no gate chooses in this run"),
        (
            {"routing": {"persistence": 2.0}, "phase": "decode", "kv_block": 8, "context": 80},
            "^persistence: expected a probability",
        ),
    ],
)
def test_what_is_refused(changes, message):
    with pytest.raises(InputError, match=message) as caught:
        build("x", {**DENSE, **changes})
    assert "\n" not in str(caught.value)


FIELDS = {
    "phase": st.sampled_from(["train", "prefill", "decode"]),
    "batch": st.integers(1, 3),
    "sequence": st.integers(1, 40),
    "context": st.integers(1, 90),
    "layers": st.integers(1, 2) | st.none(),
    "dtype": st.sampled_from(["bf16", "fp16", "fp32"]),
    "attention": st.sampled_from(["causal", "masked", "math", "scores"]),
    "fused": st.booleans(),
    "merged": st.booleans(),
    "checkpoint": st.booleans(),
    "selective": st.booleans(),
    "recompute_attention": st.booleans(),
    "sequence_parallel": st.booleans(),
    "regather": st.booleans(),
    "weights": st.sampled_from(["fp8_e4m3", "int8", "int4", "mxfp4", "nf4"]),
    "group": st.integers(1, 64),
    "packed": st.sampled_from(["all", "experts"]),
    "activations": st.sampled_from(["fp8", "int8"]),
    "cache_dtype": st.sampled_from(["fp8_e5m2", "int8", "int4"]),
    "logits": st.sampled_from(["last", "all"]),
    "cache": st.booleans(),
    "optimizer": st.sampled_from(["adamw", "none"]),
    "tensor": st.integers(1, 2),
    "expert": st.integers(1, 2),
    "pipeline": st.integers(1, 2),
    "stage": st.integers(0, 1),
    "micro_batches": st.integers(1, 3),
    "schedule": st.sampled_from(["1f1b", "gpipe", "interleaved"]),
    "chunks": st.integers(1, 2),
    "link": st.just("1 GB/s"),
    "chosen_experts": st.integers(1, 9),
    "kv_block": st.integers(1, 20),
    "sink_blocks": st.integers(0, 3),
    "window_blocks": st.integers(1, 3),
    "chosen_blocks": st.integers(1, 5),
    "experts_home": st.sampled_from(["ddr", "pool"]),
    "routing": st.fixed_dictionaries(
        {}, optional={"steps": st.integers(1, 3), "persistence": st.sampled_from([0, 0.5])}
    ),
}


OPTIONS = {
    "norm": st.sampled_from(["rms", "layer", "layer_without_bias"]),
    "positions": st.sampled_from(["rotary", "learned", "alibi"]),
    "hidden_act": st.sampled_from(["silu", "gelu", "gelu_new", "relu"]),
    "names": st.sampled_from(["llama", "opt", "gpt2", "gemma"]),
    "num_key_value_heads": st.sampled_from([1, 4]),
    "rotary_width": st.integers(0, 20),
    "max_position_embeddings": st.integers(0, 90),
    "sliding_window": st.integers(0, 40),
    "full_attention_every": st.integers(0, 3),
    "dropout": st.sampled_from([0.0, 0.5]),
    "embedding_dropout": st.sampled_from([0.0, 0.5]),
    **dict.fromkeys(
        (
            *(
                "gated_mlp",
                "fused_projections",
                "parallel_block",
                "shared_norm",
                "post_norms",
                "embedding_norm",
                "embedding_scale",
                "qk_norm",
            ),
            *(
                "qkv_bias",
                "out_bias",
                "mlp_bias",
                "head_bias",
                "expert_bias",
                "attention_sinks",
                "final_softcap",
                "tie_word_embeddings",
            ),
        ),
        st.booleans(),
    ),
}


@given(
    st.sampled_from(["dense", "experts", "latent"]),
    st.fixed_dictionaries({}, optional=FIELDS),
    st.fixed_dictionaries({}, optional=OPTIONS),
)
def test_whatever_is_asked_for_is_built_or_refused(kind, parameters, options):
    latent = {
        "kv_lora_rank": 8,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 8,
        "num_key_value_heads": 4,
        "n_group": 2,
    }
    base = {
        "dense": DENSE,
        "experts": EXPERTS,
        "latent": {
            **EXPERTS,
            "model": "deepseek-v3",
            "config": {**EXPERTS["config"], **latent, "first_k_dense_replace": 1},
        },
    }[kind]
    try:
        graph = build("x", {**base, "config": {**base["config"], **options}, **parameters})
    except InputError as error:
        assert "\n" not in str(error)
        return
    assert graph.ops
    assert static_peak(graph).bytes > 0
    learned = by_kind(graph)["parameter"] + by_kind(graph)["expert"]
    assert by_kind(graph)["gradient"] == (learned if parameters.get("phase") == "train" else 0)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (
            {"model": "bert-base", "tensor": 2},
            "^tensor: bert-base takes no 'tensor'; it takes batch, checkpoint, ",
        ),
        ({"model": "vit-l-16", "sequence": 4096}, "^sequence: vit-l-16 takes no 'sequence'"),
        ({"model": "gpt2", "sequence": 4096}, "^sequence: the model has 1024 positions, got 4096$"),
        (
            {"model": "gpt2", "phase": "decode", "context": 4096},
            "^context: the model has 1024 positions, got 4096$",
        ),
        (
            {"model": "llama-3.1-8b", "config": {"positions": "learned"}},
            "^config.max_position_embeddings: learned positions need a number",
        ),
        (
            {"model": "llama-3.1-8b", "config": {"rotary_width": 129}},
            "^config.rotary_width: expected at most 128, the width of a head$",
        ),
        (
            {"model": "bert-base", "sequence": 513},
            "^sequence: the model has 512 positions, got 513$",
        ),
    ],
)
def test_what_a_family_does_not_take(parameters, message):
    with pytest.raises(InputError, match=message):
        build("x", parameters)


def test_a_spec_says_where_it_is_wrong(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text("format: hosim.spec/1\nname: x\nbuilder: {model: llama-3.1-8b, layer: 3}\n")
    with pytest.raises(
        InputError,
        match=r"spec.yaml: builder.layer: unknown parameter 'layer'; did you mean 'layers'\?$",
    ):
        load_any(path)
    path.write_text(
        "format: hosim.spec/1\nname: x\nbuilder: {model: llama-3.1-8b}\nimporter: torch_export\n"
    )
    with pytest.raises(InputError, match="importer: unknown key 'importer'"):
        load_any(path)


WEIGHTS = ("parameter", "expert")
BILLIONS = {
    "llama-3.1-8b": 8.03,
    "llama-3.1-70b": 70.55,
    "llama-3.1-405b": 405.85,
    "llama-3.3-70b": 70.55,
    "llama-3.2-1b": 1.24,
    "llama-3.2-3b": 3.21,
    "llama-2-7b": 6.74,
    "llama-2-13b": 13.02,
    "llama-2-70b": 68.98,
    "mistral-7b": 7.25,
    "mistral-nemo-12b": 12.25,
    "mistral-small-24b": 23.57,
    "mistral-large-123b": 122.61,
    "mixtral-8x7b": 46.70,
    "mixtral-8x22b": 140.62,
    "qwen2.5-0.5b": 0.49,
    "qwen2.5-1.5b": 1.54,
    "qwen2.5-3b": 3.09,
    "qwen2.5-7b": 7.62,
    "qwen2.5-14b": 14.77,
    "qwen2.5-32b": 32.76,
    "qwen2.5-72b": 72.71,
    "qwen3-0.6b": 0.60,
    "qwen3-1.7b": 1.72,
    "qwen3-4b": 4.02,
    "qwen3-8b": 8.19,
    "qwen3-14b": 14.77,
    "qwen3-32b": 32.76,
    "qwen3-30b-a3b": 30.53,
    "qwen3-235b-a22b": 235.09,
    "deepseek-v2-lite": 15.71,
    "deepseek-v2": 235.74,
    "deepseek-v3": 671.03,
    "gemma-2-2b": 2.61,
    "gemma-2-9b": 9.24,
    "gemma-2-27b": 27.23,
    "gemma-3-1b": 1.00,
    "gemma-3-4b": 3.88,
    "gemma-3-12b": 11.77,
    "gemma-3-27b": 27.01,
    "phi-2": 2.78,
    "phi-3-mini": 3.82,
    "phi-3-medium": 13.96,
    "phi-4": 14.66,
    "phi-4-mini": 3.84,
    "gpt-oss-20b": 20.91,
    "gpt-oss-120b": 116.83,
    "opt-125m": 0.13,
    "opt-1.3b": 1.32,
    "opt-6.7b": 6.66,
    "opt-13b": 12.85,
    "opt-30b": 29.97,
    "opt-66b": 65.72,
    "opt-175b": 174.60,
    "bloom-560m": 0.56,
    "bloom-7b1": 7.07,
    "bloom-176b": 176.25,
    "falcon-7b": 6.92,
    "falcon-40b": 41.30,
    "falcon-180b": 178.56,
    "mpt-7b": 6.65,
    "mpt-30b": 29.96,
    "pythia-6.9b": 6.86,
    "gpt-neox-20b": 20.55,
    "gpt-j-6b": 6.05,
    "command-r-35b": 34.98,
}
"""Parameters as the models' cards have them, in billions; of Falcon with the output layer tied to
the embedding, as transformers has it, of Gemma 3 those of the text model.
"""


def test_presets_have_the_published_numbers_of_parameters():
    decoders = [name for name, sizes in PRESETS.items() if isinstance(sizes, Decoder)]
    assert sorted(decoders) == sorted(BILLIONS)
    for model in decoders:
        layers = PRESETS[model].num_hidden_layers
        dense = PRESETS[model].first_k_dense_replace
        # all layers of a kind are alike
        few, more = [
            sum(
                t.size_bytes
                for t in build(
                    model, {"model": model, "layers": n, "sequence": 8, "fused": True}
                ).tensors
                if t.kind in WEIGHTS
            )
            for n in (dense + 1, dense + 2)
        ]
        assert round((few + (layers - dense - 1) * (more - few)) / 2e9, 2) == BILLIONS[model], model


MULTIPLES = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "moe_intermediate_size": 64,
    "head_dim": 16,
    "vocab_size": 32,
    "num_experts": 8,
    "kv_lora_rank": 128,
    "q_lora_rank": 128,
}
"""Of what the sizes of every published decoder are multiples, or nothing."""


def test_sizes_of_presets_are_those_that_kernels_like():
    for name, sizes in PRESETS.items():
        if isinstance(sizes, Decoder):
            odd = [key for key, one in MULTIPLES.items() if (getattr(sizes, key) or 0) % one]
            assert not odd, name


MILLIONS = {
    "gpt2": 124.44,
    "gpt2-medium": 354.82,
    "gpt2-large": 774.03,
    "gpt2-xl": 1557.61,
    "t5-small": 60.51,
    "t5-base": 222.90,
    "t5-large": 737.67,
    "t5-3b": 2851.60,
    "t5-11b": 11307.32,
    "flan-t5-base": 247.58,
    "flan-t5-large": 783.15,
    "flan-t5-xl": 2849.76,
    "flan-t5-xxl": 11135.33,
    "whisper-tiny": 37.76,
    "whisper-base": 72.59,
    "whisper-small": 241.73,
    "whisper-medium": 763.86,
    "whisper-large-v3": 1543.49,
    "whisper-large-v3-turbo": 808.88,
    "vit-b-16": 86.57,
    "vit-l-16": 304.33,
}
"""Parameters of checkpoints, in millions."""


def test_encoders_and_images_have_the_published_numbers_of_parameters():
    for model, published in MILLIONS.items():
        assert round(by_kind(build(model, {"model": model}))["parameter"] / 2e6, 2) == published, (
            model
        )


OF_EACH_KIND = (
    "bert-base",
    "bloom-560m",
    "deepseek-v2-lite",
    "deepseek-v3",
    "dit-xl-2",
    "falcon-7b",
    "falcon-40b",
    "flan-t5-base",
    "gemma-2-2b",
    "gemma-3-1b",
    "gpt-oss-20b",
    "gpt2",
    "llama-3.1-8b",
    "mpt-7b",
    "opt-1.3b",
    "phi-2",
    "phi-4-mini",
    "qwen2.5-7b",
    "qwen3-30b-a3b",
    "t5-large",
    "vit-l-16",
    "whisper-tiny",
)


@pytest.mark.parametrize("model", OF_EACH_KIND)
@pytest.mark.parametrize("checkpoint", [False, True])
def test_every_model_trains(model, checkpoint):
    graph = build(model, {"model": model, "phase": "train", "layers": 2, "checkpoint": checkpoint})
    sizes = by_kind(graph)
    learned = sizes["parameter"] + sizes["expert"]
    assert sizes["gradient"] == learned
    assert sizes["optimizer_state"] == 6 * learned  # fp32 parameter and two moments, beside bf16
    updated = [graph.tensors[op.mutates[0]].name for op in graph.ops if op.kind == "optimizer"]
    assert sorted(updated) == sorted(
        t.name for t in graph.tensors if t.kind in ("parameter", "expert")
    )
    assert static_peak(graph).bytes > 7 * learned
    assert all(
        len(users) > 1
        for tensor, users in zip(graph.tensors, graph.users, strict=True)
        if tensor.kind == "gradient"
    )
    hardware = Hardware(
        "h", (Tier("hbm", 2**50, 10**12),), (), Compute({"bf16": 10**15, "fp32": 10**14})
    )
    assert verify(Plan(graph), hardware, 2**50) == ()


def test_backward_takes_twice_the_products_of_forward():
    graph = build("x", {**DENSE, "phase": "train"})
    forward = sum(
        op.flops for op in graph.ops if op.kind == "matmul" and not op.name.startswith("backward.")
    )
    backward = sum(
        op.flops for op in graph.ops if op.kind == "matmul" and op.name.startswith("backward.")
    )
    assert backward == 2 * forward
    attention = [op.flops for op in graph.ops if op.kind == "attention"]
    assert attention[-1] * 2 == attention[0] * 5  # the fused kernel computes its scores again


def test_tied_embeddings_are_one_tensor_and_one_gradient():
    tied = build(
        "x", {**DENSE, "phase": "train", "config": {**DENSE["config"], "tie_word_embeddings": True}}
    )
    apart = build("x", {**DENSE, "phase": "train"})
    table = 96 * 64 * 2
    assert by_kind(apart)["parameter"] - by_kind(tied)["parameter"] == table
    assert by_kind(apart)["gradient"] - by_kind(tied)["gradient"] == table
    assert any(
        op.name.endswith("accumulate") and tied.tensors[op.mutates[0]].kind == "gradient"
        for op in tied.ops
        if op.mutates
    )


def test_tensor_shards():
    alone, shared = (
        build("x", {**DENSE, "phase": "train"}),
        build("x", {**DENSE, "phase": "train", "tensor": 2, "link": "1 GB/s"}),
    )
    norms = 5 * 64 * 2
    assert by_kind(shared)["parameter"] - norms == (by_kind(alone)["parameter"] - norms) // 2
    reduced = [op for op in shared.ops if op.kind == "all_reduce"]
    # forward: the embedding, and after attention and MLP of two layers; backward: before both, and
    # before the output layer
    assert len(reduced) == 1 + 2 * 2 + 2 * 2 + 1
    assert {op.stream for op in reduced} == {"comm"}
    assert {op.duration_ns for op in reduced} == {
        32 * 64 * 2
    }  # a ring of two: each sends half of the bytes twice, a byte a nanosecond
    products = [
        sum(op.flops for op in graph.ops if op.kind == "matmul") for graph in (alone, shared)
    ]
    assert products[0] == 2 * products[1]


def test_shards_of_a_model_with_an_odd_vocabulary_and_few_heads_of_keys():
    """The vocabulary is padded, and devices have copies of heads of keys that are fewer than
    they.
    """
    gpt2 = {"model": "gpt2", "config": {"n_layer": 1}, "phase": "decode", "context": 64}
    alone, shared = build("x", gpt2), build("x", {**gpt2, "tensor": 4})
    table = 768 * 2
    # products of 4 and 8 times 768 x 768 in attention and MLP, two tables, biases of 3, 1, 4 and 1,
    # three norms of weight and bias
    assert by_kind(alone)["parameter"] == (12 * 768 + 50257 + 1024 + 9 + 6) * table
    assert wholes(alone)["transformer.wte.weight"] == 50257 * table
    assert wholes(shared)["transformer.wte.weight"] == 12565 * table  # a quarter, rounded up
    assert by_kind(shared)["kv_cache"] * 4 == by_kind(alone)["kv_cache"] == 2 * 64 * table
    few = {"model": "gemma-3-1b", "phase": "decode", "context": 64, "layers": 1}
    assert (
        by_kind(build("x", {**few, "tensor": 4}))["kv_cache"]
        == by_kind(build("x", few))["kv_cache"]
        == 2 * 64 * 256 * 2
    )


@pytest.mark.parametrize(
    "model",
    [
        "gpt2",
        "opt-1.3b",
        "phi-2",
        "falcon-40b",
        "bloom-560m",
        "mpt-7b",
        "gemma-2-2b",
        "gpt-oss-20b",
    ],
)
def test_a_step_of_every_decoder_reads_all_that_a_prompt_wrote(model):
    options = {"model": model, "layers": 2, "batch": 2}
    prompt, step = (
        build("x", {**options, "sequence": 96}),
        build("x", {**options, "phase": "decode", "context": 96}),
    )
    merged = build("x", {**options, "phase": "decode", "context": 96, "merged": True})
    sizes = PRESETS[model].decoder() if model == "gpt2" else PRESETS[model]
    kept = 2 * 2 * 2 * 96 * sizes.num_key_value_heads * sizes.head_dim * 2
    assert (
        by_kind(prompt)["kv_cache"]
        == by_kind(step)["kv_cache"]
        == by_kind(merged)["kv_cache"]
        == kept
    )
    assert [sum(op.flops for op in g.ops if op.kind == "attention") for g in (step, merged)] == [
        2 * 4 * 2 * 96 * sizes.num_attention_heads * sizes.head_dim
    ] * 2
    shared = build(
        "x", {**options, "phase": "decode", "context": 96, "tensor": 2, "link": "1 GB/s"}
    )
    assert by_kind(shared)["kv_cache"] * 2 == kept
    assert (
        sum(op.kind == "all_reduce" for op in shared.ops) == 1 + 2 * 2
    )  # the embedding, and attention and MLP of two layers


@pytest.mark.parametrize(("model", "source"), [("flan-t5-base", 40), ("whisper-tiny", 1500)])
def test_a_step_of_a_decoder_with_an_encoder_reads_both_caches(model, source):
    options = {"model": model, "layers": 2, "batch": 3, "context": 20, "phase": "decode"}
    graph = build("x", options | ({"sequence": source} if model == "flan-t5-base" else {}))
    width = 768 if model == "flan-t5-base" else 384
    assert by_kind(graph)["kv_cache"] == 2 * 2 * 3 * (20 + source) * width * 2
    if model == "whisper-tiny":
        assert (
            sum(op.flops for op in graph.ops if op.kind == "attention")
            == 2 * 4 * 3 * (20 + source) * width
        )
    written = [op for op in graph.ops if op.kind == "scatter"]
    assert len(written) == 2 * 2  # keys and values of the new token; those of the source stay
    assert not any("encoder." in op.name.partition("decoder.")[0] for op in graph.ops)


def test_expert_shards():
    alone, shared = build("x", EXPERTS), build("x", {**EXPERTS, "expert": 4, "link": "1 GB/s"})
    assert by_kind(shared)["expert"] * 4 == by_kind(alone)["expert"]
    sent = [op for op in shared.ops if op.kind == "all_to_all"]
    assert len(sent) == 2 * 2  # there and back, in two layers
    assert {op.duration_ns for op in sent} == {
        32 * 2 * 64 * 2 * 3 // 4
    }  # three quarters of the chosen rows are another device's
    work = [sum(op.flops for op in graph.ops) for graph in (alone, shared)]
    assert work[0] == work[1]  # as many rows come as go


def test_devices_that_share_experts_add_up_the_gradients_of_the_router():
    """Each has a part of every output, so what it finds for the weight of an output is a part,
    too.
    """
    graph = build("x", {**EXPERTS, "phase": "train", "tensor": 2})
    x, weights = (
        32 * 64 * 2,
        32 * 2 * 2,
    )  # bytes of 32 tokens 64 wide, and of the weights of their two experts
    sent = [op.sizes[1] for op in graph.ops if op.kind == "all_reduce" and "mlp.experts" in op.name]
    assert sent == [x] * 2 + [weights, x] * 2  # forward, then backward


def test_pipeline_stages_are_the_whole_together():
    whole = build("x", {**DENSE, "phase": "train"})
    shared = {**DENSE, "phase": "train", "pipeline": 2, "link": "1 GB/s", "micro_batches": 1}
    stages = [build("x", {**shared, "stage": stage}) for stage in (0, 1)]
    assert sum(by_kind(stage)["parameter"] for stage in stages) == by_kind(whole)["parameter"]
    assert [[op.name for op in stage.ops if op.stream == "comm"] for stage in stages] == [
        ["model.send", "recv_grad"],
        ["model.recv", "backward.model.recv.grad"],
    ]
    assert sum(op.flops for stage in stages for op in stage.ops) == sum(
        op.flops for op in whole.ops
    )


def test_the_cache_of_a_decoder():
    graph = build(
        "x", {**DENSE, "phase": "decode", "batch": 3, "context": 500, "cache_home": "ddr"}
    )
    cache = [t for t in graph.tensors if t.kind == "kv_cache"]
    token = 3 * 2 * 16 * 2
    assert {(t.name.rpartition("[")[2], t.size_bytes, t.home) for t in cache} == {
        ("past]", 499 * token, "ddr"),
        ("new]", token, "ddr"),
    }
    assert len(cache) == 8
    written = [
        graph.tensors[t].name
        for op in graph.ops
        for t in op.writes
        if graph.tensors[t].kind == "kv_cache"
    ]
    assert all([name.endswith("[new]") for name in written])
    attention = [op for op in graph.ops if op.kind == "attention"]
    assert {op.flops for op in attention} == {4 * 3 * 4 * 500 * 16}
    latent = build("x", {"model": "deepseek-v3", "phase": "decode", "layers": 1, "context": 100})
    assert sum(t.size_bytes for t in latent.tensors if t.kind == "kv_cache") == 100 * (512 + 64) * 2


def test_a_prefill_writes_the_cache_and_the_last_logits():
    graph = build("x", DENSE)
    assert by_kind(graph)["kv_cache"] == 2 * 2 * 2 * 32 * 16 * 2
    assert by_kind(graph)["output"] == 96 * 2
    bare = build("x", {**DENSE, "cache": False, "logits": "all"})
    assert (by_kind(bare)["kv_cache"], by_kind(bare)["output"]) == (0, 32 * 96 * 2)


def test_fusing_changes_no_product():
    eager, fused = (
        build("x", {**DENSE, "phase": "train"}),
        build("x", {**DENSE, "phase": "train", "fused": True}),
    )
    assert len(fused.ops) < 0.7 * len(eager.ops)
    assert sum(op.flops for op in fused.ops) == sum(op.flops for op in eager.ops)
    assert by_kind(fused)["gradient"] == by_kind(eager)["gradient"]


def test_memory_follows_the_sequence_and_the_work_of_building_does_not():
    settings = [
        {
            "model": "llama-3.1-8b",
            "phase": "train",
            "fused": True,
            "layers": 4,
            "optimizer": "none",
            "sequence": 1024 * 2**n,
        }
        for n in range(6)
    ]
    graphs = [build("x", parameters) for parameters in settings]
    lines = [lines_run(build, "x", parameters) for parameters in settings]
    assert max(lines) < 1.01 * min(lines)  # not equal: ops that are alike are kept once
    live = [static_peak(graph).bytes - by_kind(graph)["parameter"] for graph in graphs]
    assert all(1.95 < b / a < 2.0001 for a, b in pairwise(live))


def test_a_collective_overlaps_with_nothing_that_needs_it():
    graph = build("x", {**DENSE, "tensor": 2, "link": "1 GB/s"})
    reduced = graph.op_index["model.layers.0.self_attn.all_reduce"]
    after = graph.op_index["model.layers.0.add_attn"]
    assert reduced in graph.producers[after]


def test_equal_parameters_give_equal_graphs():
    assert build("x", EXPERTS) == build("x", dict(reversed(EXPERTS.items())))
    assert build("x", EXPERTS).meta == {
        "source": "hosim.models",
        "repeatable": True,
        "builder": EXPERTS,
    }


def test_more_experts_for_each_token_than_there_are():
    with pytest.raises(InputError) as caught:
        build("x", {**EXPERTS, "config": {**EXPERTS["config"], "num_experts_per_tok": 9}})
    assert (
        str(caught.value)
        == "config.num_experts_per_tok: expected at most 8, the number of experts; got 9"
    )


def test_a_mixture_of_one_expert_is_one() -> None:
    alone = {**EXPERTS["config"], "num_experts": 1, "num_experts_per_tok": 1}
    names = [op.name for op in build("x", {**EXPERTS, "config": alone}).ops]
    assert [name for name in names if name.endswith("gate.router")] == [
        f"model.layers.{n}.mlp.gate.router" for n in range(alone["num_hidden_layers"])
    ]


def test_a_gradient_that_two_values_share_is_not_changed_for_one_of_them():
    """``a`` and ``b`` have the gradient of their sum; what ``a`` gets besides makes a tensor of its
    own.
    """
    t = Tape("x", training=True)
    a, b = (scale(t, t.parameter(name, (3,), "fp32"), name) for name in "pq")
    both = add(t, scale(t, a, "double"), add(t, a, b, "sum"), "whole")
    t.backward(both, t.op("ones", "fill", [both], both.shape))
    graph = t.build()
    listed = {
        op.name: ([graph.tensors[i].name for i in op.inputs], op.mutates)
        for op in graph.ops
        if op.name.startswith("backward")
    }
    assert listed == {
        "backward.double.grad": (["ones"], ()),
        "backward.accumulate": (["ones", "backward.double.grad"], ()),
        "backward.q.grad": (["ones"], ()),
        "backward.p.grad": (["backward.accumulate"], ()),
        "backward.clone": (["backward.q.grad"], ()),
        "backward.clone_1": (["backward.p.grad"], ()),
    }


@pytest.mark.parametrize(
    ("parameters", "where", "message"),
    [
        (
            {"model": "gpt2-xl", "phase": "train", "config": {"n_layer": 10**9}},
            "config",
            "1000 layers, got 1000000000;",
        ),
        (
            {"model": "t5-large", "phase": "train", "config": {"num_layers": 1001}},
            "config",
            "1000 layers, got 1001;",
        ),
        (
            {"model": "gpt2-xl", "config": {"n_layer": 2000}, "layers": 2000},
            "layers",
            "1000 layers, got 2000;",
        ),
        # 48 layers with 1042 experts each are 50,016
        (
            {"model": "qwen3-30b-a3b", "config": {"num_experts": 1042}, "chosen_experts": 8},
            "config.num_experts",
            "50000 parts of a model, got 50016;",
        ),
        # 32 layers with 2^40 blocks each are 2^45
        (
            {"model": "llama-3.1-8b", "phase": "decode", "context": 2**40, "kv_block": 1},
            "kv_block",
            f"50000 parts of a model, got {2**45};",
        ),
    ],
)
def test_a_model_of_too_many_parts_is_refused_before_it_is_built(
    parameters, where, message, monkeypatch
):
    monkeypatch.setattr("hosim.io.models.builder.step", None)
    with pytest.raises(InputError) as raised:
        build("x", parameters)
    assert str(raised.value).startswith(f"{where}: expected at most {message}")


def test_only_the_layers_of_the_stage_count():
    shape = {"config": {"num_hidden_layers": 2000}, "pipeline": 1000}
    assert len(build("x", {"model": "llama-3.1-8b", **shape}).ops) < 100


def test_whatever_else_makes_many_ops_is_refused_while_it_is_built(monkeypatch):
    monkeypatch.setenv("HOSIM_LIMITS", "records=500")
    with pytest.raises(
        InputError, match='expected at most 500 records, got more; HOSIM_LIMITS="records=1000"'
    ):
        build("x", {"model": "gpt2-xl", "phase": "train", "config": {"n_layer": 900}})


def test_gradients_are_added_in_place_where_their_tensor_is_nobody_elses():
    """g is the gradient of x and of y: what is added to that of x makes a new tensor, to which the
    next is added in place.
    """
    tape = Tape("toy", training=True)
    x, y, g, h, k = (tape.detached(tape.held(name, [4], "fp32", "input")) for name in "xyghk")
    tape.give(x, g)
    tape.give(y, g)
    for more in (h, k, h):
        tape.give(x, more)
    assert tape.take(y) == g
    tape.give(y, g)
    tape.give(y, k)
    graph = tape.builder.build()
    names = [t.name for t in graph.tensors]
    told = [
        (
            [names[t] for t in op.inputs],
            [names[t] for t in op.outputs],
            [names[t] for t in op.mutates],
        )
        for op in graph.ops
    ]
    (total,) = told[0][1]
    assert told == [
        (["g", "h"], [total], []),
        (["k"], [], [total]),
        (["h"], [], [total]),
        (["k"], [], ["g"]),
    ]
    assert tape.take(x).tensor == total
