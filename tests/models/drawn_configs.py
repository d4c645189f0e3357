"""Configs drawn for each family, and the model that transformers makes of them on the meta
device.
"""

from collections import Counter
from functools import cache
from math import prod

import pytest

import hosim
from hosim.io.models import READERS

FAMILIES = sorted(READERS.keys() - {"kimi_k2", "mimo"})
"""Those that transformers has a config class for."""
NO_CAUSAL = {
    "qwen2_vl_text": "Qwen2VLTextModel",
    "qwen2_5_vl_text": "Qwen2_5_VLTextModel",
    "qwen3_vl_text": "Qwen3VLTextModel",
}
NO_CAUSAL |= {
    "qwen2_5_omni_text": "Qwen2_5OmniThinkerTextModel",
    "qwen3_omni_moe_text": "Qwen3OmniMoeThinkerTextModel",
}
NO_CAUSAL |= {"qwen3_vl_moe_text": "Qwen3VLMoeTextModel", "emu3_text_model": "Emu3TextModel"}
"""Text models that transformers has inside a larger one only: these have no output layer, and names
without ``model``.
"""
NOT_CAUSAL = ("bert", "t5", "mt5", "whisper", "vit")
TOKENS = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0)
_COUNTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
_TOPS = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k")
_LATENT = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim")


def usual(kind):
    """What the config class of a family has by default."""
    transformers = pytest.importorskip("transformers")
    return transformers.AutoConfig.for_model(kind).to_dict()


def drawn(kind, rng):
    """A small config of a family: every size and flag that its class has and that this function
    knows is drawn.
    """
    has = _usual(kind)
    heads, groups, width = rng.choice((2, 4, 8)), rng.choice((1, 2)), rng.choice((16, 32))
    layers = rng.randint(2, 6)
    sizes = {
        "hidden_size": heads * width * rng.choice((1, 2)),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // groups,
        "head_dim": width,
        **dict.fromkeys(("n_embd", "d_model"), heads * width),
        **dict.fromkeys(("n_layer", "n_layers"), layers),
        **dict.fromkeys(("n_head", "n_heads"), heads),
        **dict.fromkeys(("num_layers", "num_heads"), None),
        "ffn_dim": 16 * rng.randint(3, 20),
        "intermediate_size": 16 * rng.randint(3, 20),
        "vocab_size": rng.randint(50, 300),
        "moe_intermediate_size": 8 * rng.randint(1, 9),
        "shared_expert_intermediate_size": 8 * rng.randint(1, 9),
        "shared_intermediate_size": 8 * rng.randint(1, 9),
        "intermediate_size_mlp": 8 * rng.randint(1, 30),
        "first_k_dense_replace": rng.randint(0, 2),
        "num_dense_layers": rng.randint(0, 2),
        "n_shared_experts": rng.randint(1, 3),
        "num_shared_experts": rng.randint(1, 3),
        "moe_num_shared_experts": rng.randint(1, 3),
        "decoder_sparse_step": rng.randint(1, 2),
        "moe_layer_interval": rng.randint(1, 2),
        "interleave_moe_layer_step": rng.randint(1, 2),
        "q_lora_rank": 8 * rng.randint(1, 9),
        "v_head_dim": 8 * rng.randint(1, 4),
        "index_n_heads": rng.randint(1, 5),
        "index_head_dim": 128,
        "index_topk": 8,
        "sliding_window": 16,
        "n_group": 1,
        "topk_group": 1,
        **{name: 8 * rng.randint(1, 4) for name in _LATENT},
        **dict.fromkeys(_COUNTS, 4 * rng.randint(1, 3)),
        **dict.fromkeys(_TOPS, rng.randint(1, 3)),
        **_linear(rng, layers),
    }
    flags = (
        "tie_word_embeddings",
        "attention_bias",
        "mlp_bias",
        "use_qk_norm",
        "qkv_bias",
        "attention_out_bias",
    )
    flags += ("use_post_norm", "use_bias")
    config = {key: value for key, value in sizes.items() if key in has and value is not None}
    config |= {key: rng.random() < 0.5 for key in flags if isinstance(has.get(key), bool)}
    return config | _own(kind, rng, config)


def _linear(rng, layers):
    return {
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2 * rng.randint(1, 2),
        "linear_key_head_dim": 8 * rng.randint(1, 3),
        "linear_value_head_dim": 8 * rng.randint(1, 3),
        "linear_conv_kernel_dim": rng.randint(2, 4),
        "linear_head_dim": 8 * rng.randint(1, 3),
        "linear_num_heads": rng.randint(1, 4),
        "conv_L_cache": rng.randint(2, 4),
        "mamba_d_state": 8 * rng.randint(1, 3),
        "mamba_d_conv": rng.randint(2, 4),
        "mamba_n_groups": rng.randint(1, 2),
        "mamba_proj_bias": rng.random() < 0.5,
        "mamba_conv_bias": rng.random() < 0.5,
        "conv_bias": rng.random() < 0.5,
        "state_size": 8 * rng.randint(1, 3),
        "attn_layer_period": 3,
        "attn_layer_offset": rng.randint(0, 2),
    }


def _own(kind, rng, config):
    """What only some families take."""
    if kind in (
        "glm4_moe_lite",
        "glm_moe_dsa",
        "deepseek_v2",
        "deepseek_v3",
        "deepseek_v32",
        "youtu",
        "minicpm3",
        "kimi_linear",
        "sarvam_mla",
    ):
        return {"attention_bias": False}
    if kind == "helium":  # its output product is as wide as the hidden state on both sides
        return {"head_dim": config["hidden_size"] // config["num_attention_heads"]}
    if kind == "opt":
        return {"word_embed_proj_dim": config["hidden_size"]}
    if kind == "internlm3":
        return {"mlp_bias": config["attention_bias"]}
    if kind == "nemotron_h":
        kinds = ["linear_attention", "moe", "full_attention", "mlp"]
        layers = rng.sample(kinds, 4) + rng.choices(kinds, k=2)
        sizes = {
            "mamba_num_heads": 4,
            "mamba_head_dim": 16,
            "ssm_state_size": 16,
            "n_groups": 2,
            "moe_shared_expert_intermediate_size": 40,
        }
        return {"layers_block_type": layers, "moe_latent_size": rng.choice((None, 16)), **sizes}
    if kind == "deepseek_v4":
        groups = rng.choice((1, config["num_attention_heads"]))
        own = {"attention_bias": False, "num_key_value_heads": 1, "head_dim": 128}
        return {**own, "o_groups": groups, "o_lora_rank": 24, "hc_mult": rng.randint(2, 4)}
    if kind == "gemma3n_text":
        layers = 5 + config["num_hidden_layers"]
        widths = [16 * rng.randint(1, 9) for _ in range(layers)]
        own = {
            "hidden_size_per_layer_input": 16,
            "vocab_size_per_layer_input": 100,
            "altup_num_inputs": rng.randint(2, 4),
            "laurel_rank": 8,
        }
        kinds = [("sliding_attention", "full_attention")[n % 2] for n in range(layers)]
        sparsity = [0.0] * layers
        shared = rng.randint(0, layers - 2)
        own |= {
            "intermediate_size": widths,
            "num_kv_shared_layers": shared,
            "layer_types": kinds,
            "activation_sparsity_pattern": sparsity,
        }
        return {"num_hidden_layers": layers, **own}
    if kind.startswith("gemma4"):
        return _gemma4(rng, config)
    if kind == "laguna":
        layers = [
            config["num_attention_heads"] * rng.choice((1, 2))
            for _ in range(config["num_hidden_layers"])
        ]
        return {"num_attention_heads_per_layer": layers}
    if kind == "gpt_neo":
        pairs = rng.randint(1, 3)
        return {
            "num_layers": 2 * pairs,
            "num_heads": 4,
            "attention_types": [[["global", "local"], pairs]],
            "hidden_size": 64,
        }
    if kind == "cohere2_moe":
        return {"prefix_dense_intermediate_size": 72}
    if kind == "mamba2":
        return {"num_heads": config["hidden_size"] // 8, "head_dim": 16, "n_groups": 2}
    if kind in ("mamba", "falcon_mamba"):
        return {"intermediate_size": 2 * config["hidden_size"]}
    if "mamba_d_state" in config:
        return {"mamba_n_heads": config["hidden_size"] // 8, **_hybrid(kind, rng, config)}
    if kind == "flint":
        return {"num_hidden_layers": 3}  # the first two are dense
    if kind == "lfm2_moe":
        kinds = ("conv", "full_attention")
        return {"layer_types": [rng.choice(kinds) for _ in range(config["num_hidden_layers"])]}
    return {"tie_word_embeddings": True} if kind in ("gpt2", "gpt-sw3") else {}


def _gemma4(rng, config):
    layers = config["num_hidden_layers"]
    mixed = rng.random() < 0.5
    return {
        "layer_types": [("sliding_attention", "full_attention")[n % 2] for n in range(layers)],
        "num_kv_shared_layers": rng.randint(0, layers - 2),
        "global_head_dim": 64,
        "num_global_key_value_heads": rng.choice((None, 1)),
        "hidden_size_per_layer_input": rng.choice((0, 16)),
        "vocab_size_per_layer_input": 100,
        "enable_moe_block": mixed,
        **{key: rng.random() < 0.5 for key in ("attention_k_eq_v", "use_double_wide_mlp")},
        **({"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 24} if mixed else {}),
    }


def _hybrid(kind, rng, config):
    layers = config["num_hidden_layers"]
    if kind == "bamba":
        return {"attn_layer_indices": sorted(rng.sample(range(layers), layers // 2))}
    if kind == "granitemoehybrid":
        kinds = [rng.choice(("linear_attention", "full_attention")) for _ in range(layers)]
        return {"layer_types": kinds, "num_local_experts": rng.choice((0, 4, 8))}
    if kind == "falcon_h1":
        return {
            "mamba_d_ssm": 2 * config["hidden_size"],
            "mamba_proj_bias": False,
            "mamba_rms_norm": rng.random() < 0.5,
        }
    return {}


_usual = cache(usual)


def model_on_meta(kind, config):
    """The model that transformers makes of a config, without memory."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    made = transformers.AutoConfig.for_model(kind, **TOKENS, **config)
    cls = (
        getattr(transformers, NO_CAUSAL[kind])
        if kind in NO_CAUSAL
        else transformers.AutoModelForCausalLM
    )
    make = cls._from_config if kind in NO_CAUSAL else cls.from_config
    with torch.device("meta"):
        return made.to_dict(), make(made, attn_implementation="eager")


def sizes_of_transformers(kind, config):
    """The config as transformers saves it, and the elements of each parameter of its model."""
    saved, model = model_on_meta(kind, config)
    return saved, {name: p.numel() for name, p in model.named_parameters()}


def sizes_of_builder(kind, config, **run):
    """The elements of each parameter of the graph of a config, whose products have the FLOP of their
    sizes.
    """
    graph = hosim.load(
        {
            "model": {"model_type": kind, **config, "dtype": "bfloat16"},
            "sequence": 64,
            "routing": None,
            **run,
        }
    )
    assert all(op.flops == 2 * prod(op.sizes) for op in graph.ops if op.kernel == "gemm"), kind
    found = Counter()
    for tensor in graph.tensors:
        if tensor.kind in ("parameter", "expert") and not (
            kind in NO_CAUSAL and tensor.whole == "lm_head.weight"
        ):
            found[tensor.whole] += tensor.size_bytes // 2
    return found
