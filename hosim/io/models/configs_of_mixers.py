"""Families whose layers differ, each as a line of parts by ``model_type``: in mixers of linear
time, alone or between layers of attention, and in the pattern of their attention.
"""

from collections.abc import Callable, Mapping
from math import ceil
from types import MappingProxyType
from typing import Any

from hosim.io.models.config import Decoder
from hosim.io.models.config_keys import Keys
from hosim.io.models.config_parts import (
    DENSE,
    LAYERS,
    Fields,
    activation,
    biases,
    by_parts,
    count_of_layers,
    delta,
    every,
    heads_of,
    latent,
    listed,
    listed_windows,
    mamba,
    mamba2,
    mixed,
    mixture,
    named_layers,
    no_dense,
    normed_heads,
    only,
    periodic,
    shared,
    shared_wide,
    stepped,
    tied,
    turned,
)

_NO_HEADS: Mapping[str, Any] = MappingProxyType(
    {
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 1,
        "intermediate_size": 1,
        "positions": "none",
        "has_mlp": False,
    }
)
"""The fields of models without attention and MLPs."""
_QWEN = (heads_of(256), biases(), turned(0.25), normed_heads(), delta())
_GATED: Mapping[str, Any] = MappingProxyType({"attention_gate": "queries", "names": "qwen-moe"})
_SHARED = shared_wide("shared_expert_intermediate_size", 512, gated=True)
_BLOCKS: Mapping[str, Fields] = MappingProxyType(
    {
        **{name: {"mixer": "mamba2", "has_mlp": False} for name in ("linear_attention", "mamba")},
        **{name: {"has_mlp": False} for name in ("full_attention", "attention")},
        "mlp": {"mixer": "none", **DENSE},
        "moe": {"mixer": "none"},
    }
)
_LETTERS: Mapping[str, str] = MappingProxyType(
    {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
)


def _nemotron_h(keys: Keys) -> Fields:
    """Layers that are a mixer, attention, an MLP or a mixture alone, by their names or by a letter
    each.
    """
    key = (
        "layers_block_type"
        if keys.value("layers_block_type") is not None
        else "hybrid_override_pattern"
    )
    given = keys.value(key)
    keys.refuse(
        key,
        not isinstance(given, str | list) or not given,
        f"expected the kinds of the layers, got {given!r}",
    )
    names = [_LETTERS.get(letter, letter) for letter in given] if isinstance(given, str) else given
    for name in names:
        keys.refuse(
            key,
            name not in _BLOCKS,
            f"the builder knows {', '.join(map(repr, _BLOCKS))} only, got {name!r}",
        )
    router = mixture(scores="sigmoid", added="buffer", grouped=True)(keys) if "moe" in names else {}
    return {
        **router,
        "num_hidden_layers": len(names),
        "shared_intermediate_size": keys.size("moe_shared_expert_intermediate_size", 0, 0)
        if router
        else 0,
        "moe_latent_size": keys.size("moe_latent_size", 0, 0),
        "state_heads": keys.size("mamba_num_heads", 128),
        "state_head_dim": keys.size("mamba_head_dim", 64),
        "state_groups": keys.either("n_groups", "mamba_n_groups", default=8),
        "state_size": keys.size("ssm_state_size", 128),
        "conv_kernel": keys.either("conv_kernel", "mamba_d_conv", default=4),
        "conv_bias": keys.flag("use_conv_bias", True),
        "state_bias": keys.flag("use_bias", False),
        LAYERS: [_BLOCKS[name] for name in names],
    }


def _mamba2_alone(keys: Keys) -> Fields:
    heads, width, wide = (
        keys.size("num_heads", 128),
        keys.size("head_dim", 64),
        keys.size("expand", 2) * keys.size("hidden_size"),
    )
    keys.refuse(
        "num_heads",
        heads * width != wide,
        f"expected {width} elements each to be {wide} together, got {heads} heads",
    )
    return {
        "state_heads": heads,
        "state_head_dim": width,
        "head_dim": 1,
        "state_groups": keys.size("n_groups", 8),
        "state_size": keys.size("state_size", 128),
        "conv_kernel": keys.size("conv_kernel", 4),
        "conv_bias": keys.flag("use_conv_bias", True),
        "state_bias": keys.flag("use_bias", False),
    }


def _granite(keys: Keys) -> Fields:
    """A mixture with a shared MLP; without experts, only the shared MLP."""
    rotary: Fields = {
        "positions": "rotary" if keys.value("position_embedding_type") == "rope" else "none"
    }
    wide = keys.size("shared_intermediate_size", 1024)
    if not keys.size("num_local_experts", 8, 0):
        return {**rotary, "intermediate_size": wide, "names": "granite-dense"}
    return {
        **rotary,
        **mixture(2, width="intermediate_size", count=8)(keys),
        "shared_intermediate_size": wide,
        "names": "granite-moe",
    }


def _bamba(keys: Keys) -> Fields:
    if keys.value("layers_block_type") is not None:
        return mixed({"mixer": "mamba2"}, key="layers_block_type")(keys)
    full = keys.value("attn_layer_indices") or []
    return {
        LAYERS: [{} if n in full else {"mixer": "mamba2"} for n in range(count_of_layers(keys))]
    }


def _jamba(keys: Keys) -> Fields:
    period, offset = keys.size("attn_layer_period", 8), keys.size("attn_layer_offset", 4, 0)
    return {
        LAYERS: [
            {} if n % period == offset else {"mixer": "mamba"} for n in range(count_of_layers(keys))
        ]
    }


def _lfm2(keys: Keys) -> Fields:
    """Short convolutions and attention; an MLP may be narrower than ``intermediate_size``, rounded
    up to a multiple.
    """
    width = keys.size("block_ff_dim", keys.size("intermediate_size"))
    if keys.flag("block_auto_adjust_ff_dim", True):
        more = keys.value("block_ffn_dim_multiplier")
        step = keys.size("block_multiple_of", 256)
        width = step * ceil(int((1.0 if more is None else more) * (2 * width // 3)) / step)
    return {"intermediate_size": width}


def _convolutions(keys: Keys) -> Fields:
    full = keys.value("full_attn_idxs")
    layers = mixed(
        {"mixer": "convolution"},
        lambda n, _: "full_attention" if full is None or n in full else "conv",
    )(keys)
    return {
        **layers,
        "conv_kernel": keys.size("conv_L_cache", 3),
        "conv_bias": keys.flag("conv_bias", False),
    }


def _kimi(keys: Keys) -> Fields:
    """Latent attention without positions between layers of Kimi's delta attention; older files list
    layers by number.
    """
    inside = keys.inside("linear_attn_config")
    full = inside.value("full_attn_layers")
    usual = [n % 4 == 0 and n > 0 for n in range(count_of_layers(keys))] if full is None else None
    layers = mixed(
        {"mixer": "kimi_delta"},
        lambda n, _: (
            "full_attention" if (usual[n] if usual else n + 1 in full) else "linear_attention"
        ),
    )
    heads, width = (
        inside.size("num_heads", keys.size("linear_num_heads", 32)),
        inside.size("head_dim", keys.size("linear_head_dim", 128)),
    )
    kernel = inside.size("short_conv_kernel_size", keys.size("linear_conv_kernel_dim", 4))
    sizes = {
        "state_heads": heads,
        "state_groups": heads,
        "state_size": width,
        "state_head_dim": width,
        "conv_kernel": kernel,
    }
    return {**layers(keys), **sizes}


def _olmo(keys: Keys) -> Fields:
    """Norms come before layers of a delta net, and after layers of attention."""
    heads, hidden = keys.size("num_attention_heads"), keys.size("hidden_size")
    wide = hidden // heads
    sizes = delta((heads, heads), (int(0.75 * wide), int(2 * 0.75 * wide)))(keys)
    known: dict[str, Fields] = {
        "linear_attention": {"mixer": "delta_own"},
        "full_attention": {"pre_norms": False, "post_norms": True},
    }
    layers = count_of_layers(keys)
    full = range(3, layers, 4) if layers > 3 else (layers - 1,)
    return {
        **sizes,
        LAYERS: named_layers(
            keys,
            "layer_types",
            known,
            lambda n: "full_attention" if n in full else "linear_attention",
        ),
    }


OF_MIXERS: Mapping[str, Callable[[Keys], Decoder]] = MappingProxyType(
    {
        "qwen3_next": by_parts(
            *_QWEN,
            mixture(10, count=512, where=stepped),
            _SHARED,
            mixed({"mixer": "delta"}, every(4)),
            **_GATED,
        ),
        "qwen3_5_text": by_parts(*_QWEN, mixed({"mixer": "delta_apart"}, every(4)), **_GATED),
        "qwen3_5_moe_text": by_parts(
            *_QWEN,
            mixture(8, count=256),
            no_dense,
            _SHARED,
            mixed({"mixer": "delta_apart"}, every(4)),
            **_GATED,
        ),
        "olmo_hybrid": by_parts(biases(), normed_heads(over="all"), _olmo, names="qwen-moe"),
        "kimi_linear": by_parts(
            only(attention_bias=False),
            latent,
            _kimi,
            mixture(8, scores="sigmoid", added="buffer", grouped=True, where=listed(1)),
            shared("num_shared_experts", 1),
            positions="none",
            tie_word_embeddings=False,
            names="kimi-linear",
        ),
        "bamba": by_parts(biases(), turned(0.5), mamba2(), _bamba, names="jamba"),
        "granitemoehybrid": by_parts(
            biases(),
            mamba2(),
            mixed({"mixer": "mamba2"}),
            _granite,
            embedding_scale=True,
            fused_gate_up=True,
        ),
        "falcon_h1": by_parts(
            only(mamba_proj_bias=False, projectors_bias=False),
            biases(),
            mamba2(inner="mamba_d_ssm"),
            lambda keys: {"state_norm": keys.flag("mamba_rms_norm", False)},
            mixer="attention+mamba2",
            embedding_scale=True,
            names="jamba",
        ),
        "nemotron_h": by_parts(
            heads_of(128),
            activation("mlp_hidden_act", "relu2"),
            _nemotron_h,
            gated_mlp=False,
            tie_word_embeddings=False,
            positions="none",
            names="nemotron-h",
        ),
        "mamba2": by_parts(_mamba2_alone, tied(False), mixer="mamba2", names="mamba", **_NO_HEADS),
        "mamba": by_parts(
            mamba("", norms=False), tied(), mixer="mamba", names="mamba", **_NO_HEADS
        ),
        "falcon_mamba": by_parts(
            mamba("", norms=False), tied(), mixer="mamba", names="mamba", **_NO_HEADS
        ),
        "jamba": by_parts(
            mamba("mamba_", norms=True),
            _jamba,
            mixture(2, width="intermediate_size", count=16, where=periodic),
            positions="none",
            names="jamba",
        ),
        "lfm2": by_parts(
            tied(other="tie_embedding"), normed_heads(), _lfm2, _convolutions, names="lfm2"
        ),
        "lfm2_moe": by_parts(
            tied(other="tie_embedding"),
            normed_heads(),
            _convolutions,
            mixture(4, count=32, scores="sigmoid", where=listed(2, "num_dense_layers")),
            lambda keys: {
                "router_correction": "buffer" if keys.flag("use_expert_bias", True) else "none"
            },
            names="lfm2",
        ),
        "minimax": by_parts(
            mixture(2, width="intermediate_size", count=8),
            mixed(
                {"mixer": "lightning"},
                lambda n, keys: "linear_attention" if n % 2 else "full_attention",
            ),
            names="kimi-linear",
        ),
    }
)
"""By ``model_type``."""


# -- patterns of attention -------------------------------------------------------------------------
# Families whose layers differ in more than a window: in heads, gates, positions and sinks.


_FULL, _WINDOW = "full_attention", "sliding_attention"
_SIGMOID: Mapping[str, Any] = MappingProxyType({"scores": "sigmoid", "added": "buffer"})


def _mimo(keys: Keys) -> Fields:
    """Layers with a window have learned scores, and more heads of keys."""
    heads, window = (
        keys.size("num_key_value_heads"),
        keys.size("sliding_window", keys.size("sliding_window_size", 128) + 1),
    )
    near: Fields = {
        "sliding_window": window,
        "num_key_value_heads": keys.size("swa_num_key_value_heads", 2 * heads),
        "attention_sinks": True,
    }
    known: dict[str, Fields] = {_FULL: {}, _WINDOW: near}
    older = keys.value("hybrid_layer_pattern")

    def usual(n: int) -> str:
        return _kind_of(older, n) if older else _FULL if n == 0 or (n + 1) % 6 == 0 else _WINDOW

    layers = named_layers(keys, "layer_types", known, usual)
    width = keys.size("head_dim", 192)
    part = int(width * _part(keys, _FULL, 0.334))
    return {
        "v_head_dim": keys.size("v_head_dim", 128),
        "head_dim": width,
        "rotary_width": part if part < width else 0,
        LAYERS: layers,
    }


def _kind_of(pattern: Any, n: int) -> str:
    return _WINDOW if isinstance(pattern, list) and n < len(pattern) and pattern[n] else _FULL


def _part(keys: Keys, kind: str, default: float) -> float:
    """The share of a head that has rotary positions, in layers of a kind."""
    every = keys.inside("rope_parameters")
    return every.inside(kind).share(
        "partial_rotary_factor", keys.share("partial_rotary_factor", default)
    )


def _laguna(keys: Keys) -> Fields:
    """Layers differ in their number of heads, and each head's result has a gate."""
    keys.only(gating=(True, False, "per-head"))
    count, width = count_of_layers(keys), keys.size("head_dim", 128)
    heads = (
        keys.value("num_attention_heads_per_layer") or [keys.size("num_attention_heads")] * count
    )
    keys.refuse(
        "num_attention_heads_per_layer",
        not isinstance(heads, list)
        or len(heads) < count
        or not all([type(each) is int and each > 0 for each in heads]),
        f"expected {count} numbers of heads, got {heads!r}",
    )
    window = keys.size("sliding_window", 512)
    parts = {
        kind: int(width * _part(keys, kind, share))
        for kind, share in ((_FULL, 0.5), (_WINDOW, 1.0))
    }
    known: dict[str, Fields] = {
        kind: {"rotary_width": part if part < width else 0} for kind, part in parts.items()
    }
    known[_FULL]["sliding_window"], known[_WINDOW]["sliding_window"] = 0, window
    layers = named_layers(keys, "layer_types", known, lambda n: _FULL)
    gate = "heads" if keys.value("gating") in (None, True, "per-head") else ""
    return {
        "attention_gate": gate,
        LAYERS: [
            {**layer, "num_attention_heads": n} for layer, n in zip(layers, heads, strict=False)
        ],
    }


def _cohere(keys: Keys) -> Fields:
    """Dense layers come first, with their own width."""
    sparse = listed(0)(keys)
    wide = keys.size("prefix_dense_intermediate_size", keys.size("intermediate_size"))
    return {LAYERS: [{} if is_sparse else {"intermediate_size": wide} for is_sparse in sparse]}


def _cohere_windows(n: int, keys: Keys) -> str:
    first = keys.size("first_k_dense_replace", 0, 0)
    every = (
        keys.size("prefix_dense_sliding_window_pattern", 1)
        if n < first
        else keys.size("sliding_window_pattern", 4)
    )
    return _WINDOW if ((n if n < first else n - first) + 1) % every else _FULL


def _first_two_dense(keys: Keys) -> list[bool]:
    usual = keys.value("mlp_only_layers") is None
    return [is_sparse and (n > 1 or not usual) for n, is_sparse in enumerate(stepped(keys))]


def _lara(keys: Keys) -> Fields:
    window = keys.size("sliding_window", 512)
    known: dict[str, Fields] = {
        "linear_attention": {"mixer": "delta_apart"},
        _WINDOW: {"sliding_window": window},
        _FULL: {},
    }
    order = ("linear_attention", _WINDOW, "linear_attention", _FULL, _WINDOW)
    return {LAYERS: named_layers(keys, "layer_types", known, lambda n: order[n % 5])}


def _lfm3(keys: Keys) -> Fields:
    window = keys.size("sliding_window", 256)
    known: dict[str, Fields] = {
        "conv": {"mixer": "convolution"},
        _WINDOW: {"sliding_window": window},
        _FULL: {},
    }
    return {
        "conv_kernel": keys.size("conv_L_cache", 7),
        "conv_bias": keys.flag("conv_bias", False),
        "attention_gate": "heads" if keys.flag("use_attention_gate", True) else "",
        "post_norms": keys.flag("use_sandwich_norm", True),
        LAYERS: named_layers(
            keys,
            "layer_types",
            known,
            lambda n: _FULL if n % 4 == 2 else _WINDOW if n % 4 == 0 and n else "conv",
        ),
    }


OF_PATTERNS: Mapping[str, Callable[[Keys], Decoder]] = MappingProxyType(
    {
        "mimo_v2_flash": by_parts(
            biases(out=False),
            _mimo,
            mixture(8, **_SIGMOID, grouped=True, where=listed(1)),
            mlp_bias=False,
        ),
        "laguna": by_parts(
            heads_of(128),
            biases(),
            normed_heads(),
            _laguna,
            mixture(8, count=256, scores="sigmoid", added="parameter", where=listed(1)),
            shared_wide("shared_expert_intermediate_size", 512),
            names="laguna",
        ),
        "cohere2_moe": by_parts(
            biases(),
            tied(),
            listed_windows(_cohere_windows),
            mixture(2, width="intermediate_size", count=8, where=listed(0)),
            shared("num_shared_experts"),
            _cohere,
            norm="layer_without_bias",
            parallel_block=True,
            shared_norm=True,
        ),
        "flint": by_parts(
            heads_of(128),
            biases(),
            normed_heads(),
            listed_windows(
                lambda n, keys: (
                    _FULL if n < 2 or n % 4 == 1 or n == count_of_layers(keys) - 1 else _WINDOW
                )
            ),
            mixture(6, where=_first_two_dense),
            shared_wide("shared_expert_intermediate_size", 1024),
            attention_sinks=True,
            names="qwen-moe",
        ),
        "kolibri1": by_parts(
            heads_of(128),
            no_dense,
            normed_heads(),
            listed_windows(lambda n, keys: _WINDOW if (n + 1) % 5 else _FULL),
            mixture(6, **_SIGMOID),
            shared_wide("shared_expert_intermediate_size", 512),
            post_norms=True,
            names="glm4",
        ),
        "lara_mini": by_parts(
            heads_of(128),
            biases(),
            tied(),
            normed_heads(),
            no_dense,
            delta((8, 16)),
            turned(1.0),
            _lara,
            mixture(4),
            shared_wide("shared_expert_intermediate_size", 512),
            names="qwen-moe",
        ),
        "lfm3": by_parts(
            only(hidden_act="silu"),
            heads_of(128),
            biases(),
            tied(),
            normed_heads(),
            _lfm3,
            names="lfm3",
        ),
    }
)
"""By ``model_type``."""
