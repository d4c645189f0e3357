"""The sizes of decoders whose keys are those of Llama, most of them with a gate in the MLP, from
their ``config.json``: each family a line of parts.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from hosim.io.models.config import Decoder
from hosim.io.models.config_keys import Keys, all_biases
from hosim.io.models.config_mixtures import DENSE, stepped
from hosim.io.models.config_parts import (
    LAYERS,
    Fields,
    Part,
    activation,
    all_windowed,
    biases,
    by_parts,
    capped,
    heads_of,
    late_windows,
    latent,
    normed_heads,
    only,
    tied,
    turned,
    windows,
)


def _dropped(layers: str, embedding: str = "") -> Part:
    """The shares that training drops of what layers add and of the embedding, by their keys."""
    named = {"dropout": layers, **({"embedding_dropout": embedding} if embedding else {})}
    return lambda keys: {name: keys.share(key, 0.0) for name, key in named.items()}


def _local_experts(count: int, top: int) -> Part:
    """Experts in all layers, as wide as ``intermediate_size``."""
    return lambda keys: {
        "num_experts": keys.size("num_local_experts", count),
        "num_experts_per_tok": keys.size("num_experts_per_tok", top),
        "moe_intermediate_size": keys.size("intermediate_size"),
    }


def _qwen3_experts(keys: Keys) -> Fields:
    return {
        "num_experts": keys.size("num_experts", keys.size("num_local_experts", 128)),
        "num_experts_per_tok": keys.size("num_experts_per_tok", 8),
        "moe_intermediate_size": keys.size("moe_intermediate_size", 768),
    }


def _deepseek_experts(dense: int) -> Part:
    """Routed and shared experts, after ``dense`` layers without where the config does not say."""
    return lambda keys: {
        "num_experts": keys.size("n_routed_experts"),
        "num_experts_per_tok": keys.size("num_experts_per_tok"),
        "moe_intermediate_size": keys.size("moe_intermediate_size"),
        "n_shared_experts": keys.size("n_shared_experts", 0, 0),
        "first_k_dense_replace": keys.size("first_k_dense_replace", dense, 0),
    }


_DEEPSEEK = only(attention_bias=False, moe_layer_freq=1)
"""Its prediction of further tokens is left out, as transformers has it."""

_GEMMA = (
    activation("hidden_activation", "gelu_pytorch_tanh"),
    heads_of(256),
    tied(),
    biases(),
)
_COHERE: Fields = {"norm": "layer_without_bias", "parallel_block": True, "shared_norm": True}

GATED: Mapping[str, Callable[[Keys], Decoder]] = MappingProxyType(
    {
        "llama": by_parts(biases()),
        "mistral": by_parts(all_windowed),
        "mixtral": by_parts(all_windowed, _local_experts(8, 2), router_fp32=True),
        "qwen2": by_parts(late_windows, qkv_bias=True),
        "qwen3": by_parts(heads_of(128), biases(), late_windows, qk_norm=True),
        "qwen3_moe": by_parts(
            lambda keys: {LAYERS: [{} if is_sparse else DENSE for is_sparse in stepped(keys)]},
            late_windows,
            biases(),
            _qwen3_experts,
            qk_norm=True,
        ),
        # its router is a softmax
        "deepseek_v2": by_parts(_DEEPSEEK, latent, _deepseek_experts(0)),
        # a router of sigmoid scores and groups
        "deepseek_v3": by_parts(
            _DEEPSEEK,
            lambda keys: {"n_group": keys.size("n_group", 8, 0)},
            latent,
            _deepseek_experts(3),
        ),
        "gemma": by_parts(*_GEMMA, embedding_scale=True),
        "gemma2": by_parts(
            capped, *_GEMMA, windows(2), embedding_scale=True, post_norms=True, names="gemma"
        ),
        "gemma3_text": by_parts(
            only(use_bidirectional_attention=False),
            capped,
            *_GEMMA,
            windows(6, "sliding_window_pattern"),
            defaults={
                "num_hidden_layers": 26,
                "num_attention_heads": 8,
                "num_key_value_heads": 4,
                "vocab_size": 262208,
            },
            embedding_scale=True,
            post_norms=True,
            qk_norm=True,
            names="gemma",
        ),
        "phi": by_parts(
            only(qk_layernorm=False),
            activation("hidden_act", "gelu_new"),
            _dropped("resid_pdrop", "embd_pdrop"),
            turned(0.5),
            gated_mlp=False,
            norm="layer",
            parallel_block=True,
            shared_norm=True,
            head_bias=True,
            names="phi",
            **all_biases(True),
        ),
        "phi3": by_parts(
            all_windowed,
            _dropped("resid_pdrop", "embd_pdrop"),
            turned(1.0),
            fused_projections=True,
        ),
        "gpt_oss": by_parts(
            heads_of(64),
            _local_experts(128, 4),
            biases(True),
            windows(2),
            attention_sinks=True,
            expert_bias=True,
        ),
        "starcoder2": by_parts(
            lambda keys: all_biases(keys.flag("use_bias", True)),
            activation("hidden_act", "gelu_pytorch_tanh"),
            all_windowed,
            _dropped("residual_dropout", "embedding_dropout"),
            tied(),
            gated_mlp=False,
            norm="layer",
            names="starcoder2",
        ),
        "stablelm": by_parts(
            only(qk_layernorm=False),
            lambda keys: dict.fromkeys(
                ("parallel_block", "shared_norm"), keys.flag("use_parallel_residual", False)
            ),
            turned(0.25),
            biases(key="use_qkv_bias", out=False),
            _dropped("hidden_dropout"),
            norm="layer",
        ),
        "cohere": by_parts(
            normed_heads("use_qk_norm", default=False, over="each"), tied(), biases(), **_COHERE
        ),
        "cohere2": by_parts(tied(), biases(), windows(4, "sliding_window_pattern"), **_COHERE),
        "granite": by_parts(biases(), embedding_scale=True),
    }
)
"""By ``model_type``."""
