"""The ``config.json`` that a GGUF stands for: its metadata by llama.cpp's names, as the keys of
transformers that builders read.

Which names there are says ggml's page on GGUF, which of them an architecture has llama.cpp's
``gguf-py/gguf/constants.py``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from math import prod
from typing import Any

from hosim.errors import InputError
from hosim.io.importers.gguf_header import GgufHeader, read_gguf
from hosim.io.models import GGUF, INDEX, bytes_of
from hosim.plain_text import shown

Config = dict[str, Any]


def config_of_gguf(path: str | os.PathLike[str]) -> Config:
    """Return the ``config.json`` that the model in a GGUF would have, and the types of its weights.
    Raises :class:`InputError`.
    """
    source = os.fspath(path)
    header = read_gguf(source)
    said = _Metadata(header, source)
    arch = said.metadata.get("general.architecture")
    if not isinstance(arch, str) or arch not in ARCHITECTURES:
        near = get_close_matches(str(arch), ARCHITECTURES, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        known = ", ".join(ARCHITECTURES)
        message = (
            f"expected an architecture that hosim knows of GGUF files ({known}), got "
            f"{shown(arch, 60)}{hint}"
        )
        raise InputError(
            f"{message}; the model's config.json may be one that a builder knows",
            source=source,
            where="general.architecture",
        )
    config = {**said.common(), **ARCHITECTURES[arch](said)}
    weights = {name: (weight.type, prod(weight.shape)) for name, weight in header.weights.items()}
    total = sum([bytes_of(*weight) for weight in weights.values()])
    return {
        **{key: value for key, value in config.items() if value is not None},
        INDEX: {"metadata": {"total_size": total}},
        GGUF: {name: list(w) for name, w in weights.items()},
    }


class _Metadata:
    """The metadata of one architecture, each value checked as it is read."""

    def __init__(self, header: GgufHeader, source: str) -> None:
        self.metadata, self._weights, self._source = header.metadata, header.weights, source
        self.arch = header.metadata.get("general.architecture")

    def size(self, key: str, *, needed: bool = False) -> int | None:
        """A number; of an array for each layer the one that all of these have. Raises
        :class:`InputError`.
        """
        where = f"{self.arch}.{key}"
        value = self.metadata.get(where)
        if isinstance(value, list):
            if len(set(map(repr, value))) > 1:
                raise InputError("expected layers of one size, got several; the model's "
                    "config.json may be one that a builder knows",
                                 source=self._source, where=where)  # fmt: skip
            value = value[0] if value else None
        if value is None and not needed:
            return None
        if type(value) is not int or not 0 <= value <= 2**40:
            raise InputError(
                f"expected a number from 0 to 2^40, got {shown(value, 60)}",
                source=self._source,
                where=where,
            )
        return value

    def needed(self, key: str) -> int:
        """A number that has to be there."""
        found = self.size(key, needed=True)
        assert found is not None
        return found

    def has(self, weight: str) -> bool:
        """Return whether there is such a weight."""
        return weight in self._weights

    def common(self) -> Config:
        """Return the keys that all architectures have."""
        table = self._weights.get("token_embd.weight")
        if table is None or len(table.shape) != 2:
            raise InputError(
                "expected the weight token_embd.weight, of two dimensions",
                source=self._source,
                where="tensors",
            )
        further = self.size("nextn_predict_layers") or 0
        heads = self.needed("attention.head_count")
        return {
            "hidden_size": self.needed("embedding_length"),
            "num_hidden_layers": self.needed("block_count") - further,
            "num_nextn_predict_layers": further or None,
            "num_attention_heads": heads,
            "num_key_value_heads": self.size("attention.head_count_kv") or heads,
            "intermediate_size": self.size("feed_forward_length"),
            "vocab_size": table.shape[1],
            "max_position_embeddings": self.size("context_length"),
            "tie_word_embeddings": not self.has("output.weight"),
        }

    def head_dim(self) -> Config:
        """Return the width of heads. Raises :class:`InputError` where values have another width."""
        keys, values = self.size("attention.key_length"), self.size("attention.value_length")
        if None not in (keys, values) and keys != values:
            raise InputError(
                f"expected values as wide as keys, {keys}, got {values}",
                source=self._source,
                where=f"{self.arch}.attention.value_length",
            )
        return {"head_dim": keys}

    def bias(self) -> Config:
        """Return whether products of attention have one."""
        return {"attention_bias": self.has("blk.0.attn_q.bias")}

    def experts(self, count: str, width: str | None = "moe_intermediate_size") -> Config:
        """Experts, under the keys that a family has for them."""
        return {
            count: self.needed("expert_count"),
            "num_experts_per_tok": self.needed("expert_used_count"),
            **({} if width is None else {width: self.needed("expert_feed_forward_length")}),
        }


def _llama(said: _Metadata) -> Config:
    if said.size("expert_count"):
        return {
            "model_type": "mixtral",
            **said.experts("num_local_experts", None),
            **said.head_dim(),
        }
    return {"model_type": "llama", **said.bias(), **said.head_dim()}


def _qwen2(said: _Metadata) -> Config:
    return {"model_type": "qwen2", **said.head_dim()}


def _qwen3(said: _Metadata) -> Config:
    return {"model_type": "qwen3", **said.head_dim(), **said.bias()}


def _qwen2moe(said: _Metadata) -> Config:
    shared = said.needed("expert_shared_feed_forward_length")
    return {
        "model_type": "qwen2_moe",
        **said.head_dim(),
        **said.experts("num_experts"),
        "shared_expert_intermediate_size": shared,
    }


def _qwen3moe(said: _Metadata) -> Config:
    return {
        "model_type": "qwen3_moe",
        **said.head_dim(),
        **said.bias(),
        **said.experts("num_experts"),
    }


def _deepseek2(said: _Metadata) -> Config:
    """DeepSeek-V3 if scores are sigmoids (``expert_gating_func`` 2), else V2. Files with attention
    over latents say other lengths of keys.
    """
    turned = said.needed("rope.dimension_count")
    keys = said.size("attention.key_length_mla") or said.needed("attention.key_length")
    return {
        "model_type": "deepseek_v3" if said.size("expert_gating_func") == 2 else "deepseek_v2",
        "num_key_value_heads": said.needed("attention.head_count"),
        "q_lora_rank": said.size("attention.q_lora_rank"),
        "kv_lora_rank": said.needed("attention.kv_lora_rank"),
        "qk_nope_head_dim": keys - turned,
        "qk_rope_head_dim": turned,
        "v_head_dim": said.size("attention.value_length_mla")
        or said.needed("attention.value_length"),
        **said.experts("n_routed_experts"),
        "n_shared_experts": said.size("expert_shared_count"),
        "first_k_dense_replace": said.size("leading_dense_block_count"),
        "n_group": said.size("expert_group_count"),
    }


def _gpt_oss(said: _Metadata) -> Config:
    window = said.size("attention.sliding_window")
    return {
        "model_type": "gpt_oss",
        **said.head_dim(),
        **said.experts("num_local_experts", "intermediate_size"),
        "sliding_window": window,
    }


def _gemma3(said: _Metadata) -> Config:
    return {
        "model_type": "gemma3_text",
        **said.head_dim(),
        "sliding_window": said.size("attention.sliding_window"),
    }


def _phimoe(said: _Metadata) -> Config:
    more = {"lm_head_bias": said.has("output.bias"), **said.bias(), **said.head_dim()}
    return {"model_type": "phimoe", **said.experts("num_local_experts", None), **more}


ARCHITECTURES: Mapping[str, Callable[[_Metadata], Config]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen2moe": _qwen2moe,
    "qwen3moe": _qwen3moe,
    "deepseek2": _deepseek2,
    "gpt-oss": _gpt_oss,
    "gemma3": _gemma3,
    "phimoe": _phimoe,
}
"""By ``general.architecture``."""
