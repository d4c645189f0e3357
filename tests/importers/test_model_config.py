"""A ``config.json`` gives the model that transformers makes of it, or says which key no builder knows."""

import json

import pytest
from typer.testing import CliRunner

import hosim
from hosim.cli.main import app
from hosim.errors import InputError
from hosim.models.config_json import sizes_of
from hosim.models.presets import PRESETS

SMALL = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 160,
    "vocab_size": 128,
}
EXPERTS = {"moe_intermediate_size": 48, "num_experts_per_tok": 2}


def without(*names):
    return {key: value for key, value in SMALL.items() if key not in names}


DEEPSEEK = {**without("head_dim"), **EXPERTS, "num_key_value_heads": 4, "n_routed_experts": 8, "kv_lora_rank": 16, "qk_nope_head_dim": 16}
DEEPSEEK |= {"qk_rope_head_dim": 8, "v_head_dim": 16, "first_k_dense_replace": 1}
HEADLESS, EQUAL = without("head_dim"), without("head_dim", "num_key_value_heads")
FALCON = without("head_dim", "num_key_value_heads", "intermediate_size")
T5 = {"d_model": 64, "num_layers": 2, "num_heads": 4, "d_ff": 160, "vocab_size": 128}
WHISPER = {
    **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"), 0),
    "d_model": 64,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 160,
    "vocab_size": 128,
    "num_mel_bins": 16,
    "decoder_layers": 1,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 96,
    "max_source_positions": 20,
    "max_target_positions": 24,
}
MODELS = {
    "llama": SMALL,
    "llama with biases": {**SMALL, "attention_bias": True, "mlp_bias": True, "hidden_act": "relu"},
    "mistral": SMALL,
    "mixtral": {**SMALL, "num_local_experts": 4},
    "qwen2": HEADLESS,
    "qwen3": SMALL,
    "qwen3_moe": {**SMALL, **EXPERTS, "num_experts": 8},
    "deepseek_v2": {**DEEPSEEK, "q_lora_rank": None, "n_shared_experts": 2},
    "deepseek_v3": {**DEEPSEEK, "q_lora_rank": 24, "n_group": 2, "topk_group": 1},
    "gemma": SMALL,
    "gemma2": SMALL,
    "gemma3_text": {**SMALL, "sliding_window_pattern": 2},
    "phi": HEADLESS,
    "phi3": {**HEADLESS, "pad_token_id": 0, "eos_token_id": 0},
    "phi3 turning less": {**HEADLESS, "partial_rotary_factor": 0.75, "tie_word_embeddings": True, "pad_token_id": 0, "eos_token_id": 0},
    "opt": {**FALCON, "ffn_dim": 160},
    "bloom": {"hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": 128},
    "falcon": FALCON,
    "falcon in groups": {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2},
    "falcon in groups with one norm": {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
    "falcon in series": {**FALCON, "alibi": True, "bias": True, "parallel_attn": False, "multi_query": False},
    "mpt": {"d_model": 64, "n_heads": 4, "n_layers": 2, "vocab_size": 128},
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 128, "bos_token_id": 0, "eos_token_id": 0},
    "gpt_oss": {**SMALL, "num_local_experts": 4, "num_experts_per_tok": 2},
    "gpt_neox": EQUAL,
    "gptj": {"n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 8, "vocab_size": 128, "bos_token_id": 0, "eos_token_id": 0},
    "starcoder2": {**HEADLESS, "bos_token_id": 0, "eos_token_id": 0},
    "stablelm": {**HEADLESS, "use_qkv_bias": True},
    "cohere": {**HEADLESS, "eos_token_id": 0},
    "cohere2": {**SMALL, "eos_token_id": 0},
    "granite": HEADLESS,
    "bert": EQUAL,
    "t5": T5,
    "t5 with gates": {**T5, "feed_forward_proj": "gated-gelu", "num_decoder_layers": 1},
    "mt5": {**T5, "tie_word_embeddings": True},
    "whisper": WHISPER,
    "vit": {**EQUAL, "image_size": 32, "patch_size": 8, "num_labels": 5},
}
MIXED = ("mixtral", "qwen3_moe", "deepseek_v2", "deepseek_v3", "gpt_oss")
CLASSES = {
    "bert": "BertForMaskedLM",
    "t5": "T5ForConditionalGeneration",
    "mt5": "MT5ForConditionalGeneration",
    "whisper": "WhisperForConditionalGeneration",
    "vit": "ViTForImageClassification",
}


def config_of(kind, sizes):
    transformers = pytest.importorskip("transformers")
    return transformers.AutoConfig.for_model(kind, **sizes)


@pytest.mark.parametrize("name", MODELS)
def test_parameters_and_work_are_those_of_transformers(name):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from torch.utils.flop_counter import FlopCounterMode

    kind = name.partition(" ")[0]
    config = config_of(kind, MODELS[name])
    cls = getattr(transformers, CLASSES[kind])._from_config if kind in CLASSES else transformers.AutoModelForCausalLM.from_config
    mixed = {"experts_implementation": "eager"} if kind in MIXED else {}
    model = cls(config, attn_implementation="eager", **mixed).eval()  # on the CPU: masks and experts look at the data
    ids = {"input_ids": torch.zeros(2, 12, dtype=torch.int64)}
    halves = {**ids, "decoder_input_ids": ids["input_ids"]}
    inputs = {
        "bert": ids,
        **dict.fromkeys(("t5", "mt5"), halves),
        "whisper": {"input_features": torch.zeros(2, 16, 40), "decoder_input_ids": ids["input_ids"]},
        "vit": {"pixel_values": torch.zeros(2, 3, 32, 32)},
    }
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(**inputs.get(kind, {**ids, "use_cache": False}))
    run = {} if kind == "vit" else {"sequence": 12} if kind in CLASSES else {"sequence": 12, "logits": "all"}
    graph = hosim.load({"model": config.to_dict(), "batch": 2, **run})
    # parameters of no op, such as a pooling layer that is not used, are not in a graph; tied ones are counted once by both
    ours = {t.name: t.size_bytes // 2 for t in graph.tensors if t.kind in ("parameter", "expert")}
    theirs = {name: p.numel() for name, p in model.named_parameters()}
    assert sorted(ours.values()) == sorted(theirs.values())
    if kind != "mixtral" and kind != "gpt_oss":
        assert set(ours) == set(theirs)
    assert sum(op.flops for op in graph.ops) == counter.get_total_flops()
    if kind not in CLASSES and not kind.startswith("deepseek"):
        merged = hosim.load({"model": config.to_dict(), "batch": 2, "sequence": 12, "logits": "all", "merged": True})
        assert sum(t.size_bytes for t in merged.tensors if t.kind in ("parameter", "expert")) == 2 * sum(theirs.values())
        assert sum(op.flops for op in merged.ops) == counter.get_total_flops()


LARGE = {"num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
SIZES = {
    "llama-3.1-8b": ("llama", {"vocab_size": 128256, "intermediate_size": 14336, "num_key_value_heads": 8}),
    "qwen3-30b-a3b": ("qwen3_moe", {"num_hidden_layers": 48, "num_key_value_heads": 4, "head_dim": 128}),
    "deepseek-v3": ("deepseek_v3", {"num_key_value_heads": 128}),
    "gpt2-xl": ("gpt2", {"n_embd": 1600, "n_layer": 48, "n_head": 25}),
    "bert-large": ("bert", {"hidden_size": 1024, **LARGE}),
    "vit-l-16": (
        "vit",
        {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096, "num_labels": 1000},
    ),
    "t5-large": ("t5", {"d_model": 1024, "num_layers": 24, "num_heads": 16, "d_ff": 4096}),
}


@pytest.mark.parametrize("name", SIZES)
def test_presets_are_what_configs_say(name):
    kind, sizes = SIZES[name]
    assert sizes_of(config_of(kind, sizes).to_dict())[0] == PRESETS[name]


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ({"model_type": "rwkv"}, "model.model_type: expected a model_type that a builder knows, one of llama, mistral, .*; got 'rwkv'"),
        ({"model_type": ["llama"]}, r"model.model_type: expected .*; got \['llama'\]"),
        ({"model_type": "llama", "hidden_size": 8}, "model.num_attention_heads: expected a number, the config has none"),
        ({"model_type": "llama", **SMALL, "vocab_size": "many"}, "model.vocab_size: expected a number from 1 to 2.40, got 'many'"),
        ({"model_type": "phi", **SMALL, "qk_layernorm": True}, "model.qk_layernorm: the builder knows False only, got True"),
        ({"model_type": "llama", **SMALL, "hidden_act": "relu6"}, "model.hidden_act: the builder knows silu, .*, relu only, got 'relu6'"),
        ({"model_type": "mpt", "attn_config": {"alibi": False}}, "model.attn_config.alibi: the builder knows True only, got False"),
        ({"model_type": "mpt", "attn_config": 3}, "model.attn_config: expected a mapping, got 3"),
        (
            {"model_type": "gemma2", **SMALL, "layer_types": ["full_attention", "sliding_attention"]},
            "model.layer_types: the builder knows layers of a sliding window with each n-th layer of full attention only",
        ),
        ({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}, "model.text_config.hidden_size: expected a number, the"),
        ({"model_type": "llama", **SMALL, "tie_word_embeddings": 3}, "model.tie_word_embeddings: expected true or false, got 3"),
        ({"model_type": "bert", **SMALL, "hidden_dropout_prob": 2}, "model.hidden_dropout_prob: expected a number from 0 to 1, got 2"),
        ({"model_type": "llama", **SMALL, "num_attention_heads": 0}, "model.num_attention_heads: expected a number from 1 to 2.40, got 0"),
    ],
)
def test_what_no_builder_knows_is_refused(config, error):
    with pytest.raises(InputError, match=error):
        hosim.load(config)


def test_a_sliding_window_bounds_what_is_read_and_kept():
    config = {"model_type": "mistral", **SMALL, "max_position_embeddings": 4096, "sliding_window": 1024}

    def attended(**run):
        graph = hosim.load({"model": config, "layers": 1, **run})
        (op,) = [op for op in graph.ops if op.kind == "attention"]
        return op.flops, sum(t.size_bytes for t in graph.tensors if t.kind == "kv_cache"), op.sizes

    # 4 heads of width 16 in two products; two tensors of 2 heads of 16 in 2 bytes
    for merged in (False, True):
        prompt = attended(sequence=3000, merged=merged)
        assert prompt == (4 * 4 * 16 * 3000 * 1024, 2 * 2 * 16 * 2 * 1024, (1, 3000, 0, 4, 2, 16, 1024))
        token = attended(phase="decode", context=3000, merged=merged)
        assert token == (4 * 4 * 16 * 1024, 2 * 2 * 16 * 2 * 1024, (1, 1024, 4, 2, 16))
    config["max_position_embeddings"] = 1024  # no position is beyond the window
    assert attended(sequence=800)[2][-1] == 2**40


def test_each_nth_layer_sees_all_keys():
    sizes = {**SMALL, "num_hidden_layers": 6, "sliding_window": 100, "sliding_window_pattern": 3}

    def caches(config, **run):
        graph = hosim.load({"model": config, "phase": "decode", "context": 3000, **run})
        return [t.size_bytes // (2 * 16 * 2) for t in graph.tensors if t.kind == "kv_cache"][::2]  # 2 heads of 16 in 2 bytes

    for merged in (False, True):
        assert caches({"model_type": "gemma3_text", **sizes}, merged=merged) == [100, 100, 3000, 100, 100, 3000]
    assert caches({"model_type": "gemma2", **sizes}) == [100, 3000] * 3
    assert caches({"model_type": "gemma2", **sizes, "layer_types": ["sliding_attention"] * 6}) == [100] * 6
    assert caches({"model_type": "gemma2", **sizes, "layer_types": ["full_attention"] * 6}) == [3000] * 6


def test_what_a_builder_leaves_out_is_said():
    def said(config):
        return hosim.load({"model": config, "sequence": 8}).meta.get("missing")

    assert said({"model_type": "llama", **SMALL}) is None
    quantised = {"model_type": "gpt_oss", **SMALL, "quantization_config": {"quant_method": "mxfp4"}}
    assert said(quantised) == ["the quantisation of the weights (mxfp4): all are in the dtype of the run"]
    assert said({"model_type": "gemma2", **SMALL, "attn_logit_softcapping": 50.0}) == [
        "the time of the bound on attention's scores (attn_logit_softcapping)"
    ]
    whole = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", **SMALL}, "vision_config": {}}
    assert said(whole) == ["all of gemma3 but its text model"]


def test_a_file_is_a_workload(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama", **SMALL}))
    graph = hosim.load(path)
    assert graph.name == "llama"
    assert graph.ops == hosim.load({"model": str(path)}).ops
    assert graph.meta["builder"] == {"model": {"model_type": "llama", **SMALL}}  # and nothing that is not read
    assert hosim.load({"model": str(path), "phase": "train"}).name == "llama-train"
    shown = CliRunner().invoke(app, ["workload", "show", str(path)])
    assert shown.exit_code == 0, shown.output
    path.write_text(json.dumps({"model_type": "llama", **SMALL, "vocab_size": None}))
    shown = CliRunner().invoke(app, ["workload", "show", str(path)])
    assert shown.exit_code == 2
    assert "config.json: vocab_size: expected a number, the config has none" in " ".join(shown.output.split())
