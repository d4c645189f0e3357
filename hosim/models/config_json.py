"""The sizes of a model from its public ``config.json``, as transformers writes it.

Keys that change neither sizes nor work are passed over. One that does, and that no builder knows, is an error: a model that is built
without it would be another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from hosim.errors import InputError
from hosim.models.bert import Bert
from hosim.models.config import Decoder, Layered
from hosim.models.gpt2 import Gpt2
from hosim.models.t5 import T5
from hosim.models.vision import Vit

_MISSING = object()


def sizes_of(config: Mapping[str, Any]) -> tuple[Layered, Mapping[str, Any]]:
    """The sizes that a ``config.json`` describes.

    Parameters
    ----------
    config
        What the file has, with ``model_type`` among it.

    Returns
    -------
    tuple
        Sizes for the builder of the model's family, and the part of ``config`` that they are from.

    Raises
    ------
    InputError
        If no builder knows the model's type, a size is missing or is not a number, or a key asks for what the builder does not have.

    References
    ----------
    The configuration classes of transformers, from which the defaults of optional keys are.

    Examples
    --------
    >>> from hosim.models.config_json import sizes_of
    >>> sizes, read = sizes_of({"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "torch_dtype": "float32"})
    >>> sizes.vocab_size, sorted(read)
    (50257, ['model_type', 'n_embd', 'n_head', 'n_layer'])
    """
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in _READ:
        raise InputError(f"expected a model_type that a builder knows, one of {', '.join(_READ)}; got {kind!r}", where="model_type")
    keys = _Keys(config)
    return _READ[kind](keys), {"model_type": kind, **keys.read}


class _Keys:
    """The values of a config, each checked as it is read; ``read`` has those that were there."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config
        self.read: dict[str, Any] = {}

    def _value(self, key: str) -> Any:
        """The value of a key, ``None`` where there is none."""
        value = self._config.get(key)
        if value is not None:
            self.read[key] = value
        return value

    def size(self, key: str, default: object = _MISSING, least: int = 1) -> int:
        """A number, ``least`` or more; ``default`` where the key is missing or null."""
        value = self._value(key)
        value = default if value is None else value
        if value is _MISSING:
            raise InputError("expected a number, the config has none", where=key)
        if type(value) is not int or not (least <= value <= 2**40 or value == default):
            raise InputError(f"expected a number from {least} to 2^40, got {value!r}", where=key)
        return value

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._value(key)
        value = default if value is None else value
        if type(value) is not bool:
            raise InputError(f"expected true or false, got {value!r}", where=key)
        return value

    def share(self, key: str, default: float) -> float:
        """A number from 0 to 1."""
        value = self._value(key)
        value = default if value is None else value
        if type(value) not in (int, float) or not 0 <= value <= 1:
            raise InputError(f"expected a number from 0 to 1, got {value!r}", where=key)
        return float(value)

    def only(self, **expected: object) -> None:
        """Raise :class:`InputError` for a key whose value is none of those that the builder has; a missing one is as expected."""
        for key, value in expected.items():
            known = value if isinstance(value, tuple) else (value,)
            got = self._value(key)
            if got is not None and got not in known:
                raise InputError(f"the builder knows {' or '.join(map(repr, known))} only, got {got!r}", where=key)

    def window(self) -> int:
        """How many keys a query sees; 0 where it sees all before it, also where the model has no more positions than the window."""
        if not self.flag("use_sliding_window", True):
            return 0
        window = self.size("sliding_window", 0, 0)
        return 0 if window >= self.size("max_position_embeddings", 2**40) else window


def _decoder(keys: _Keys, **more: Any) -> Decoder:
    """What all decoders with rotary positions and gated MLPs have."""
    keys.only(hidden_act="silu", mlp_bias=False)
    hidden, heads = keys.size("hidden_size"), keys.size("num_attention_heads")
    return Decoder(
        **{
            "hidden_size": hidden,
            "num_hidden_layers": keys.size("num_hidden_layers"),
            "num_attention_heads": heads,
            "num_key_value_heads": keys.size("num_key_value_heads", heads),
            "intermediate_size": keys.size("intermediate_size"),
            "vocab_size": keys.size("vocab_size"),
            "head_dim": keys.size("head_dim", hidden // heads),
            "tie_word_embeddings": keys.flag("tie_word_embeddings", False),
            **more,
        }
    )


def _llama(keys: _Keys) -> Decoder:
    keys.only(attention_bias=False)
    return _decoder(keys)


def _mistral(keys: _Keys) -> Decoder:
    return _decoder(keys, sliding_window=keys.window())


def _mixtral(keys: _Keys) -> Decoder:
    return _decoder(
        keys,
        sliding_window=keys.window(),
        num_experts=keys.size("num_local_experts", 8),
        num_experts_per_tok=keys.size("num_experts_per_tok", 2),
        moe_intermediate_size=keys.size("intermediate_size"),
    )


def _qwen2(keys: _Keys) -> Decoder:
    keys.only(use_sliding_window=False)
    return _decoder(keys, qkv_bias=True)


def _qwen3(keys: _Keys) -> Decoder:
    keys.only(use_sliding_window=False, attention_bias=False)
    return _decoder(keys, head_dim=keys.size("head_dim", 128), qk_norm=True)


def _qwen3_moe(keys: _Keys) -> Decoder:
    keys.only(use_sliding_window=False, attention_bias=False, decoder_sparse_step=1, mlp_only_layers=[])
    return _decoder(
        keys,
        qk_norm=True,
        num_experts=keys.size("num_experts", keys.size("num_local_experts", 128)),
        num_experts_per_tok=keys.size("num_experts_per_tok", 8),
        moe_intermediate_size=keys.size("moe_intermediate_size", 768),
    )


def _deepseek(keys: _Keys) -> Decoder:
    """DeepSeek-V3: a router of sigmoid scores and groups. Its prediction of several tokens is left out, as transformers has it."""
    keys.only(attention_bias=False, moe_layer_freq=1)
    return _decoder(keys, n_group=keys.size("n_group", 8, 0), **_latent(keys), **_shared_experts(keys, 3))


def _deepseek_v2(keys: _Keys) -> Decoder:
    """Its router is a softmax."""
    keys.only(attention_bias=False, moe_layer_freq=1)
    return _decoder(keys, **_latent(keys), **_shared_experts(keys, 0))


def _latent(keys: _Keys) -> dict[str, int]:
    names = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    turned = keys.size("qk_rope_head_dim")
    return {"q_lora_rank": keys.size("q_lora_rank", 0, 0), "head_dim": turned, **{name: keys.size(name) for name in names}}


def _shared_experts(keys: _Keys, dense: int) -> dict[str, int]:
    return {
        "num_experts": keys.size("n_routed_experts"),
        "num_experts_per_tok": keys.size("num_experts_per_tok"),
        "moe_intermediate_size": keys.size("moe_intermediate_size"),
        "n_shared_experts": keys.size("n_shared_experts", 0, 0),
        "first_k_dense_replace": keys.size("first_k_dense_replace", dense, 0),
    }


def _gpt2(keys: _Keys) -> Gpt2:
    width = keys.size("n_embd")
    keys.only(n_inner=4 * width, activation_function="gelu_new", tie_word_embeddings=True)
    return Gpt2(
        width,
        keys.size("n_layer"),
        keys.size("n_head"),
        keys.size("vocab_size", 50257),
        keys.size("n_positions", 1024),
        keys.share("resid_pdrop", 0.1),
    )


def _encoder(keys: _Keys) -> dict[str, int]:
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    return {name: keys.size(name) for name in names}


def _bert(keys: _Keys) -> Bert:
    keys.only(hidden_act="gelu", position_embedding_type="absolute")
    return Bert(
        **_encoder(keys),
        vocab_size=keys.size("vocab_size"),
        max_position_embeddings=keys.size("max_position_embeddings", 512),
        type_vocab_size=keys.size("type_vocab_size", 2),
        dropout=keys.share("hidden_dropout_prob", 0.1),
    )


def _vit(keys: _Keys) -> Vit:
    keys.only(hidden_act="gelu", qkv_bias=True)
    return Vit(
        **_encoder(keys),
        image_size=keys.size("image_size", 224),
        patch_size=keys.size("patch_size", 16),
        num_channels=keys.size("num_channels", 3),
    )


def _t5(keys: _Keys) -> T5:
    layers = keys.size("num_layers")
    keys.only(num_decoder_layers=layers, feed_forward_proj="relu", tie_word_embeddings=True)
    return T5(
        d_model=keys.size("d_model"),
        num_layers=layers,
        num_heads=keys.size("num_heads"),
        d_kv=keys.size("d_kv", 64),
        d_ff=keys.size("d_ff"),
        vocab_size=keys.size("vocab_size", 32128),
        relative_attention_num_buckets=keys.size("relative_attention_num_buckets", 32),
        dropout=keys.share("dropout_rate", 0.1),
    )


_READ: Mapping[str, Callable[[_Keys], Layered]] = MappingProxyType(
    {
        "llama": _llama,
        "mistral": _mistral,
        "mixtral": _mixtral,
        "qwen2": _qwen2,
        "qwen3": _qwen3,
        "qwen3_moe": _qwen3_moe,
        "deepseek_v2": _deepseek_v2,
        "deepseek_v3": _deepseek,
        "gpt2": _gpt2,
        "bert": _bert,
        "vit": _vit,
        "t5": _t5,
    }
)
"""By ``model_type``."""
