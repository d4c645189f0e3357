"""What the builders give, beside what importing the traced model of transformers gives."""

import json
from functools import partial

import pytest
from quick_cases import one_in
from wholes import wholes

from hosim.analysis import static_peak
from hosim.io import load_any, load_workload
from hosim.io.models import build

TRACED = {"phase": "prefill", "logits": "all", "cache": False}
"""A traced prefill: no cache, the logits of every position."""

REDUCED = {
    "qwen3-30b-a3b": (
        "Qwen3MoeForCausalLM",
        {
            "hidden_size": 2048,
            "num_hidden_layers": 2,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "intermediate_size": 6144,
            "moe_intermediate_size": 768,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "norm_topk_prob": True,
            "vocab_size": 151936,
            "use_cache": False,
        },
        {"layers": 2, "attention": "masked"},
    ),
    # the defaults of transformers' config class are DeepSeek-V3's sizes; heads of unequal width
    # have no fused kernel on the traced path
    "deepseek-v3": (
        "DeepseekV3ForCausalLM",
        {"num_hidden_layers": 2, "first_k_dense_replace": 1, "use_cache": False},
        {"layers": 2, "attention": "math", "config": {"first_k_dense_replace": 1}},
    ),
}

IDS = {"shape": [2, 512], "dtype": "int64"}
OTHERS = {
    "gpt2": (
        "GPT2LMHeadModel",
        {"n_layer": 2, "use_cache": False},
        {"input_ids": IDS},
        {"sequence": 512, **TRACED},
    ),
    "bert-base": ("BertForMaskedLM", {"num_hidden_layers": 2}, {"input_ids": IDS}, {}),
    "vit-l-16": (
        "ViTForImageClassification",
        {
            "hidden_size": 1024,
            "num_attention_heads": 16,
            "intermediate_size": 4096,
            "num_hidden_layers": 2,
        },
        {"pixel_values": {"shape": [2, 3, 224, 224], "dtype": "bf16"}},
        {"config": {"num_labels": 2}},
    ),
    "t5-large": (
        "T5ForConditionalGeneration",
        {
            "d_model": 1024,
            "num_layers": 2,
            "num_decoder_layers": 2,
            "num_heads": 16,
            "d_kv": 64,
            "d_ff": 4096,
            "use_cache": False,
        },
        {"input_ids": IDS, "decoder_input_ids": IDS},
        {},
    ),
}


def figures(graph):
    parameters = wholes(graph, lambda tensor: tensor.kind in ("parameter", "expert"))
    return sum(op.flops for op in graph.ops), static_peak(graph), parameters


def compare(compared, model, built, traced, wide=lambda name: False):
    """``wide``: whether the traced model has a parameter in fp32 that is in bf16 in the built
    one.
    """
    (flops, peak, parameters), (true_flops, true_peak, true_parameters) = (
        figures(built),
        figures(traced),
    )
    true_parameters = {
        name: size // 2 if wide(name) else size for name, size in true_parameters.items()
    }
    compared("traced model", f"built {model}", "FLOP", true_flops, flops, 0.01)
    compared("traced model", f"built {model}", "peak bytes", true_peak.bytes, peak.bytes, 0.03)
    compared(
        "traced model",
        f"built {model}",
        "bytes of parameters",
        sum(true_parameters.values()),
        sum(parameters.values()),
    )
    assert parameters == true_parameters  # whose names are the model's
    assert set(peak.breakdown) - {"buffer"} == set(true_peak.breakdown) - {"buffer"}


def traced(folder, name, config, inputs):
    model = {"class": name, "config": config, "dtype": "bf16"}
    spec = {
        "format": "hosim.spec/1",
        "name": "traced",
        "importer": "torch_export",
        "model": model,
        "inputs": inputs,
    }
    (folder / "traced.json").write_text(json.dumps(spec))
    return load_any(folder / "traced.json")


def test_llama(root, compared):
    built = build(
        "built", {"model": "llama-3.1-8b", "sequence": 4096, "attention": "masked", **TRACED}
    )
    compare(
        compared,
        "llama-3.1-8b",
        built,
        load_workload(root / "workloads/llama-3.1-8b-prefill-4k.json.gz"),
    )


@pytest.mark.parametrize("model", one_in(2, sorted(REDUCED)))
def test_mixtures_of_experts(model, tmp_path, compared):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from installed_transformers import kept_wide

    name, config, parameters = REDUCED[model]
    sequence = 2048
    built = build("built", {"model": model, "sequence": sequence, **TRACED, **parameters})
    true = traced(tmp_path, name, config, {"input_ids": {"shape": [1, sequence], "dtype": "int64"}})
    compare(compared, model, built, true, partial(kept_wide, name))


@pytest.mark.parametrize("model", one_in(2, sorted(OTHERS)))
def test_other_models(model, tmp_path, compared):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    name, config, inputs, parameters = OTHERS[model]
    compare(
        compared,
        model,
        build("built", {"model": model, "batch": 2, "layers": 2, **parameters}),
        traced(tmp_path, name, config, inputs),
    )


def test_published_numbers_of_parameters(compared):
    sizes = {
        "llama-3.1-8b": 8_030_261_248,
        "qwen3-30b-a3b": 30_532_122_624,
        "gpt2": 124_439_808,
        "gpt2-xl": 1_557_611_200,
        "dit-xl-2": 675_129_632 - 256 * 1152,  # published with its fixed positions, a buffer here
    }
    for model, published in sizes.items():
        graph = build(model, {"model": model, "dtype": "bf16"})
        parameters = (
            sum(t.size_bytes for t in graph.tensors if t.kind in ("parameter", "expert")) // 2
        )
        compared("publication", f"built {model}", "parameters", published, parameters)
