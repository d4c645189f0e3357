"""Families whose layers differ in their attention beyond a window: in heads, gates, positions and
sinks; each by parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from hosim.io.models.config import Decoder
from hosim.io.models.config_keys import Keys
from hosim.io.models.config_mixtures import (
    delta,
    listed,
    mixture,
    no_dense,
    shared,
    shared_wide,
    stepped,
)
from hosim.io.models.config_parts import (
    LAYERS,
    Fields,
    biases,
    by_parts,
    count_of_layers,
    heads_of,
    listed_windows,
    named_layers,
    normed_heads,
    only,
    tied,
    turned,
)

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
    """The share of a head that has rotary positions in layers of a kind."""
    every = keys.inside("rope_parameters")
    return every.inside(kind).share(
        "partial_rotary_factor", keys.share("partial_rotary_factor", default)
    )


def _laguna(keys: Keys) -> Fields:
    """Layers have numbers of heads of their own, whose results have a gate each."""
    keys.only(gating=(True, False, "per-head"))
    count, width = count_of_layers(keys), keys.size("head_dim", 128)
    heads = (
        keys.value("num_attention_heads_per_layer") or [keys.size("num_attention_heads")] * count
    )
    if (
        not isinstance(heads, list)
        or len(heads) < count
        or not all([type(each) is int and each > 0 for each in heads])
    ):
        raise keys.refusal(
            "num_attention_heads_per_layer", f"expected {count} numbers of heads, got {heads!r}"
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
    """Dense layers come first, with a width of their own."""
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


def _flint(n: int, keys: Keys) -> str:
    return _FULL if n < 2 or n % 4 == 1 or n == count_of_layers(keys) - 1 else _WINDOW


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
            listed_windows(_flint),
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
