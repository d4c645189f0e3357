"""The sizes of published models, each from its public configuration."""

from __future__ import annotations

from collections.abc import Mapping

from hosim.models.bert import Bert
from hosim.models.config import Decoder, Layered
from hosim.models.gpt2 import Gpt2
from hosim.models.t5 import T5
from hosim.models.vision import Dit, Vit

PRESETS: Mapping[str, Layered] = {
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
    # config.json of openai-community/gpt2 and gpt2-xl
    "gpt2": Gpt2(n_embd=768, n_layer=12, n_head=12),
    "gpt2-xl": Gpt2(n_embd=1600, n_layer=48, n_head=25),
    # config.json of google-bert/bert-base-uncased and bert-large-uncased
    "bert-base": Bert(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072),
    "bert-large": Bert(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096),
    # config.json of google/vit-large-patch16-224
    "vit-l-16": Vit(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096),
    # config.json of google-t5/t5-large
    "t5-large": T5(d_model=1024, num_layers=24, num_heads=16, d_kv=64, d_ff=4096),
    # DiT_XL_2 of facebookresearch/DiT, models.py
    "dit-xl-2": Dit(hidden_size=1152, num_hidden_layers=28, num_attention_heads=16),
}
