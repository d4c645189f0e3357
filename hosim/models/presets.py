"""The sizes of published models, each from its public configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hosim.models.bert import Bert
from hosim.models.config import Decoder, Layered
from hosim.models.gpt2 import Gpt2
from hosim.models.t5 import T5
from hosim.models.vision import Dit, Vit


def _gated(hidden: int, layers: int, heads: int, kv_heads: int, intermediate: int, vocab: int, **more: Any) -> Decoder:
    """A decoder whose heads are together as wide as its hidden state, unless ``more`` has ``head_dim``."""
    return Decoder(hidden, layers, heads, kv_heads, intermediate, vocab, **{"head_dim": hidden // heads, **more})


def _experts(count: int, top: int, width: int, **more: int) -> dict[str, int]:
    return {"num_experts": count, "num_experts_per_tok": top, "moe_intermediate_size": width, **more}


def _latent(q_rank: int) -> dict[str, int]:
    widths = {"head_dim": 64, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    return {"q_lora_rank": q_rank, "kv_lora_rank": 512, **widths}


PRESETS: Mapping[str, Layered] = {
    # config.json of meta-llama: Llama-3.1-8B, -70B (as Llama-3.3-70B) and -405B; Llama-3.2-1B and -3B; Llama-2-7b, -13b and -70b
    "llama-3.1-8b": _gated(4096, 32, 32, 8, 14336, 128256),
    "llama-3.1-70b": _gated(8192, 80, 64, 8, 28672, 128256),
    "llama-3.1-405b": _gated(16384, 126, 128, 8, 53248, 128256),
    "llama-3.2-1b": _gated(2048, 16, 32, 8, 8192, 128256, tie_word_embeddings=True),
    "llama-3.2-3b": _gated(3072, 28, 24, 8, 8192, 128256, tie_word_embeddings=True),
    "llama-2-7b": _gated(4096, 32, 32, 32, 11008, 32000),
    "llama-2-13b": _gated(5120, 40, 40, 40, 13824, 32000),
    "llama-2-70b": _gated(8192, 80, 64, 8, 28672, 32000),
    # config.json of mistralai/Mistral-7B-v0.3, Mixtral-8x7B-v0.1 and Mixtral-8x22B-v0.1
    "mistral-7b": _gated(4096, 32, 32, 8, 14336, 32768),
    "mixtral-8x7b": _gated(4096, 32, 32, 8, 14336, 32000, **_experts(8, 2, 14336)),
    "mixtral-8x22b": _gated(6144, 56, 48, 8, 16384, 32000, **_experts(8, 2, 16384)),
    # config.json of Qwen/Qwen2.5-0.5B, -7B and -72B
    "qwen2.5-0.5b": _gated(896, 24, 14, 2, 4864, 151936, qkv_bias=True, tie_word_embeddings=True),
    "qwen2.5-7b": _gated(3584, 28, 28, 4, 18944, 152064, qkv_bias=True),
    "qwen2.5-72b": _gated(8192, 80, 64, 8, 29568, 152064, qkv_bias=True),
    # config.json of Qwen/Qwen3-0.6B, -8B, -32B, -30B-A3B and -235B-A22B
    "qwen3-0.6b": _gated(1024, 28, 16, 8, 3072, 151936, head_dim=128, qk_norm=True, tie_word_embeddings=True),
    "qwen3-8b": _gated(4096, 36, 32, 8, 12288, 151936, qk_norm=True),
    "qwen3-32b": _gated(5120, 64, 64, 8, 25600, 151936, head_dim=128, qk_norm=True),
    "qwen3-30b-a3b": _gated(2048, 48, 32, 4, 6144, 151936, head_dim=128, qk_norm=True, **_experts(128, 8, 768)),
    "qwen3-235b-a22b": _gated(4096, 94, 64, 4, 12288, 151936, head_dim=128, qk_norm=True, **_experts(128, 8, 1536)),
    # config.json of deepseek-ai: DeepSeek-V2-Lite, -V2 and -V3 (without the layer that predicts more tokens, as transformers has it)
    "deepseek-v2-lite": _gated(
        2048, 27, 16, 16, 10944, 102400, **_latent(0), **_experts(64, 6, 1408, n_shared_experts=2, first_k_dense_replace=1)
    ),
    "deepseek-v2": _gated(
        5120, 60, 128, 128, 12288, 102400, **_latent(1536), **_experts(160, 6, 1536, n_shared_experts=2, first_k_dense_replace=1)
    ),
    "deepseek-v3": _gated(
        7168, 61, 128, 128, 18432, 129280, n_group=8, **_latent(1536), **_experts(256, 8, 2048, n_shared_experts=1, first_k_dense_replace=3)
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
