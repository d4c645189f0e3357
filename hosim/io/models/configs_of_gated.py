"""The sizes of decoders whose keys are those of Llama, most of them with a gate in the MLP, from
their ``config.json``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from hosim.io.models.config import Decoder
from hosim.io.models.config_keys import Keys, all_biases
from hosim.io.models.config_mixtures import DENSE, stepped
from hosim.io.models.config_parts import LAYERS, kinds_of, late_windows, windows
from hosim.io.models.config_parts import decoder_of as _decoder
from hosim.io.models.config_parts import latent as _latent


def _biases(keys: Keys, default: bool = False) -> dict[str, Any]:
    """Biases of queries, keys, values and the output, all or none."""
    return dict.fromkeys(("qkv_bias", "out_bias"), keys.flag("attention_bias", default))


def _late(keys: Keys) -> dict[str, Any]:
    return kinds_of(late_windows(28)(keys).get(LAYERS, ()))


def _llama(keys: Keys) -> Decoder:
    return _decoder(keys, **_biases(keys))


def _mistral(keys: Keys) -> Decoder:
    return _decoder(keys, sliding_window=keys.window())


def _mixtral(keys: Keys) -> Decoder:
    return _decoder(
        keys,
        sliding_window=keys.window(),
        num_experts=keys.size("num_local_experts", 8),
        num_experts_per_tok=keys.size("num_experts_per_tok", 2),
        moe_intermediate_size=keys.size("intermediate_size"),
        router_fp32=True,
    )


def _qwen2(keys: Keys) -> Decoder:
    return _decoder(keys, qkv_bias=True, **_late(keys))


def _qwen3(keys: Keys) -> Decoder:
    return _decoder(
        keys, head_dim=keys.size("head_dim", 128), qk_norm=True, **_biases(keys), **_late(keys)
    )


def _qwen3_moe(keys: Keys) -> Decoder:
    layers = [{} if is_sparse else {**DENSE} for is_sparse in stepped(keys)]
    for layer, more in zip(layers, late_windows(28)(keys).get(LAYERS, layers), strict=True):
        layer.update(more)
    return _decoder(
        keys,
        **_biases(keys),
        **kinds_of(layers),
        qk_norm=True,
        num_experts=keys.size("num_experts", keys.size("num_local_experts", 128)),
        num_experts_per_tok=keys.size("num_experts_per_tok", 8),
        moe_intermediate_size=keys.size("moe_intermediate_size", 768),
    )


def _deepseek(keys: Keys) -> Decoder:
    """DeepSeek-V3: a router of sigmoid scores and groups. Its prediction of further tokens is left
    out, as transformers has it.
    """
    keys.only(attention_bias=False, moe_layer_freq=1)
    return _decoder(
        keys, n_group=keys.size("n_group", 8, 0), **_latent(keys), **_shared_experts(keys, 3)
    )


def _deepseek_v2(keys: Keys) -> Decoder:
    """Its router is a softmax."""
    keys.only(attention_bias=False, moe_layer_freq=1)
    return _decoder(keys, **_latent(keys), **_shared_experts(keys, 0))


def _shared_experts(keys: Keys, dense: int) -> dict[str, Any]:
    return {
        "num_experts": keys.size("n_routed_experts"),
        "num_experts_per_tok": keys.size("num_experts_per_tok"),
        "moe_intermediate_size": keys.size("moe_intermediate_size"),
        "n_shared_experts": keys.size("n_shared_experts", 0, 0),
        "first_k_dense_replace": keys.size("first_k_dense_replace", dense, 0),
    }


def _gemma(keys: Keys) -> Decoder:
    return _decoder(keys, **_gemma_parts(keys))


def _gemma_parts(keys: Keys) -> dict[str, Any]:
    """Return the fields that all of Gemma has: an activation with a name of its own, a scaled
    embedding that is the output layer, too.
    """
    return {
        "hidden_act": keys.activation("hidden_activation", "gelu_pytorch_tanh"),
        "head_dim": keys.size("head_dim", 256),
        "tie_word_embeddings": keys.flag("tie_word_embeddings", True),
        "embedding_scale": True,
        **_biases(keys),
    }


def _gemma2(keys: Keys) -> Decoder:
    return _decoder(keys, **_post_normed(keys), **windows(keys, 2))


def _gemma3(keys: Keys) -> Decoder:
    every = keys.size("sliding_window_pattern", 6)
    defaults = {
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 262208,
    }
    keys.only(use_bidirectional_attention=False)
    return _decoder(keys, defaults, qk_norm=True, **_post_normed(keys), **windows(keys, every))


def _post_normed(keys: Keys) -> dict[str, Any]:
    capped = keys.value("final_logit_softcapping") is not None
    return {**_gemma_parts(keys), "post_norms": True, "final_softcap": capped, "names": "gemma"}


def _phi(keys: Keys) -> Decoder:
    keys.only(qk_layernorm=False)
    return _decoder(
        keys,
        hidden_act=keys.activation("hidden_act", "gelu_new"),
        gated_mlp=False,
        norm="layer",
        parallel_block=True,
        shared_norm=True,
        head_bias=True,
        dropout=keys.share("resid_pdrop", 0.0),
        embedding_dropout=keys.share("embd_pdrop", 0.0),
        rotary_width=keys.turned(0.5),
        names="phi",
        **all_biases(True),
    )


def _phi3(keys: Keys) -> Decoder:
    return _decoder(
        keys,
        fused_projections=True,
        sliding_window=keys.window(),
        dropout=keys.share("resid_pdrop", 0.0),
        embedding_dropout=keys.share("embd_pdrop", 0.0),
        rotary_width=keys.turned(1.0),
    )


def _gpt_oss(keys: Keys) -> Decoder:
    return _decoder(
        keys,
        head_dim=keys.size("head_dim", 64),
        attention_sinks=True,
        num_experts=keys.size("num_local_experts", 128),
        num_experts_per_tok=keys.size("num_experts_per_tok", 4),
        moe_intermediate_size=keys.size("intermediate_size"),
        expert_bias=True,
        **_biases(keys, default=True),
        **windows(keys, 2),
    )


def _starcoder2(keys: Keys) -> Decoder:
    bias = keys.flag("use_bias", True)
    return _decoder(
        keys,
        hidden_act=keys.activation("hidden_act", "gelu_pytorch_tanh"),
        gated_mlp=False,
        norm="layer",
        sliding_window=keys.window(),
        dropout=keys.share("residual_dropout", 0.0),
        embedding_dropout=keys.share("embedding_dropout", 0.0),
        tie_word_embeddings=keys.flag("tie_word_embeddings", True),
        names="starcoder2",
        **all_biases(bias),
    )


def _stablelm(keys: Keys) -> Decoder:
    keys.only(qk_layernorm=False)
    parallel = keys.flag("use_parallel_residual", False)
    return _decoder(
        keys,
        norm="layer",
        parallel_block=parallel,
        shared_norm=parallel,
        rotary_width=keys.turned(0.25),
        qkv_bias=keys.flag("use_qkv_bias", False),
        dropout=keys.share("hidden_dropout", 0.0),
    )


def _cohere(keys: Keys) -> Decoder:
    normed: dict[str, Any] = (
        {"qk_norm": True, "qk_norm_over": "each"} if keys.flag("use_qk_norm", False) else {}
    )
    return _decoder(keys, **_parallel(keys), **normed)


def _cohere2(keys: Keys) -> Decoder:
    every = keys.size("sliding_window_pattern", 4)
    return _decoder(keys, **_parallel(keys), **windows(keys, every))


def _parallel(keys: Keys) -> dict[str, Any]:
    tied = keys.flag("tie_word_embeddings", True)
    return {
        "norm": "layer_without_bias",
        "parallel_block": True,
        "shared_norm": True,
        "tie_word_embeddings": tied,
        **_biases(keys),
    }


def _granite(keys: Keys) -> Decoder:
    return _decoder(keys, embedding_scale=True, **_biases(keys))


GATED: Mapping[str, Callable[[Keys], Decoder]] = MappingProxyType(
    {
        "llama": _llama,
        "mistral": _mistral,
        "mixtral": _mixtral,
        "qwen2": _qwen2,
        "qwen3": _qwen3,
        "qwen3_moe": _qwen3_moe,
        "deepseek_v2": _deepseek_v2,
        "deepseek_v3": _deepseek,
        "gemma": _gemma,
        "gemma2": _gemma2,
        "gemma3_text": _gemma3,
        "phi": _phi,
        "phi3": _phi3,
        "gpt_oss": _gpt_oss,
        "starcoder2": _starcoder2,
        "stablelm": _stablelm,
        "cohere": _cohere,
        "cohere2": _cohere2,
        "granite": _granite,
    }
)
"""By ``model_type``."""
