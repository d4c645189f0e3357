"""Packed weights as config.json says them: bytes equal to those of the tensors that such files
have, and what is not known is said.
"""

import numpy as np
import pytest
from rendered import facts

import hosim
from hosim.io.models import packing_of

SIZES = {
    "hidden_size": 256,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
}
LLAMA = {"model_type": "llama", **SIZES, "vocab_size": 96}
SHAPES = {"q_proj": (256, 256), "k_proj": (128, 256), "v_proj": (128, 256), "o_proj": (256, 256)}
SHAPES |= {"gate_proj": (512, 256), "up_proj": (512, 256), "down_proj": (256, 512)}
"""Rows and columns, as torch has them."""


def gptq(rows, columns, bits, group):
    """AutoGPTQ: packed along the columns, zeros along the rows, in int32."""
    groups = -(-columns // group)
    yield np.empty((columns * bits // 32, rows), np.int32)  # qweight
    yield np.empty((groups, rows * bits // 32), np.int32)  # qzeros
    yield np.empty((groups, rows), np.float16)  # scales
    yield np.empty(columns, np.int32)  # g_idx


def awq(rows, columns, group):
    """AutoAWQ's GEMM: both packed along the rows."""
    yield np.empty((columns, rows // 8), np.int32)
    yield np.empty((columns // group, rows // 8), np.int32)
    yield np.empty((columns // group, rows), np.float16)


def fp8(rows, columns, block):
    """The files of DeepSeek-V3: a scale in fp32 for each block."""
    yield np.empty((rows, columns), np.uint8)
    yield np.empty((-(-rows // block), -(-columns // block)), np.float32)


def fp8_rows(rows, columns):
    """compressed-tensors: a scale for each row; those of a whole tensor are 4 B a row fewer."""
    yield np.empty((rows, columns), np.uint8)
    yield np.empty((rows, 1), np.float32)


def nvfp4(rows, columns):
    """ModelOpt: two elements a byte, and a scale of 8 bits for 16 of them."""
    yield np.empty((rows, columns // 2), np.uint8)
    yield np.empty((rows, columns // 16), np.uint8)


def linear(**weights):
    """compressed-tensors, for all linear layers."""
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}}
    return {
        "quant_method": "compressed-tensors",
        "config_groups": groups,
        "ignore": ["lm_head", "re:.*mlp.gate$"],
    }


def nf4(rows, columns):
    """bitsandbytes: two elements a byte, a maximum in fp32 for 64 of them."""
    yield np.empty((rows * columns // 2, 1), np.uint8)
    yield np.empty(rows * columns // 64, np.float32)


def nf4_double(rows, columns):
    """The same with these maxima in 8 bits, and a maximum in fp32 for 256 of them."""
    yield np.empty((rows * columns // 2, 1), np.uint8)
    yield np.empty(rows * columns // 64, np.uint8)
    yield np.empty(-(-rows * columns // 64 // 256), np.float32)


@pytest.mark.parametrize(
    ("said", "tensors"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, lambda r, c: gptq(r, c, 4, 128)),
        (
            {"quant_method": "gptq", "bits": 8, "group_size": 64, "desc_act": True},
            lambda r, c: gptq(r, c, 8, 64),
        ),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1}, lambda r, c: gptq(r, c, 4, c)),
        (
            {
                "quant_method": "awq",
                "bits": 4,
                "group_size": 64,
                "zero_point": True,
                "version": "gemm",
            },
            lambda r, c: awq(r, c, 64),
        ),
        (
            {
                "quant_method": "fp8",
                "weight_block_size": [128, 128],
                "activation_scheme": "dynamic",
                "modules_to_not_convert": ["lm_head"],
            },
            lambda r, c: fp8(r, c, 128),
        ),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
            lambda r, c: nf4(r, c),
        ),
        (
            {
                "quant_method": "bitsandbytes",
                "load_in_4bit": True,
                "bnb_4bit_quant_type": "nf4",
                "bnb_4bit_use_double_quant": True,
            },
            lambda r, c: nf4_double(r, c),
        ),
        ({"quant_method": "fp8", "weight_block_size": None}, fp8_rows),
        ({"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["lm_head"]}, fp8_rows),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]}, fp8_rows),
        (
            {"quant_method": "modelopt", "quant_algo": "FP8_PB_WO", "exclude_modules": ["*norm*"]},
            lambda r, c: fp8(r, c, 128),
        ),
        (linear(num_bits=8, type="float", strategy="channel", symmetric=True), fp8_rows),
        (
            linear(num_bits=8, type="float", strategy="block", block_structure=[128, 128]),
            lambda r, c: fp8(r, c, 128),
        ),
    ],
    ids=lambda value: value["quant_method"] if isinstance(value, dict) else None,
)
def test_bytes_are_those_of_the_files(said, tensors):
    graph = hosim.load({"model": {**LLAMA, "quantization_config": said}, "sequence": 8})
    sizes = {t.name.split(".")[-2]: t.size_bytes for t in graph.tensors if t.kind == "parameter"}
    assert {name: sizes[name] for name in SHAPES} == {
        name: sum(t.nbytes for t in tensors(*shape)) for name, shape in SHAPES.items()
    }
    assert "left_out" not in graph.meta
    # what the command says, and training, come first
    assert (
        hosim.load(
            {"model": {**LLAMA, "quantization_config": said}, "sequence": 8, "weights": "int8"}
        ).meta.get("left_out")
        is None
    )
    trained = hosim.load(
        {"model": {**LLAMA, "quantization_config": said}, "sequence": 8, "phase": "train"}
    )
    (line,) = trained.meta["left_out"]
    assert facts(line, said["quant_method"]) == said["quant_method"]


def test_four_bits_of_modelopt_say_what_products_read():
    said = {
        "quant_method": "modelopt",
        "quant_algo": "NVFP4",
        "kv_cache_quant_algo": "FP8",
        "group_size": 16,
        "exclude_modules": ["lm_head"],
    }
    graph = hosim.load({"model": {**LLAMA, "quantization_config": said}, "sequence": 8})
    sizes = {t.name.split(".")[-2]: t.size_bytes for t in graph.tensors if t.kind == "parameter"}
    assert {name: sizes[name] for name in SHAPES} == {
        name: sum(t.nbytes for t in nvfp4(*shape)) for name, shape in SHAPES.items()
    }
    assert [facts(line.split(":")[0], "cache") for line in graph.meta["left_out"]] == ["cache", "4"]
    again = hosim.load(graph.meta["builder"])
    assert again == graph
    assert again.meta["left_out"] == graph.meta["left_out"]


MOE = {
    "model_type": "qwen3_moe",
    **SIZES,
    "vocab_size": 96,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
}
KEPT = {
    "what is never packed": (
        [
            "lm_head",
            "model.layers.0.input_layernorm",
            "model.layers.0.mlp.gate",
            "model.norm",
            "*router*",
        ],
        True,
    ),
    "other models inside": (
        ["model.visual.blocks.0.attn", "vision_tower.encoder.layers.0.mlp.up_proj", "mtp.layers.0"],
        True,
    ),
    "another layer": (["model.layers.7"], True),
    "patterns": (["re:.*mlp.gate$", "re:.*lm_head", "*.mlp.gate", "model.layers.*.mlp.gate"], True),
    "queries": (["model.layers.0.self_attn.q_proj"], False),
    "attention": (["model.layers.0.self_attn*"], False),
    "under another name": (["language_model.model.layers.0.self_attn"], False),
    "one expert": (["model.layers.0.mlp.experts.3.down_proj"], False),
    "a layer": (["model.layers.0"], False),
    "an expression": (["re:.*(q|k)_proj"], False),
}


@pytest.mark.parametrize("which", KEPT)
@pytest.mark.parametrize("key", ["modules_to_not_convert", "ignored_layers"])
def test_modules_that_stay_as_they_are_anyway_change_nothing(which, key):
    """Any other list is said, as builders pack all layers alike."""
    kept, same = KEPT[which]
    said = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    graph, whole = [
        hosim.load({"model": {**MOE, "quantization_config": {**said, **more}}, "sequence": 8})
        for more in ({key: kept}, {})
    ]
    assert ("left_out" not in graph.meta) == same
    assert (graph.tensors == whole.tensors) == same


def test_experts_alone_in_mxfp4():
    """The experts of gpt-oss: half a byte an element and an exponent for 32 of them, beside biases
    in 16 bits.
    """
    config = {
        "model_type": "gpt_oss",
        **SIZES,
        "vocab_size": 96,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    }
    kept = [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ]
    packed, plain = [
        hosim.load({"model": {**config, **more}, "sequence": 8})
        for more in (
            {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": kept}},
            {},
        )
    ]
    saved = sum(t.size_bytes for t in plain.tensors if t.kind == "expert") - sum(
        t.size_bytes for t in packed.tensors if t.kind == "expert"
    )
    elements = 4 * 3 * 512 * 256
    assert saved == 2 * elements - (elements // 2 + elements // 32)
    assert [t for t in packed.tensors if t.kind == "parameter"] == [
        t for t in plain.tensors if t.kind == "parameter"
    ]


@pytest.mark.parametrize(
    "said",
    [
        {"quant_method": "gptq", "bits": 3},
        {"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"},
        {"quant_method": "gptq", "bits": 4, "group_size": "128"},
        {"quant_method": "awq", "bits": 4, "version": "gemv"},
        {"quant_method": "awq", "bits": 4, "modules_to_not_convert": ["model.layers.0"]},
        {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"},
        {
            "quant_method": "compressed-tensors",
            "config_groups": {
                "a": {"targets": ["Linear"], "weights": {"num_bits": 3, "type": "int"}}
            },
        },
        {"quant_method": "fp8", "weight_block_size": [128, 64]},
        {"quant_method": "bitsandbytes", "load_in_8bit": True},
        {"quant_method": "quip"},
        {},
        "gptq",
    ],
    ids=str,
)
def test_other_schemes_are_said(said):
    config = {**LLAMA, "quantization_config": said}
    assert packing_of(config) is None or "modules_to_not_convert" in said
    (line,) = hosim.load({"model": config, "sequence": 8}).meta["left_out"]
    named = said.get("quant_method", "unnamed") if isinstance(said, dict) else "unnamed"
    assert facts(line, named) == named


FP8 = {"weights": "fp8_e4m3", "activations": "fp8"}
ALL_ROWS = 2**40
"""A group that is as long as any row."""


def compressed(inputs=None, **weights):
    """compressed-tensors, with what products read beside the weights."""
    groups = {"a": {"targets": ["Linear"], "weights": weights, "input_activations": inputs}}
    return {"config_groups": groups}


SAID = {
    "gptq": [
        ({"bits": 4}, {"weights": "gptq4", "group": 128}),
        ({"bits": 8, "group_size": -1}, {"weights": "gptq8", "group": ALL_ROWS}),
        ({"bits": 4, "group_size": 1}, {"weights": "gptq4", "group": 1}),
        ({"bits": 4, "group_size": 0}, None),
        ({"bits": 4, "group_size": -2}, None),
        ({"bits": 4, "group_size": True}, None),
        ({"bits": 4, "dynamic": {"x": 1}}, None),
        ({"bits": 4, "ignore": "lm_head"}, None),
        ({"bits": 4, "ignore": ["lm_head", 1]}, None),
    ],
    "awq": [
        ({}, {"weights": "awq4", "group": 128}),
        ({"version": "GEMM", "group_size": 32}, {"weights": "awq4", "group": 32}),
        ({"bits": 8}, None),
        ({"zero_point": False}, None),
    ],
    "fp8": [
        ({}, FP8),
        ({"weight_block_size": [64, 64]}, FP8 | {"group": 64}),
        (
            {"weight_block_size": [1, 1], "activation_scheme": "static"},
            {"weights": "fp8_e4m3", "group": 1},
        ),
        ({"weight_block_size": [0, 0]}, None),
        ({"weight_block_size": [64]}, None),
        ({"weight_block_size": [64, 64, 64]}, None),
        ({"weight_block_size": ["64", "64"]}, None),
        ({"weight_block_size": 64}, None),
    ],
    "modelopt": [
        ({}, {}),
        ({"quant_algo": "W4A16_AWQ", "group_size": 64}, {"weights": "int4", "group": 64}),
        ({"quant_algo": "INT4_AWQ"}, {"weights": "int4", "group": 128}),
        ({"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}, FP8),
        ({"quant_algo": "FP8_PB_WO"}, {"weights": "fp8_e4m3", "group": 128}),
        ({"quant_algo": "FP8_PB_REAL"}, FP8 | {"group": 128}),
        ({"quant_algo": "W8A8_SQ_PER_CHANNEL"}, {"weights": "int8", "activations": "int8"}),
        ({"quant_algo": "W8A16"}, {"weights": "int8"}),
        ({"quant_algo": "MXFP4"}, {"weights": "mxfp4", "packed": "all"}),
        ({"quant_algo": "NVFP4_AWQ"}, {"weights": "nvfp4"}),
    ],
    "modelopt_fp4": [({"quant_algo": "NVFP4"}, {"weights": "nvfp4"})],
    "compressed-tensors": [
        (compressed({"num_bits": 8}, num_bits=8, type="float", strategy="tensor"), FP8),
        (
            compressed(num_bits=8, type="float", strategy="channel"),
            {"weights": "fp8_e4m3"},
        ),
        (
            compressed(num_bits=8, type="float", strategy="block", block_structure=[64, 64]),
            {"weights": "fp8_e4m3", "group": 64},
        ),
        (compressed(num_bits=8, type="float", strategy="group", group_size=64), None),
        (
            compressed({"num_bits": 8}, num_bits=8, type="int", symmetric=True, strategy="channel"),
            {"weights": "int8", "activations": "int8"},
        ),
        (
            compressed({"num_bits": 16}, num_bits=8, type="int", symmetric=True, strategy="tensor"),
            {"weights": "int8"},
        ),
        (compressed(num_bits=8, type="int", symmetric=True, strategy="group"), None),
        (compressed(num_bits=8, type="int", symmetric=False, strategy="channel"), None),
        (
            compressed(num_bits=4, type="int", symmetric=True, strategy="group", group_size=64),
            {"weights": "int4", "group": 64},
        ),
        (compressed(num_bits=4, type="int", symmetric=True, strategy="channel"), None),
        (compressed(num_bits=4, type="float", group_size=16), {"weights": "nvfp4"}),
        (compressed(num_bits=4, type="float", group_size=32), None),
        ({"config_groups": {}}, None),
        ({"config_groups": {"a": {"targets": ["Linear"]}}}, None),
        (
            {
                "config_groups": {
                    "a": {"targets": ["Embedding"], "weights": {"num_bits": 8, "type": "float"}}
                }
            },
            None,
        ),
        (
            {
                "config_groups": {
                    name: {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float"}}
                    for name in "ab"
                }
            },
            None,
        ),
    ],
    "bitsandbytes": [
        ({"load_in_4bit": True}, {"weights": "nf4"}),
        (
            {"_load_in_4bit": True, "bnb_4bit_use_double_quant": True},
            {"weights": "nf4_double"},
        ),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "int4"}, None),
        ({"load_in_4bit": False}, None),
    ],
    "fbgemm_fp8": [({}, FP8)],
    "mxfp4": [({}, {"weights": "mxfp4", "packed": "experts"})],
}
"""What each program's config.json says, and the packing by hand."""


@pytest.mark.parametrize("method", SAID)
def test_the_packing_of_each_method(method):
    for said, packing in SAID[method]:
        assert packing_of({"quantization_config": {"quant_method": method, **said}}) == packing, (
            said
        )
