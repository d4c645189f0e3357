"""Gemma 3n and 4 from their ``config.json``: layers differ in the width of their heads, share keys,
and have inputs of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from hosim.errors import InputError
from hosim.models.config import Decoder
from hosim.models.config_keys import Keys
from hosim.models.config_mixtures import mixture
from hosim.models.config_parts import (
    LAYERS,
    Fields,
    activation,
    biases,
    by_parts,
    count_of_layers,
    heads_of,
    named_layers,
    normed_heads,
    tied,
)


def _full_layer(keys: Keys) -> Fields:
    """Return the fields that differ in a layer that sees all keys: wider heads, of which there may
    be fewer.
    """
    found: Fields = {"head_dim": keys.size("global_head_dim", 512)}
    if (
        keys.flag("attention_k_eq_v", False)
        and keys.value("num_global_key_value_heads") is not None
    ):
        found["num_key_value_heads"] = keys.size("num_global_key_value_heads")
    return found


def _full_layers(keys: Keys, full: Sequence[bool]) -> Mapping[int, Fields]:
    """That of each such layer, by number; ``per_layer_config`` has them as transformers saves them,
    in as many digits as the last needs.
    """
    said = keys.value("per_layer_config")
    if said is None:
        return dict.fromkeys([n for n, sees_all in enumerate(full) if sees_all], _full_layer(keys))
    listed = keys.inside("per_layer_config")
    found: dict[int, Fields] = {}
    for key in said:
        n, own = int(key) if str(key).isdecimal() else -1, listed.inside(key)
        names = {name for name in said[key] if own.value(name) is not None}
        if not 0 <= n < len(full) or not full[n] or names - {"head_dim", "num_key_value_heads"}:
            raise listed.refusal(
                key,
                "expected a layer that sees all keys, with its head_dim and num_key_value_heads",
            )
        found[n] = {name: own.size(name) for name in sorted(names)}
    return found


def _layers(keys: Keys) -> Fields:
    count, window = count_of_layers(keys), keys.size("sliding_window", 512)
    known: dict[str, Fields] = {"sliding_attention": {}, "full_attention": {"full": True}}
    listed = named_layers(
        keys,
        "layer_types",
        known,
        lambda n: "sliding_attention" if (n + 1) % 6 else "full_attention",
    )
    full = [bool(each) for each in listed[:-1]] + [True]  # the last one always is
    first = count - keys.size("num_kv_shared_layers", 0, 0)
    if first <= 0 or {*full[:first]} != {*full}:
        raise keys.refusal(
            "num_kv_shared_layers",
            f"expected layers of each kind that make keys, got {count - first} of {count} that "
            "share",
        )
    wide = keys.size("intermediate_size") * (2 if keys.flag("use_double_wide_mlp", False) else 1)
    own, same = _full_layers(keys, full), keys.flag("attention_k_eq_v", False)
    layers = []
    for n, sees_all in enumerate(full):
        layer: Fields = (
            {"sliding_window": 0, "keys_are_values": same, **own.get(n, {})}
            if sees_all
            else {"sliding_window": window}
        )
        layers.append(
            layer if n < first else {**layer, "shares_keys": True, "intermediate_size": wide}
        )
    return {LAYERS: layers}


def _no_source(keys: Keys, count: int) -> InputError:
    got = f"got {keys.value('num_kv_shared_layers')} of {count} that share"
    return keys.refusal(
        "num_kv_shared_layers", f"expected layers of each kind that make keys, {got}"
    )


def _inputs_of_layers(keys: Keys) -> Fields:
    width = keys.size("hidden_size_per_layer_input", 256, 0)
    return {
        "layer_input_size": width,
        "layer_input_vocab": keys.size("vocab_size_per_layer_input", 262144) if width else 0,
    }


def _capped(keys: Keys) -> Fields:
    keys.only(use_bidirectional_attention="vision")
    return {"final_softcap": keys.value("final_logit_softcapping") is not None}


def _experts(keys: Keys) -> Fields:
    return mixture()(keys) if keys.flag("enable_moe_block", False) else {}


def _gemma3n(keys: Keys) -> Fields:
    """Each fifth layer sees all keys, the last ones share theirs, and MLPs may differ in width."""
    count, window = count_of_layers(keys), keys.size("sliding_window", 512)
    known: dict[str, Fields] = {
        "sliding_attention": {"sliding_window": window},
        "full_attention": {"sliding_window": 0},
    }
    listed = named_layers(
        keys,
        "layer_types",
        known,
        lambda n: "sliding_attention" if (n + 1) % 5 else "full_attention",
    )
    first = count - keys.size("num_kv_shared_layers", 15, 0)
    widths = keys.value("intermediate_size")
    widths = widths if isinstance(widths, list) else [keys.size("intermediate_size", 16384)] * count
    if len(widths) < count or not all([type(width) is int and width > 0 for width in widths]):
        raise keys.refusal(
            "intermediate_size", f"expected the widths of {count} layers, got {widths!r}"
        )
    if first <= 0 or not all([layer in listed[:first] for layer in listed]):
        raise keys.refusal(
            "num_kv_shared_layers",
            f"expected layers of each kind that make keys, got {count - first} of {count} that "
            "share",
        )
    layers = [
        {**layer, "intermediate_size": width} for layer, width in zip(listed, widths, strict=False)
    ]
    layers = [
        layer if n < first else {**layer, "shares_keys": True} for n, layer in enumerate(layers)
    ]
    return {
        "final_softcap": True,
        "intermediate_size": widths[0],
        "streams": keys.size("altup_num_inputs", 4, 2),
        "laurel_rank": keys.size("laurel_rank", 64),
        "layer_input_size": keys.size("hidden_size_per_layer_input", 256),
        "layer_input_vocab": keys.size("vocab_size_per_layer_input", 262144),
        LAYERS: layers,
    }


_GEMMA3N = by_parts(
    heads_of(256),
    tied(),
    biases(),
    normed_heads(),
    activation("hidden_activation", "gelu_pytorch_tanh"),
    _gemma3n,
    value_norm=True,
    mlp_bias=False,
    post_norms=True,
    embedding_scale=True,
    names="gemma",
)


def _gemma4(*more: Callable[[Keys], Fields]) -> Callable[[Keys], Decoder]:
    return by_parts(
        heads_of(256),
        tied(),
        biases(),
        normed_heads(),
        activation("hidden_activation", "gelu_pytorch_tanh"),
        _capped,
        *more,
        _layers,
        value_norm=True,
        mlp_bias=False,
        post_norms=True,
        embedding_scale=True,
        mixture_beside=True,
        names="gemma4",
    )


OF_GEMMA4: Mapping[str, Callable[[Keys], Decoder]] = MappingProxyType(
    {
        "gemma4_text": _gemma4(_experts, _inputs_of_layers),
        "gemma4_unified_text": _gemma4(),
        "gemma3n_text": _GEMMA3N,
    }
)
"""By ``model_type``."""
