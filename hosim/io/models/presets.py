"""The sizes of published models, each from its public configuration."""

from collections.abc import Mapping
from typing import Any

from hosim.io.models.bert import Bert
from hosim.io.models.config import Decoder, Gpt2, Layered
from hosim.io.models.config_json import READERS
from hosim.io.models.config_keys import Keys
from hosim.io.models.t5 import T5
from hosim.io.models.vision import Dit, Vit


def _gated(
    hidden: int, layers: int, heads: int, kv_heads: int, intermediate: int, vocab: int, **more: Any
) -> Decoder:
    """A decoder whose heads are together as wide as its hidden state, unless ``more`` has
    ``head_dim``.
    """
    return Decoder(
        hidden,
        layers,
        heads,
        kv_heads,
        intermediate,
        vocab,
        **{"head_dim": hidden // heads, **more},
    )


def _experts(count: int, top: int, width: int, **more: int) -> dict[str, int]:
    return {
        "num_experts": count,
        "num_experts_per_tok": top,
        "moe_intermediate_size": width,
        **more,
    }


def _latent(q_rank: int) -> dict[str, int]:
    widths = {"head_dim": 64, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    return {"q_lora_rank": q_rank, "kv_lora_rank": 512, **widths}


def _read(
    kind: str,
    hidden: int,
    layers: int,
    heads: int,
    kv_heads: int,
    intermediate: int,
    vocab: int,
    **more: Any,
) -> Layered:
    """Return the sizes for a ``config.json`` of the type ``kind`` with these keys."""
    sizes = {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
    }
    return READERS[kind](
        Keys({**sizes, "intermediate_size": intermediate, "vocab_size": vocab, **more})
    )


def _opt(hidden: int, layers: int, heads: int) -> Layered:
    return READERS["opt"](
        Keys(
            {
                "hidden_size": hidden,
                "num_hidden_layers": layers,
                "num_attention_heads": heads,
                "ffn_dim": 4 * hidden,
            }
        )
    )


def _bloom(hidden: int, layers: int, heads: int) -> Layered:
    return READERS["bloom"](Keys({"hidden_size": hidden, "n_layer": layers, "n_head": heads}))


def _falcon(hidden: int, layers: int, heads: int, **more: Any) -> Layered:
    sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads}
    return READERS["falcon"](Keys({**sizes, **more}))


def _mpt(hidden: int, layers: int, heads: int) -> Layered:
    return READERS["mpt"](
        Keys({"d_model": hidden, "n_layers": layers, "n_heads": heads, "vocab_size": 50432})
    )


def _gpt_oss(layers: int, experts: int) -> Layered:
    return _read(
        "gpt_oss", 2880, layers, 64, 8, 2880, 201088, num_local_experts=experts, sliding_window=128
    )


def _whisper(width: int, layers: int, heads: int, **more: int) -> Layered:
    halves = {
        f"{half}_{part}": n
        for half in ("encoder", "decoder")
        for part, n in (("layers", layers), ("attention_heads", heads))
    }
    sizes = {"d_model": width, "encoder_ffn_dim": 4 * width, "decoder_ffn_dim": 4 * width}
    return READERS["whisper"](Keys({**sizes, **halves, **more}))


_UNTIED: Mapping[str, bool] = {"gated": True, "tie_word_embeddings": False}
_GEMMA_2 = {"sliding_window": 4096, "final_logit_softcapping": 30.0}

PRESETS: Mapping[str, Layered] = {
    # config.json of meta-llama: Llama-3.1-8B, -70B and -405B; Llama-3.3-70B; Llama-3.2-1B and -3B;
    # Llama-2-7b, -13b and -70b
    "llama-3.1-8b": _gated(4096, 32, 32, 8, 14336, 128256),
    "llama-3.1-70b": _gated(8192, 80, 64, 8, 28672, 128256),
    "llama-3.1-405b": _gated(16384, 126, 128, 8, 53248, 128256),
    "llama-3.3-70b": _gated(8192, 80, 64, 8, 28672, 128256),
    "llama-3.2-1b": _gated(2048, 16, 32, 8, 8192, 128256, tie_word_embeddings=True),
    "llama-3.2-3b": _gated(3072, 28, 24, 8, 8192, 128256, tie_word_embeddings=True),
    "llama-2-7b": _gated(4096, 32, 32, 32, 11008, 32000),
    "llama-2-13b": _gated(5120, 40, 40, 40, 13824, 32000),
    "llama-2-70b": _gated(8192, 80, 64, 8, 28672, 32000),
    # config.json of mistralai/Mistral-7B-v0.3, Mistral-Nemo-Base-2407, Mistral-Small-24B-Base-2501,
    # Mistral-Large-Instruct-2407, Mixtral-8x7B-v0.1 and Mixtral-8x22B-v0.1
    "mistral-7b": _gated(4096, 32, 32, 8, 14336, 32768),
    "mistral-nemo-12b": _gated(5120, 40, 32, 8, 14336, 131072, head_dim=128),
    "mistral-small-24b": _gated(5120, 40, 32, 8, 32768, 131072, head_dim=128),
    "mistral-large-123b": _gated(12288, 88, 96, 8, 28672, 32768),
    "mixtral-8x7b": _gated(
        4096, 32, 32, 8, 14336, 32000, **_experts(8, 2, 14336), router_fp32=True
    ),
    "mixtral-8x22b": _gated(
        6144, 56, 48, 8, 16384, 32000, **_experts(8, 2, 16384), router_fp32=True
    ),
    # config.json of Qwen/Qwen2.5-0.5B, -1.5B, -3B, -7B, -14B, -32B and -72B
    "qwen2.5-0.5b": _gated(896, 24, 14, 2, 4864, 151936, qkv_bias=True, tie_word_embeddings=True),
    "qwen2.5-1.5b": _gated(1536, 28, 12, 2, 8960, 151936, qkv_bias=True, tie_word_embeddings=True),
    "qwen2.5-3b": _gated(2048, 36, 16, 2, 11008, 151936, qkv_bias=True, tie_word_embeddings=True),
    "qwen2.5-7b": _gated(3584, 28, 28, 4, 18944, 152064, qkv_bias=True),
    "qwen2.5-14b": _gated(5120, 48, 40, 8, 13824, 152064, qkv_bias=True),
    "qwen2.5-32b": _gated(5120, 64, 40, 8, 27648, 152064, qkv_bias=True),
    "qwen2.5-72b": _gated(8192, 80, 64, 8, 29568, 152064, qkv_bias=True),
    # config.json of Qwen/Qwen3-0.6B, -1.7B, -4B, -8B, -14B, -32B, -30B-A3B and -235B-A22B
    "qwen3-0.6b": _gated(
        1024, 28, 16, 8, 3072, 151936, head_dim=128, qk_norm=True, tie_word_embeddings=True
    ),
    "qwen3-1.7b": _gated(2048, 28, 16, 8, 6144, 151936, qk_norm=True, tie_word_embeddings=True),
    "qwen3-4b": _gated(
        2560, 36, 32, 8, 9728, 151936, head_dim=128, qk_norm=True, tie_word_embeddings=True
    ),
    "qwen3-8b": _gated(4096, 36, 32, 8, 12288, 151936, qk_norm=True),
    "qwen3-14b": _gated(5120, 40, 40, 8, 17408, 151936, qk_norm=True),
    "qwen3-32b": _gated(5120, 64, 64, 8, 25600, 151936, head_dim=128, qk_norm=True),
    "qwen3-30b-a3b": _gated(
        2048, 48, 32, 4, 6144, 151936, head_dim=128, qk_norm=True, **_experts(128, 8, 768)
    ),
    "qwen3-235b-a22b": _gated(
        4096, 94, 64, 4, 12288, 151936, head_dim=128, qk_norm=True, **_experts(128, 8, 1536)
    ),
    # config.json of deepseek-ai: DeepSeek-V2-Lite, -V2 and -V3 (without the layer that predicts
    # more tokens, as transformers has it)
    "deepseek-v2-lite": _gated(
        2048,
        27,
        16,
        16,
        10944,
        102400,
        **_latent(0),
        **_experts(64, 6, 1408, n_shared_experts=2, first_k_dense_replace=1),
    ),
    "deepseek-v2": _gated(
        5120,
        60,
        128,
        128,
        12288,
        102400,
        **_latent(1536),
        **_experts(160, 6, 1536, n_shared_experts=2, first_k_dense_replace=1),
    ),
    "deepseek-v3": _gated(
        7168,
        61,
        128,
        128,
        18432,
        129280,
        n_group=8,
        **_latent(1536),
        **_experts(256, 8, 2048, n_shared_experts=1, first_k_dense_replace=3),
    ),
    # config.json of google/gemma-2-2b, -9b and -27b; gemma-3-1b-pt, and the text models of
    # gemma-3-4b-pt, -12b-pt and -27b-pt
    "gemma-2-2b": _read("gemma2", 2304, 26, 8, 4, 9216, 256000, **_GEMMA_2),
    "gemma-2-9b": _read("gemma2", 3584, 42, 16, 8, 14336, 256000, **_GEMMA_2),
    "gemma-2-27b": _read("gemma2", 4608, 46, 32, 16, 36864, 256000, head_dim=128, **_GEMMA_2),
    "gemma-3-1b": _read("gemma3_text", 1152, 26, 4, 1, 6912, 262144, sliding_window=512),
    "gemma-3-4b": _read("gemma3_text", 2560, 34, 8, 4, 10240, 262208, sliding_window=1024),
    "gemma-3-12b": _read("gemma3_text", 3840, 48, 16, 8, 15360, 262208, sliding_window=1024),
    "gemma-3-27b": _read(
        "gemma3_text", 5376, 62, 32, 16, 21504, 262208, head_dim=128, sliding_window=1024
    ),
    # config.json of microsoft/phi-2, Phi-3-mini-4k-instruct, Phi-3-medium-4k-instruct, phi-4 and
    # Phi-4-mini-instruct
    "phi-2": _read(
        "phi", 2560, 32, 32, 32, 10240, 51200, partial_rotary_factor=0.4, resid_pdrop=0.1
    ),
    "phi-3-mini": _read("phi3", 3072, 32, 32, 32, 8192, 32064, sliding_window=2047),
    "phi-3-medium": _read("phi3", 5120, 40, 40, 10, 17920, 32064, sliding_window=2047),
    "phi-4": _read("phi3", 5120, 40, 40, 10, 17920, 100352),
    "phi-4-mini": _read(
        "phi3", 3072, 32, 24, 8, 8192, 200064, partial_rotary_factor=0.75, tie_word_embeddings=True
    ),
    # config.json of openai/gpt-oss-20b and -120b
    "gpt-oss-20b": _gpt_oss(24, 32),
    "gpt-oss-120b": _gpt_oss(36, 128),
    # config.json of facebook/opt-125m, -1.3b, -6.7b, -13b, -30b and -66b; OPT-175B of the
    # publication (Zhang et al., 2022)
    "opt-125m": _opt(768, 12, 12),
    "opt-1.3b": _opt(2048, 24, 32),
    "opt-6.7b": _opt(4096, 32, 32),
    "opt-13b": _opt(5120, 40, 40),
    "opt-30b": _opt(7168, 48, 56),
    "opt-66b": _opt(9216, 64, 72),
    "opt-175b": _opt(12288, 96, 96),
    # config.json of bigscience/bloom-560m, bloom-7b1 and bloom
    "bloom-560m": _bloom(1024, 24, 16),
    "bloom-7b1": _bloom(4096, 30, 32),
    "bloom-176b": _bloom(14336, 70, 112),
    # config.json of tiiuae/falcon-7b, -40b and -180B
    "falcon-7b": _falcon(4544, 32, 71),
    "falcon-40b": _falcon(8192, 60, 128, new_decoder_architecture=True, num_kv_heads=8),
    "falcon-180b": _falcon(14848, 80, 232, new_decoder_architecture=True, num_kv_heads=8),
    # config.json of mosaicml/mpt-7b and mpt-30b
    "mpt-7b": _mpt(4096, 32, 32),
    "mpt-30b": _mpt(7168, 48, 64),
    # config.json of EleutherAI/pythia-6.9b, gpt-neox-20b and gpt-j-6b;
    # CohereForAI/c4ai-command-r-v01
    "pythia-6.9b": _read("gpt_neox", 4096, 32, 32, 32, 16384, 50432),
    "gpt-neox-20b": _read("gpt_neox", 6144, 44, 64, 64, 24576, 50432),
    "gpt-j-6b": READERS["gptj"](Keys({"n_embd": 4096, "n_layer": 28, "n_head": 16})),
    "command-r-35b": _read("cohere", 8192, 40, 64, 64, 22528, 256000),
    # config.json of openai-community/gpt2, -medium, -large and -xl
    "gpt2": Gpt2(n_embd=768, n_layer=12, n_head=12),
    "gpt2-medium": Gpt2(n_embd=1024, n_layer=24, n_head=16),
    "gpt2-large": Gpt2(n_embd=1280, n_layer=36, n_head=20),
    "gpt2-xl": Gpt2(n_embd=1600, n_layer=48, n_head=25),
    # config.json of google-bert/bert-base-uncased and bert-large-uncased
    "bert-base": Bert(
        hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072
    ),
    "bert-large": Bert(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
    ),
    # config.json of google/vit-base-patch16-224, vit-large-patch16-224 and
    # vit-huge-patch14-224-in21k (with the head of 1000 classes)
    "vit-b-16": Vit(
        hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072
    ),
    "vit-h-14": Vit(
        hidden_size=1280,
        num_hidden_layers=32,
        num_attention_heads=16,
        intermediate_size=5120,
        patch_size=14,
    ),
    "vit-l-16": Vit(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
    ),
    # config.json of google-t5/t5-small, -base, -large, -3b and -11b; google/flan-t5-base, -large,
    # -xl and -xxl
    "t5-small": T5(d_model=512, num_layers=6, num_heads=8, d_kv=64, d_ff=2048),
    "t5-base": T5(d_model=768, num_layers=12, num_heads=12, d_kv=64, d_ff=3072),
    "t5-large": T5(d_model=1024, num_layers=24, num_heads=16, d_kv=64, d_ff=4096),
    "t5-3b": T5(d_model=1024, num_layers=24, num_heads=32, d_kv=128, d_ff=16384),
    "t5-11b": T5(d_model=1024, num_layers=24, num_heads=128, d_kv=128, d_ff=65536),
    "flan-t5-base": T5(d_model=768, num_layers=12, num_heads=12, d_kv=64, d_ff=2048, **_UNTIED),
    "flan-t5-large": T5(d_model=1024, num_layers=24, num_heads=16, d_kv=64, d_ff=2816, **_UNTIED),
    "flan-t5-xl": T5(d_model=2048, num_layers=24, num_heads=32, d_kv=64, d_ff=5120, **_UNTIED),
    "flan-t5-xxl": T5(d_model=4096, num_layers=24, num_heads=64, d_kv=64, d_ff=10240, **_UNTIED),
    # config.json of openai/whisper-tiny, -base, -small, -medium, -large-v3 and -large-v3-turbo
    "whisper-tiny": _whisper(384, 4, 6),
    "whisper-base": _whisper(512, 6, 8),
    "whisper-small": _whisper(768, 12, 12),
    "whisper-medium": _whisper(1024, 24, 16),
    "whisper-large-v3": _whisper(1280, 32, 20, vocab_size=51866, num_mel_bins=128),
    "whisper-large-v3-turbo": _whisper(
        1280, 32, 20, vocab_size=51866, num_mel_bins=128, decoder_layers=4
    ),
    # DiT_B_2, DiT_L_2 and DiT_XL_2 of facebookresearch/DiT, models.py
    "dit-b-2": Dit(hidden_size=768, num_hidden_layers=12, num_attention_heads=12),
    "dit-l-2": Dit(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16),
    "dit-xl-2": Dit(hidden_size=1152, num_hidden_layers=28, num_attention_heads=16),
}

_UNBUILT: Mapping[str, Mapping[str, Any]] = {
    **{
        name: {"quantization_config": {"quant_method": "mxfp4"}}
        for name in ("gpt-oss-20b", "gpt-oss-120b")
    },
    **{
        name: {"attn_logit_softcapping": 50.0}
        for name in ("gemma-2-2b", "gemma-2-9b", "gemma-2-27b")
    },
    "command-r-35b": {"logit_scale": 0.0625},
    "deepseek-v3": {"quantization_config": {"quant_method": "fp8"}, "num_nextn_predict_layers": 1},
}
"""Features of presets' published configurations that builders do not model."""


def left_out_of(preset: str) -> tuple[str, ...]:
    """Lines for the parts of a preset's published model that the builder omits.

    >>> left_out_of("gpt-oss-20b")
    ('the quantisation of the weights (mxfp4): all are in the dtype of the run; weights=mxfp4 packs them',)
    """
    return Keys(_UNBUILT.get(preset, {})).left_out()
