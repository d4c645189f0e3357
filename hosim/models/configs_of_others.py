"""The sizes of encoders, of encoders with a decoder, and of models of images, from their
``config.json``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from hosim.models.bert import Bert
from hosim.models.config import Layered
from hosim.models.config_keys import Keys
from hosim.models.t5 import T5
from hosim.models.vision import Vit
from hosim.models.whisper import Whisper


def _encoder(keys: Keys) -> dict[str, int]:
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    sizes = {name: keys.size(name) for name in names}
    if sizes["hidden_size"] % sizes["num_attention_heads"]:
        raise keys.refusal(
            "hidden_size",
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
