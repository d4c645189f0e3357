"""DeepSeek-V4 from its ``config.json``: layers compress what is far in ways of their own, and
several sums go through them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from hosim.models.config import Decoder
from hosim.models.config_keys import Keys
from hosim.models.config_mixtures import mixture, no_dense, shared_wide
from hosim.models.config_parts import (
    LAYERS,
    Fields,
    by_parts,
    count_of_layers,
    heads_of,
    named_layers,
    only,
)

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
        if not isinstance(listed, list) or len(listed) < count or not {*listed} <= kinds.keys():
            raise keys.refusal(
                "compress_ratios",
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
    """The first layers choose experts by the token itself."""
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
