"""Small configs of every type that a builder knows, and the models that transformers makes of
them.
"""

import pytest

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


DEEPSEEK = {
    **without("head_dim"),
    **EXPERTS,
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
}
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
    "phi3 turning less": {
        **HEADLESS,
        "partial_rotary_factor": 0.75,
        "tie_word_embeddings": True,
        "pad_token_id": 0,
        "eos_token_id": 0,
    },
    "opt": {**FALCON, "ffn_dim": 160},
    "bloom": {"hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": 128},
    "falcon": FALCON,
    "falcon in groups": {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2},
    "falcon in groups with one norm": {
        **FALCON,
        "new_decoder_architecture": True,
        "num_kv_heads": 2,
        "num_ln_in_parallel_attn": 1,
    },
    "falcon in series": {
        **FALCON,
        "alibi": True,
        "bias": True,
        "parallel_attn": False,
        "multi_query": False,
    },
    "mpt": {"d_model": 64, "n_heads": 4, "n_layers": 2, "vocab_size": 128},
    "gpt2": {
        "n_embd": 64,
        "n_layer": 2,
        "n_head": 4,
        "vocab_size": 128,
        "bos_token_id": 0,
        "eos_token_id": 0,
    },
    "gpt_oss": {**SMALL, "num_local_experts": 4, "num_experts_per_tok": 2},
    "gpt_neox": EQUAL,
    "gptj": {
        "n_embd": 64,
        "n_layer": 2,
        "n_head": 4,
        "rotary_dim": 8,
        "vocab_size": 128,
        "bos_token_id": 0,
        "eos_token_id": 0,
    },
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


def model_of(name):
    """The type, the config, the model on the CPU (masks and experts look at the data), and inputs
    of two rows of 12 tokens.
    """
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    kind = name.partition(" ")[0]
    config = config_of(kind, MODELS[name])
    cls = (
        getattr(transformers, CLASSES[kind])._from_config
        if kind in CLASSES
        else transformers.AutoModelForCausalLM.from_config
    )
    mixed = {"experts_implementation": "eager"} if kind in MIXED else {}
    model = cls(config, attn_implementation="eager", **mixed).eval()
    ids = torch.zeros(2, 12, dtype=torch.int64)
    inputs = {
        "bert": {"input_ids": ids},
        **{kind: {"input_ids": ids, "decoder_input_ids": ids} for kind in ("t5", "mt5")},
        "whisper": {"input_features": torch.zeros(2, 16, 40), "decoder_input_ids": ids},
        "vit": {"pixel_values": torch.zeros(2, 3, 32, 32)},
    }
    return kind, config, model, inputs.get(kind, {"input_ids": ids, "use_cache": False})


def run_of(kind):
    """The parameters of a builder that are these inputs."""
    return {"batch": 2} if kind == "vit" else {"batch": 2, "sequence": 12}
