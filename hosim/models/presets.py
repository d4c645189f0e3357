"""The sizes of published models, each from its public configuration."""

from __future__ import annotations

from collections.abc import Mapping

from hosim.models.config import Decoder

PRESETS: Mapping[str, Decoder] = {
    # config.json of meta-llama/Llama-3.1-8B
    "llama-3.1-8b": Decoder(
        hidden_size=4096,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        intermediate_size=14336,
        vocab_size=128256,
        head_dim=128,
    ),
    # config.json of Qwen/Qwen3-30B-A3B
    "qwen3-30b-a3b": Decoder(
        hidden_size=2048,
        num_hidden_layers=48,
        num_attention_heads=32,
        num_key_value_heads=4,
        intermediate_size=6144,
        vocab_size=151936,
        head_dim=128,
        qk_norm=True,
        num_experts=128,
        num_experts_per_tok=8,
        moe_intermediate_size=768,
    ),
    # config.json of deepseek-ai/DeepSeek-V3 (without its multi-token prediction layer, as transformers has it)
    "deepseek-v3": Decoder(
        hidden_size=7168,
        num_hidden_layers=61,
        num_attention_heads=128,
        num_key_value_heads=128,
        intermediate_size=18432,
        vocab_size=129280,
        head_dim=64,
        num_experts=256,
        num_experts_per_tok=8,
        moe_intermediate_size=2048,
        n_shared_experts=1,
        first_k_dense_replace=3,
        n_group=8,
        q_lora_rank=1536,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
    ),
}
