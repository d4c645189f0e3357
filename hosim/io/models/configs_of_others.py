"""The sizes of encoders, of encoder-decoder models, and of models of images, from their
``config.json``.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from hosim.io.models.bert import Bert
from hosim.io.models.config import Decoder, Layered
from hosim.io.models.config_keys import Keys
from hosim.io.models.config_parts import (
    LAYERS,
    Fields,
    activation,
    biases,
    by_parts,
    capped,
    count_of_layers,
    heads_of,
    mixture,
    named_layers,
    no_dense,
    normed_heads,
    only,
    shared_wide,
    tied,
)
from hosim.io.models.t5 import T5
from hosim.io.models.vision import Vit
from hosim.io.models.whisper import Whisper


def _full_layer(keys: Keys) -> Fields:
    """Return the fields that differ in a layer that sees all keys: its heads are wider, and there
    may be fewer.
    """
    found: Fields = {"head_dim": keys.size("global_head_dim", 512)}
    if (
        keys.flag("attention_k_eq_v", False)
        and keys.value("num_global_key_value_heads") is not None
    ):
        found["num_key_value_heads"] = keys.size("num_global_key_value_heads")
    return found


def _full_layers(keys: Keys, full: Sequence[bool]) -> Mapping[int, Fields]:
    """The fields of each such layer, by number. ``per_layer_config`` has them as transformers saves
    them; the numbers are padded to the digits of the last.
    """
    said = keys.value("per_layer_config")
    if said is None:
        return dict.fromkeys([n for n, sees_all in enumerate(full) if sees_all], _full_layer(keys))
    listed = keys.inside("per_layer_config")
    found: dict[int, Fields] = {}
    for key in said:
        n, own = int(key) if str(key).isdecimal() else -1, listed.inside(key)
        names = {name for name in said[key] if own.value(name) is not None}
        listed.refuse(
            key,
            not 0 <= n < len(full) or not full[n] or names - {"head_dim", "num_key_value_heads"},
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
    keys.refuse(
        "num_kv_shared_layers",
        first <= 0 or {*full[:first]} != {*full},
        f"expected layers of each kind that make keys, got {count - first} of {count} that share",
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


def _inputs_of_layers(keys: Keys) -> Fields:
    width = keys.size("hidden_size_per_layer_input", 256, 0)
    return {
        "layer_input_size": width,
        "layer_input_vocab": keys.size("vocab_size_per_layer_input", 262144) if width else 0,
    }


def _experts(keys: Keys) -> Fields:
    return mixture()(keys) if keys.flag("enable_moe_block", False) else {}


def _gemma3n(keys: Keys) -> Fields:
    """Every fifth layer sees all keys, the last layers share theirs, and MLPs may
    differ in width.
    """
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
    keys.refuse(
        "intermediate_size",
        len(widths) < count or not all([type(width) is int and width > 0 for width in widths]),
        f"expected the widths of {count} layers, got {widths!r}",
    )
    keys.refuse(
        "num_kv_shared_layers",
        first <= 0 or not all([layer in listed[:first] for layer in listed]),
        f"expected layers of each kind that make keys, got {count - first} of {count} that share",
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
        only(use_bidirectional_attention="vision"),
        capped,
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


# -- configs of deepseek4
# --------------------------------------------------------------------------------------------------
# DeepSeek-V4 from its ``config.json``: layers compress distant tokens in different ways, and
# several residual streams go through them.

_SPARSE, _HEAVY, _NEAR = (
    "compressed_sparse_attention",
    "heavily_compressed_attention",
    "sliding_attention",
)


def _attention(keys: Keys) -> Fields:
    rates, count = keys.inside("compress_rates"), count_of_layers(keys)
    sparse = rates.size(_SPARSE, keys.size("compress_rate_csa", 4))
    heavy = rates.size(_HEAVY, keys.size("compress_rate_hca", 128))
    known: dict[str, Fields] = {
        _SPARSE: {"compress_rate": sparse},
        _HEAVY: {"compress_rate": heavy, "index_n_heads": 0},
        _NEAR: {"compress_rate": 0, "index_n_heads": 0},
    }
    listed = keys.value("compress_ratios")
    if listed is not None and keys.value("layer_types") is None:
        kinds = {4: known[_SPARSE], 128: known[_HEAVY], 0: known[_NEAR]}
        keys.refuse(
            "compress_ratios",
            not isinstance(listed, list) or len(listed) < count or not {*listed} <= kinds.keys(),
            f"expected one of 0, 4 and 128 for each of {count} layers, got {listed!r}",
        )
        layers = [kinds[ratio] for ratio in listed[:count]]
    else:
        layers = named_layers(
            keys, "layer_types", known, lambda n: _HEAVY if n < 2 or n % 2 == 0 else _SPARSE
        )
    return {
        "num_key_value_heads": 1,
        "q_lora_rank": keys.size("q_lora_rank", 1024),
        "sliding_window": keys.size("sliding_window", 128),
        "output_groups": keys.size("o_groups", 8),
        "output_rank": keys.size("o_lora_rank", 1024),
        "index_n_heads": keys.size("index_n_heads", 64),
        "index_head_dim": keys.size("index_head_dim", 128),
        "index_topk": keys.size("index_topk", 512),
        "rotary_width": keys.size("qk_rope_head_dim", max(2, keys.size("head_dim", 512) // 8)),
        "streams": keys.size("hc_mult", 4),
        LAYERS: layers,
    }


def _routers(keys: Keys) -> Fields:
    """The first layers choose experts by the token's number."""
    keys.only(scoring_func="sqrtsoftplus")
    first = keys.size("num_hash_layers", 3, 0)
    known: dict[str, Fields] = {
        "hash_moe": {"router_correction": "none"},
        "moe": {"router_correction": "buffer"},
    }
    return {
        LAYERS: named_layers(
            keys, "mlp_layer_types", known, lambda n: "hash_moe" if n < first else "moe"
        )
    }


OF_DEEPSEEK4: Mapping[str, Callable[[Keys], Decoder]] = MappingProxyType(
    {
        "deepseek_v4": by_parts(
            only(attention_bias=False),
            heads_of(512),
            no_dense,
            mixture(6, count=256, scores="sigmoid"),
            shared_wide("moe_intermediate_size"),
            _attention,
            _routers,
            attention_sinks=True,
        )
    }
)
"""By ``model_type``."""


def _encoder(keys: Keys) -> dict[str, int]:
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    sizes = {name: keys.size(name) for name in names}
    keys.refuse(
        "hidden_size",
        sizes["hidden_size"] % sizes["num_attention_heads"],
        f"expected a multiple of the {sizes['num_attention_heads']} heads, got "
        f"{sizes['hidden_size']}",
    )
    return sizes


def _bert(keys: Keys) -> Bert:
    keys.only(
        hidden_act="gelu",
        position_embedding_type="absolute",
        tie_word_embeddings=True,
        add_cross_attention=False,
    )
    return Bert(
        **_encoder(keys),
        vocab_size=keys.size("vocab_size"),
        max_position_embeddings=keys.size("max_position_embeddings", 512),
        type_vocab_size=keys.size("type_vocab_size", 2),
        dropout=keys.share("hidden_dropout_prob", 0.1),
    )


def _vit(keys: Keys) -> Vit:
    keys.only(hidden_act="gelu", qkv_bias=True)
    return Vit(
        **_encoder(keys),
        image_size=keys.size("image_size", 224),
        patch_size=keys.size("patch_size", 16),
        num_channels=keys.size("num_channels", 3),
        num_labels=keys.entries("id2label", "num_labels", 1000),
    )


def _t5(keys: Keys) -> T5:
    keys.only(feed_forward_proj=("relu", "gated-gelu"))
    return _t5_of(
        keys,
        gated=keys.value("feed_forward_proj") == "gated-gelu",
        tied=keys.flag("tie_word_embeddings", True),
        vocab=32128,
    )


def _mt5(keys: Keys) -> T5:
    keys.only(feed_forward_proj="gated-gelu")
    return _t5_of(keys, gated=True, tied=keys.flag("tie_word_embeddings", False), vocab=250112)


def _t5_of(keys: Keys, *, gated: bool, tied: bool, vocab: int) -> T5:
    keys.only(is_gated_act=gated)
    layers = keys.size("num_layers")
    decoder_layers = keys.size("num_decoder_layers", layers)
    return T5(
        d_model=keys.size("d_model"),
        num_layers=layers,
        num_heads=keys.size("num_heads"),
        d_kv=keys.size("d_kv", 64),
        d_ff=keys.size("d_ff"),
        vocab_size=keys.size("vocab_size", vocab),
        relative_attention_num_buckets=keys.size("relative_attention_num_buckets", 32),
        dropout=keys.share("dropout_rate", 0.1),
        num_decoder_layers=0 if decoder_layers == layers else decoder_layers,
        gated=gated,
        tie_word_embeddings=tied,
    )


def _whisper(keys: Keys) -> Whisper:
    keys.only(activation_function="gelu", tie_word_embeddings=True)
    parts = [
        f"{half}_{part}"
        for half in ("encoder", "decoder")
        for part in ("layers", "attention_heads", "ffn_dim")
    ]
    return Whisper(
        d_model=keys.size("d_model"),
        **{part: keys.size(part) for part in parts},
        vocab_size=keys.size("vocab_size", 51865),
        num_mel_bins=keys.size("num_mel_bins", 80),
        max_source_positions=keys.size("max_source_positions", 1500),
        max_target_positions=keys.size("max_target_positions", 448),
        dropout=keys.share("dropout", 0.0),
    )


OTHERS: Mapping[str, Callable[[Keys], Layered]] = MappingProxyType(
    {"bert": _bert, "vit": _vit, "t5": _t5, "mt5": _mt5, "whisper": _whisper}
)
"""By ``model_type``."""
