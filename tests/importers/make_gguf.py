"""Writes small GGUF files byte by byte, as ggml's page on GGUF has them, without any code of
hosim.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

TYPES = {
    "F32": 0,
    "F16": 1,
    "Q4_0": 2,
    "Q8_0": 8,
    "Q4_K": 12,
    "Q5_K": 13,
    "Q6_K": 14,
    "IQ4_NL": 20,
    "IQ4_XS": 23,
    "BF16": 30,
    "MXFP4": 39,
}
BITS = {
    "F32": 32,
    "F16": 16,
    "Q4_0": 4.5,
    "Q8_0": 8.5,
    "Q4_K": 4.5,
    "Q5_K": 5.5,
    "Q6_K": 6.5625,
    "IQ4_NL": 4.5,
    "IQ4_XS": 4.25,
    "BF16": 16,
}
BITS |= {"MXFP4": 4.25}
"""Bits of an element, as llama.cpp's own tables of quantisations give them."""

Weights = Mapping[str, tuple[str, Sequence[int]]]


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def value_of(value: Any) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + text(value)
    if value and isinstance(value[0], str):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
    return struct.pack("<IIQ", 9, 5, len(value)) + struct.pack(f"<{len(value)}i", *value)


def gguf(metadata: Mapping[str, Any], weights: Weights, version: int = 3) -> bytes:
    """A header alone; dimensions are listed as ggml lists them, the contiguous one first."""
    made = b"GGUF" + struct.pack("<IQQ", version, len(weights), len(metadata))
    for key, value in metadata.items():
        made += text(key) + value_of(value)
    place = 0
    for name, (kind, shape) in weights.items():
        made += (
            text(name)
            + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
            + struct.pack("<IQ", TYPES[kind], place)
        )
        place += size_of({name: (kind, shape)})
    return made


def size_of(weights: Weights) -> int:
    total = 0.0
    for kind, shape in weights.values():
        elements = 1
        for extent in shape:
            elements *= extent
        total += elements * BITS[kind] / 8
    assert total == int(total)
    return int(total)


def told(arch: str, **keys: Any) -> dict[str, Any]:
    """The metadata of a model: 2 layers of 256, 4 heads of 64 beside 2 of keys, a vocabulary of
    512.
    """
    common = {
        "block_count": 2,
        "context_length": 4096,
        "embedding_length": 256,
        "feed_forward_length": 512,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.key_length": 64,
        "attention.value_length": 64,
    }
    given = {key.replace("__", "."): value for key, value in keys.items()}
    said = {
        f"{arch}.{key}": value for key, value in {**common, **given}.items() if value is not None
    }
    return {
        "general.architecture": arch,
        **said,
        "tokenizer.ggml.tokens": ["a", "bc"] * 256,
        "tokenizer.ggml.scores": [0] * 5000,
    }


def attention(
    n: int, kind: str = "Q4_K", *, bias: bool = False, norms: bool = False
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Queries, keys and values of which the last are in more bits, as Q4_K_M has them."""
    made: dict[str, tuple[str, tuple[int, ...]]] = {
        f"blk.{n}.attn_norm.weight": ("F32", (256,)),
        f"blk.{n}.attn_q.weight": (kind, (256, 256)),
        f"blk.{n}.attn_k.weight": (kind, (256, 128)),
        f"blk.{n}.attn_v.weight": ("Q6_K" if kind == "Q4_K" else kind, (256, 128)),
        f"blk.{n}.attn_output.weight": (kind, (256, 256)),
    }
    if bias:
        made |= {
            f"blk.{n}.attn_{name}.bias": ("F32", (wide,))
            for name, wide in (("q", 256), ("k", 128), ("v", 128))
        }
    if norms:
        made |= {f"blk.{n}.attn_{name}_norm.weight": ("F32", (64,)) for name in "qk"}
    return made


def dense(n: int, width: int = 512) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {
        f"blk.{n}.ffn_norm.weight": ("F32", (256,)),
        f"blk.{n}.ffn_gate.weight": ("Q4_K", (256, width)),
        f"blk.{n}.ffn_up.weight": ("Q4_K", (256, width)),
        f"blk.{n}.ffn_down.weight": ("Q6_K", (width, 256)),
    }


def experts(
    n: int, kind: str = "Q4_K", down: str = "Q6_K", width: int = 256
) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {
        f"blk.{n}.ffn_norm.weight": ("F32", (256,)),
        f"blk.{n}.ffn_gate_inp.weight": ("F32", (256, 8)),
        f"blk.{n}.ffn_gate_exps.weight": (kind, (256, width, 8)),
        f"blk.{n}.ffn_up_exps.weight": (kind, (256, width, 8)),
        f"blk.{n}.ffn_down_exps.weight": (down, (width, 256, 8)),
    }


def around(inside: Weights, *, tied: bool = False) -> dict[str, tuple[str, Sequence[int]]]:
    head = {} if tied else {"output.weight": ("Q6_K", (256, 512))}
    return {
        "token_embd.weight": ("Q4_K", (256, 512)),
        **inside,
        "output_norm.weight": ("F32", (256,)),
        **head,
    }


def _layers(make: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {name: weight for n in range(2) for name, weight in make(n).items()}


def _latent(n: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Of DeepSeek, with the halves of ``kv_b`` apart: 4 heads of 64 + 32 keys and 64 values,
    latents of 128.
    """
    return {
        f"blk.{n}.attn_norm.weight": ("F32", (256,)),
        f"blk.{n}.attn_q_a.weight": ("Q8_0", (256, 96)),
        f"blk.{n}.attn_q_a_norm.weight": ("F32", (96,)),
        f"blk.{n}.attn_q_b.weight": ("Q8_0", (96, 4 * 96)),
        f"blk.{n}.attn_kv_a_mqa.weight": ("Q8_0", (256, 160)),
        f"blk.{n}.attn_kv_a_norm.weight": ("F32", (128,)),
        f"blk.{n}.attn_k_b.weight": ("Q8_0", (64, 128, 4)),
        f"blk.{n}.attn_v_b.weight": ("Q8_0", (128, 64, 4)),
        f"blk.{n}.attn_output.weight": ("Q8_0", (256, 256)),
    }


def _deepseek(n: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    if n == 0:
        return {**_latent(n), **dense(n)}
    shared = {
        f"blk.{n}.ffn_{name}_shexp.weight": ("Q4_K", (256, 256)) for name in ("gate", "up", "down")
    }
    return {**_latent(n), **experts(n), **shared, f"blk.{n}.exp_probs_b.bias": ("F32", (8,))}


def _qwen2moe(n: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    shared = {
        f"blk.{n}.ffn_{name}_shexp.weight": ("Q4_K", (256, 256)) for name in ("gate", "up", "down")
    }
    return {
        **attention(n, bias=True),
        **experts(n),
        **shared,
        f"blk.{n}.ffn_gate_inp_shexp.weight": ("F32", (256,)),
    }


def _gpt_oss(n: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    made = {**attention(n, "Q8_0", bias=True), **experts(n, "MXFP4", "MXFP4")}
    made[f"blk.{n}.post_attention_norm.weight"] = made.pop(f"blk.{n}.ffn_norm.weight")
    biases: dict[str, tuple[int, ...]] = {
        f"ffn_{name}_exps": (256, 8) for name in ("gate", "up", "down")
    }
    biases |= {"ffn_gate_inp": (8,), "attn_output": (256,)}
    return {
        **made,
        **{f"blk.{n}.{name}.bias": ("F32", wide) for name, wide in biases.items()},
        f"blk.{n}.attn_sinks.weight": ("F32", (4,)),
    }


def _gemma3(n: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    after = {
        f"blk.{n}.{name}.weight": ("F32", (256,))
        for name in ("post_attention_norm", "post_ffw_norm")
    }
    return {**attention(n, norms=True), **dense(n), **after}


_EXPERTS = {"expert_count": 8, "expert_used_count": 2}
_LATENT = {
    "attention__key_length": 160,
    "attention__value_length": 128,
    "attention__key_length_mla": 96,
    "attention__value_length_mla": 64,
}
_LATENT |= {
    "attention__q_lora_rank": 96,
    "attention__kv_lora_rank": 128,
    "rope__dimension_count": 32,
    "attention__head_count_kv": 1,
}

MODELS: dict[str, tuple[dict[str, Any], dict[str, tuple[str, Sequence[int]]]]] = {
    "llama": (
        told("llama"),
        around(
            {**_layers(lambda n: {**attention(n), **dense(n)}), "rope_freqs.weight": ("F32", (32,))}
        ),
    ),
    "mixtral": (
        told("llama", **_EXPERTS, feed_forward_length=256),
        around(_layers(lambda n: {**attention(n), **experts(n)})),
    ),
    "qwen2": (
        told("qwen2"),
        around(_layers(lambda n: {**attention(n, bias=True), **dense(n)}), tied=True),
    ),
    "qwen3": (told("qwen3"), around(_layers(lambda n: {**attention(n, norms=True), **dense(n)}))),
    "qwen2moe": (
        told(
            "qwen2moe",
            **_EXPERTS,
            expert_feed_forward_length=256,
            expert_shared_feed_forward_length=256,
        ),
        around(_layers(_qwen2moe)),
    ),
    "qwen3moe": (
        told("qwen3moe", **_EXPERTS, expert_feed_forward_length=256),
        around(_layers(lambda n: {**attention(n, norms=True), **experts(n)})),
    ),
    "deepseek2": (
        told(
            "deepseek2",
            **_EXPERTS,
            **_LATENT,
            expert_feed_forward_length=256,
            expert_shared_count=1,
            expert_gating_func=2,
        )
        | {"deepseek2.leading_dense_block_count": 1, "deepseek2.expert_group_count": 4},
        around(_layers(_deepseek)),
    ),
    "gpt-oss": (
        told("gpt-oss", **_EXPERTS, expert_feed_forward_length=256, attention__sliding_window=128),
        around(_layers(_gpt_oss)),
    ),
    "gemma3": (told("gemma3", attention__sliding_window=512), around(_layers(_gemma3), tied=True)),
}
"""A model of each architecture: its metadata, and its weights."""
