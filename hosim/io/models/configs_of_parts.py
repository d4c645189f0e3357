"""Families that consist of known parts: one line of parts for each ``model_type``."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from hosim.io.models.config import Decoder
from hosim.io.models.config_keys import Keys, all_biases
from hosim.io.models.config_parts import (
    DENSE,
    LAYERS,
    Fields,
    Part,
    activation,
    all_windowed,
    bare_layers,
    between,
    biases,
    by_parts,
    capped,
    every_nth_full,
    heads_of,
    indexed,
    interleaved,
    late_windows,
    latent,
    listed,
    listed_windows,
    mixture,
    named_layers,
    no_dense,
    normed_heads,
    only,
    shared,
    shared_wide,
    stepped,
    tied,
    turned,
    windows,
)

# -- decoders whose keys are those of Llama --------------------------------------------------------
# The sizes of decoders with the keys of Llama, most of them with a gate in the MLP, from their
# ``config.json``. Each family is a line of parts.


def _dropped(layers: str, embedding: str = "") -> Part:
    """The shares of the layers' results and of the embedding that training drops, by their keys."""
    named = {"dropout": layers, **({"embedding_dropout": embedding} if embedding else {})}
    return lambda keys: {name: keys.share(key, 0.0) for name, key in named.items()}


def _local_experts(count: int, top: int) -> Part:
    """Experts in all layers, of the width ``intermediate_size``."""
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
    """Routed and shared experts; by default the first ``dense`` layers have none."""
    return lambda keys: {
        "num_experts": keys.size("n_routed_experts"),
        "num_experts_per_tok": keys.size("num_experts_per_tok"),
        "moe_intermediate_size": keys.size("moe_intermediate_size"),
        "n_shared_experts": keys.size("n_shared_experts", 0, 0),
        "first_k_dense_replace": keys.size("first_k_dense_replace", dense, 0),
    }


_DEEPSEEK = only(attention_bias=False, moe_layer_freq=1)
"""Its layers that predict further tokens are omitted, as in transformers."""

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


# -- families of known parts -----------------------------------------------------------------------


Reader = Callable[[Keys], Decoder]
_POST: Mapping[str, Any] = MappingProxyType({"pre_norms": False, "post_norms": True})
"""Norms only of the results of attention and MLP (OLMo-2)."""
_PLAIN: Mapping[str, Any] = MappingProxyType({"gated_mlp": False, "norm": "layer"})
_SIGMOID: Mapping[str, Any] = MappingProxyType({"scores": "sigmoid", "added": "buffer"})
"""A router with sigmoid scores and a correction, as in DeepSeek-V3."""


def _groups(first: int, top: int | None = None) -> Any:
    return mixture(top, **_SIGMOID, grouped=True, where=listed(first))


def _internlm_biases(keys: Keys) -> Fields:
    every = keys.flag("bias", False)
    own = keys.flag("attention_bias", every)
    return {
        "qkv_bias": keys.flag("qkv_bias", own),
        "out_bias": own,
        "mlp_bias": keys.flag("mlp_bias", every),
    }


def _first_full(n: int, keys: Keys) -> str:
    """Every fourth layer sees all keys, beginning with the first."""
    return "sliding_attention" if n % 4 else "full_attention"


def _late_window(n: int, keys: Keys) -> str:
    """Layers have a window from ``max_window_layers`` on."""
    has = keys.value("sliding_window") is not None and n >= keys.size("max_window_layers", 62, 0)
    return "sliding_attention" if has else "full_attention"


def _exaone(keys: Keys) -> Fields:
    """The names of keys in older files."""
    act = "activation_function" if keys.value("activation_function") is not None else "hidden_act"
    return {
        "num_hidden_layers": keys.either("num_hidden_layers", "num_layers"),
        "hidden_act": keys.activation(act, "silu"),
    }


def _all_tokens_pass(keys: Keys) -> Fields:
    """A shared expert of the same width as the others."""
    return {"shared_intermediate_size": keys.size("intermediate_size")}


def _llama4(keys: Keys) -> Fields:
    """Layers with positions attend within chunks, and norm their heads without weights."""
    chunk, normed = keys.size("attention_chunk_size", 8192, 0), keys.flag("use_qk_norm", True)
    bare = ["positions" in each for each in bare_layers(keys)[LAYERS]]
    known = {
        "chunked_attention": {"sliding_window": chunk},
        "full_attention": {"sliding_window": 0},
    }
    layers = named_layers(
        keys,
        "layer_types",
        known,
        lambda n: "full_attention" if bare[n] or not chunk else "chunked_attention",
    )
    wide = keys.size("intermediate_size_mlp", 16384)
    sparse = interleaved(keys)
    return {
        "qk_norm_over": "plain",
        LAYERS: [
            {
                **layer,
                "qk_norm": normed and not bare[n],
                **({"positions": "none"} if bare[n] else {}),
                **({} if sparse[n] else {"num_experts": 0, "intermediate_size": wide}),
            }
            for n, layer in enumerate(layers)
        ],
    }


def _afmoe(keys: Keys) -> Fields:
    every, window = keys.size("global_attn_every_n_layers", 4), keys.size("sliding_window", 1024)
    known: dict[str, Fields] = {
        "sliding_attention": {"sliding_window": window},
        "full_attention": {"positions": "none"},
    }
    return {
        LAYERS: named_layers(
            keys,
            "layer_types",
            known,
            lambda n: "sliding_attention" if (n + 1) % every else "full_attention",
        )
    }


_GLM4_MOE = by_parts(
    biases(out=False),
    turned(0.5),
    normed_heads("use_qk_norm", default=False),
    _groups(1),
    shared("n_shared_experts", 1),
)
_NO_BIAS = only(attention_bias=False)
_SPARSE_LATENT = (_NO_BIAS, latent, _groups(3), shared("n_shared_experts", 1))
_GRANITE_MOE = (biases(), mixture(2, width="intermediate_size", count=8))
_GRANITE: Fields = {"embedding_scale": True, "fused_gate_up": True, "names": "granite-moe"}
_HUNYUAN = (biases(), normed_heads())

_APERTUS = by_parts(
    biases(), normed_heads(), activation("hidden_act", "xielu"), gated_mlp=False, names="apertus"
)

OF_PARTS: Mapping[str, Reader] = MappingProxyType(
    {
        "kimi_k2": GATED["deepseek_v3"],
        "sarvam_mla": GATED["deepseek_v3"],
        "mimo": GATED["qwen2"],
        "qwen2_vl_text": GATED["qwen2"],
        "qwen2_5_vl_text": GATED["qwen2"],
        "qwen3_vl_text": GATED["qwen3"],
        "qwen3_vl_moe_text": GATED["qwen3_moe"],
        "qwen2_5_omni_text": GATED["qwen2"],
        "qwen3_omni_moe_text": GATED["qwen3_moe"],
        "iquestcoder": GATED["llama"],
        "emu3_text_model": GATED["llama"],
        "internlm3": by_parts(_internlm_biases),
        "glm": by_parts(heads_of(128), biases(True, out=False), turned(0.5), fused_gate_up=True),
        "glm4": by_parts(
            heads_of(128),
            biases(True, out=False),
            turned(0.5),
            fused_gate_up=True,
            post_norms=True,
            names="glm4",
        ),
        "glm4_moe": _GLM4_MOE,
        "sarvam_moe": _GLM4_MOE,
        "solar_open": by_parts(
            heads_of(128),
            biases(out=False),
            turned(1.0),
            no_dense,
            mixture(8, **_SIGMOID, grouped=True),
            shared("n_shared_experts", 1),
        ),
        "glm4_moe_lite": by_parts(_NO_BIAS, latent, _groups(1), shared("n_shared_experts", 1)),
        "glm_moe_dsa": by_parts(*_SPARSE_LATENT, indexed(32), mlp_bias=False),
        "deepseek_v32": by_parts(*_SPARSE_LATENT, indexed(64), mlp_bias=False),
        "youtu": by_parts(_NO_BIAS, latent, tied()),
        "minicpm3": by_parts(_NO_BIAS, latent, tied(), embedding_scale=True),
        "minimax_m2": by_parts(
            turned(1.0), normed_heads(over="all"), mixture(8, width="intermediate_size", **_SIGMOID)
        ),
        "phimoe": by_parts(
            biases(),
            all_windowed,
            lambda keys: {"head_bias": keys.flag("lm_head_bias", False)},
            mixture(2, width="intermediate_size", count=16),
            norm="layer",
            names="phimoe",
        ),
        "qwen2_moe": by_parts(
            late_windows,
            biases(True, key="qkv_bias", out=False),
            mixture(4, count=60, where=stepped),
            shared_wide("shared_expert_intermediate_size", 5632, gated=True),
            names="qwen-moe",
        ),
        "olmo": by_parts(biases(), norm="layer_without_weight"),
        "olmo2": by_parts(biases(), normed_heads(over="all"), **_POST),
        "olmo3": by_parts(
            biases(), normed_heads(over="all"), every_nth_full(4, window=4096), **_POST
        ),
        "olmoe": by_parts(
            biases(), normed_heads(over="all"), mixture(8, width="intermediate_size", count=64)
        ),
        "flex_olmo": by_parts(
            biases(),
            normed_heads(over="all"),
            mixture(5, width="intermediate_size", count=7),
            **_POST,
        ),
        "seed_oss": by_parts(
            heads_of(128),
            lambda keys: {
                "qkv_bias": keys.flag("attention_bias", True),
                "out_bias": keys.flag("attention_out_bias", False),
            },
        ),
        "smollm3": by_parts(only(use_sliding_window=False), biases(), bare_layers, tied()),
        "exaone4": by_parts(normed_heads(), every_nth_full(4, bare=True), **_POST),
        "exaone_moe": by_parts(
            normed_heads(),
            every_nth_full(4, bare=True),
            _groups(1),
            shared("num_shared_experts", 1),
        ),
        "ernie4_5": by_parts(
            heads_of(128), lambda keys: all_biases(keys.flag("use_bias", False)), tied()
        ),
        "ernie4_5_moe": by_parts(
            lambda keys: all_biases(keys.flag("use_bias", False)),
            lambda keys: {"head_bias": keys.flag("use_bias", False)},
            tied(),
            mixture(6, count=64, added="parameter", where=between),
            shared("moe_num_shared_experts", 2),
            names="ernie",
        ),
        "dots1": by_parts(
            biases(),
            normed_heads(),
            listed_windows(_late_window),
            _groups(0),
            shared("n_shared_experts"),
        ),
        "hunyuan_v1_dense": by_parts(*_HUNYUAN, names="hunyuan"),
        "hunyuan_v1_moe": by_parts(
            *_HUNYUAN,
            mixture(1, width="intermediate_size", count=1),
            _all_tokens_pass,
            names="hunyuan",
        ),
        "granitemoe": by_parts(*_GRANITE_MOE, **_GRANITE),
        "granitemoeshared": by_parts(
            *_GRANITE_MOE, shared_wide("shared_intermediate_size"), **_GRANITE
        ),
        "granite_swa": by_parts(
            biases(), listed_windows(_first_full), attention_sinks=True, embedding_scale=True
        ),
        "granitemoe_swa": by_parts(
            *_GRANITE_MOE,
            shared_wide("shared_intermediate_size"),
            listed_windows(_first_full),
            attention_sinks=True,
            **_GRANITE,
        ),
        "llama4_text": by_parts(
            biases(),
            mixture(1, width="intermediate_size", count=16, scores="sigmoid"),
            _all_tokens_pass,
            _llama4,
            names="llama4",
        ),
        "ministral": by_parts(all_windowed),
        "ministral3": by_parts(all_windowed),
        "cwm": by_parts(listed_windows(_first_full)),
        "arcee": by_parts(biases(), activation("hidden_act", "relu2"), gated_mlp=False),
        "nemotron": by_parts(biases(), activation("hidden_act", "relu2"), turned(0.5), **_PLAIN),
        "jais2": by_parts(
            biases(True),
            activation("hidden_act", "relu2"),
            lambda keys: {"mlp_bias": keys.flag("mlp_bias", True)},
            **_PLAIN,
        ),
        "helium": by_parts(heads_of(128), biases(out=False)),
        "apertus": _APERTUS,
        "apertus1p5_text": _APERTUS,
        "hyperclovax": by_parts(
            biases(),
            lambda keys: {"post_norms": keys.flag("use_post_norm", False)},
            embedding_scale=True,
            names="hyperclovax",
        ),
        "exaone": by_parts(biases(), _exaone),
        "bitnet": by_parts(biases(), activation("hidden_act", "relu2"), sub_norms=True),
        "persimmon": by_parts(
            normed_heads("qk_layernorm"),
            activation("hidden_act", "relu2"),
            turned(0.5),
            lambda keys: all_biases(True),
            fused_projections=True,
            names="persimmon",
            **_PLAIN,
        ),
        "vaultgemma": by_parts(
            biases(),
            heads_of(256),
            tied(),
            activation("hidden_activation", "gelu_pytorch_tanh"),
            every_nth_full(2),
            capped,
            embedding_scale=True,
            names="gemma",
        ),
        "nanochat": by_parts(
            biases(),
            activation("hidden_act", "relu2"),
            capped,
            norm="rms_without_weight",
            embedding_norm=True,
            qk_norm=True,
            qk_norm_over="plain",
            gated_mlp=False,
            names="nanochat",
        ),
        "mellum": by_parts(
            normed_heads(),
            listed_windows(lambda n, keys: "full_attention"),
            mixture(8, where=listed(0, "-")),
            biases(),
        ),
        "aria_text": by_parts(
            biases(),
            mixture(2, width="intermediate_size", count=8),
            shared("moe_num_shared_experts", 2),
            names="phimoe",
        ),
        "hy_v3": by_parts(
            heads_of(128),
            biases(),
            normed_heads(),
            mixture(**_SIGMOID, where=listed(1)),
            shared("num_shared_experts", 1),
        ),
        "afmoe": by_parts(
            biases(),
            normed_heads(),
            _afmoe,
            mixture(8, scores="sigmoid", added="parameter", where=listed(1, "num_dense_layers")),
            shared("num_shared_experts"),
            attention_gate="own",
            post_norms=True,
            names="afmoe",
        ),
    }
)
"""By ``model_type``."""
