"""A Llama-type decoder as functions of its weights: grouped-query attention, SwiGLU, RMSNorm,
rotary positions.

The weights of the embedding, of each layer and of the head are one flat tensor each (a *group*):
one storage, which a scheme moves as a whole.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

DTYPE = torch.bfloat16
_EPSILON = 1e-5
_THETA = 500_000.0


@dataclass(frozen=True)
class Config:
    """Sizes of a decoder."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocabulary: int

    @property
    def head_size(self) -> int:
        """Elements of a head."""
        return self.hidden // self.heads

    @property
    def embedding_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Weights of the first group."""
        return ((self.vocabulary, self.hidden),)

    @property
    def layer_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Weights of a layer: norm, q, k, v, o, norm, gate, up, down."""
        h, kv, f = self.hidden, self.kv_heads * self.head_size, self.ffn
        return (h,), (h, h), (kv, h), (kv, h), (h, h), (h,), (f, h), (f, h), (h, f)

    @property
    def head_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Weights of the last group: norm and output matrix."""
        return (self.hidden,), (self.vocabulary, self.hidden)

    @property
    def layer_parameters(self) -> int:
        """Number of weights of a layer."""
        return count(self.layer_shapes)

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return (
            count(self.embedding_shapes)
            + self.layers * self.layer_parameters
            + count(self.head_shapes)
        )


CONFIGS = {
    config.name: config
    for config in (
        Config("tiny", layers=4, hidden=32, heads=4, kv_heads=2, ffn=64, vocabulary=96),
        Config("1b", layers=16, hidden=2048, heads=32, kv_heads=8, ffn=8192, vocabulary=32000),
        Config("3b", layers=28, hidden=3072, heads=24, kv_heads=8, ffn=8192, vocabulary=32000),
    )
}


def count(shapes: Sequence[tuple[int, ...]]) -> int:
    """Elements of weights of these shapes."""
    return sum(math.prod(shape) for shape in shapes)


def initialize(weights: Sequence[Any], seed: int) -> None:
    """Fill the weights of a group: norms with ones, matrices with normal numbers of deviation 0.02.
    A seed gives the same weights.
    """
    generator = torch.Generator(device=weights[0].device).manual_seed(seed)
    for weight in weights:
        if weight.dim() == 1:
            weight.fill_(1.0)
        else:
            weight.normal_(0.0, 0.02, generator=generator)


def views(flat: Any, shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    """The weights in a flat group."""
    result = []
    start = 0
    for shape in shapes:
        size = math.prod(shape)
        result.append(flat[start : start + size].view(shape))
        start += size
    return result


def rotary(config: Config, length: int, device: Any) -> tuple[Any, Any]:
    """Cosines and sines of the positions, ``[length, head_size]``."""
    exponents = (
        torch.arange(0, config.head_size, 2, dtype=torch.float32, device=device) / config.head_size
    )
    angles = torch.outer(
        torch.arange(length, dtype=torch.float32, device=device), _THETA**-exponents
    )
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().to(DTYPE), angles.sin().to(DTYPE)


def embed(weights: Sequence[Any], tokens: Any) -> Any:
    """Hidden states ``[batch, length, hidden]`` of tokens ``[batch, length]``."""
    return functional.embedding(tokens, weights[0])


def layer(
    config: Config, weights: Sequence[Any], x: Any, positions: tuple[Any, Any]
) -> tuple[Any, Any, Any]:
    """One layer: its output, and its keys and values ``[batch, kv_heads, length, head_size]``."""
    norm, wq, wk, wv, wo, ffn_norm, gate, up, down = weights
    batch, length, _ = x.shape
    y = _normalize(x, norm)
    q, k, v = (
        functional.linear(y, w).view(batch, length, -1, config.head_size).transpose(1, 2)
        for w in (wq, wk, wv)
    )
    q, k = _rotate(q, positions), _rotate(k, positions)
    y = functional.scaled_dot_product_attention(
        q, _repeat(config, k), _repeat(config, v), is_causal=True
    )
    x = x + functional.linear(y.transpose(1, 2).reshape(batch, length, config.hidden), wo)
    y = _normalize(x, ffn_norm)
    x = x + functional.linear(
        functional.silu(functional.linear(y, gate)) * functional.linear(y, up), down
    )
    return x, k, v


def logits(weights: Sequence[Any], x: Any) -> Any:
    """Logits of the hidden states."""
    return functional.linear(_normalize(x, weights[0]), weights[1])


def loss(weights: Sequence[Any], x: Any, targets: Any) -> Any:
    """Cross entropy against the targets ``[batch, length]``."""
    return functional.cross_entropy(logits(weights, x).flatten(0, 1).float(), targets.flatten())


def _normalize(x: Any, weight: Any) -> Any:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + _EPSILON)).to(
        x.dtype
    ) * weight


def _rotate(x: Any, positions: tuple[Any, Any]) -> Any:
    cosines, sines = positions
    left, right = x.chunk(2, dim=-1)
    return x * cosines + torch.cat((-right, left), dim=-1) * sines


def _repeat(config: Config, x: Any) -> Any:
    """Each key or value head, once for every query head that it serves."""
    times = config.heads // config.kv_heads
    batch, heads, length, size = x.shape
    return (
        x[:, :, None]
        .expand(batch, heads, times, length, size)
        .reshape(batch, heads * times, length, size)
    )
