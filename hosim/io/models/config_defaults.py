"""The values that transformers takes for keys that a ``config.json`` does not have, where a builder
takes others: from the configuration classes of transformers 5.15.
"""

from collections.abc import Mapping
from typing import Any

_BY_KEY: Mapping[str, tuple[tuple[Any, str], ...]] = {
    "num_key_value_heads": (
        (
            8,
            "mistral mixtral gpt_oss qwen2_vl_text qwen2_5_vl_text iquestcoder "
            "emu3_text_model glm4_moe solar_open minimax_m2 phimoe seed_oss llama4_text "
            "ministral ministral3 cwm exaone hy_v3 bamba falcon_h1 nemotron_h jamba lfm2 "
            "lfm2_moe minimax laguna",
        ),
        (
            4,
            "qwen3_moe gemma2 qwen2_5_omni_text qwen3_omni_moe_text sarvam_moe smollm3 "
            "ernie4_5_moe granite_swa vaultgemma mellum qwen3_5_text flint kolibri1 "
            "lara_mini lfm3 gemma4_text gemma4_unified_text",
        ),
        (
            2,
            "starcoder2 internlm3 glm glm4 ernie4_5 qwen3_next qwen3_5_moe_text gemma3n_text",
        ),
        (5, "bitnet"),
    ),
    "sliding_window": (
        (
            4096,
            "mistral gemma2 gemma3_text cohere2 exaone4 exaone_moe ministral vaultgemma "
            "cohere2_moe",
        ),
        (128, "gpt_oss granite_swa granitemoe_swa"),
        (8192, "cwm"),
        (513, "flint kolibri1"),
        (1024, "gemma4_unified_text"),
    ),
    "n_shared_experts": ((1, "deepseek_v3 sarvam_mla"),),
    "q_lora_rank": (
        (1536, "deepseek_v3 deepseek_v32 youtu"),
        (768, "glm4_moe_lite minicpm3"),
        (2048, "glm_moe_dsa"),
    ),
    "final_logit_softcapping": (
        (30.0, "gemma2 vaultgemma"),
        (15.0, "nanochat"),
    ),
    "n_group": (
        (1, "sarvam_mla"),
        (8, "deepseek_v32"),
    ),
    "first_k_dense_replace": ((1, "sarvam_mla"),),
    "tie_word_embeddings": ((True, "granite_swa mt5"),),
    "moe_intermediate_size": ((1408, "qwen3_vl_moe_text"),),
    "num_experts_per_tok": (
        (4, "qwen3_vl_moe_text"),
        (6, "afmoe"),
    ),
    "num_experts": ((60, "qwen3_vl_moe_text"),),
    "attention_dropout": ((0.1, "emu3_text_model seed_oss"),),
    "use_qk_norm": ((True, "sarvam_moe"),),
    "partial_rotary_factor": ((1.0, "sarvam_moe"),),
    "head_dim": (
        (128, "minimax_m2 mellum"),
        (256, "qwen3_next qwen3_5_moe_text"),
    ),
    "use_post_norm": ((True, "hyperclovax"),),
    "num_shared_experts": ((2, "afmoe"),),
    "moe_shared_expert_intermediate_size": ((7688, "nemotron_h"),),
    "id2label": (({"0": "", "1": ""}, "vit"),),
}
"""By key its values, each with the types that it is for."""


def with_defaults(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """A configuration with the keys that it leaves out.

    >>> with_defaults({"model_type": "bitnet"})
    {'num_key_value_heads': 5, 'model_type': 'bitnet'}
    """
    kind = config.get("model_type")
    taken = {
        key: value
        for key, values in _BY_KEY.items()
        for value, kinds in values
        if kind in kinds.split()
    }
    return {**taken, **config}
