"""A Llama-type decoder made of torch alone, as models are written: grouped-query attention, SwiGLU, RMSNorm, rotary positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True)
class DecoderSizes:
    """Sizes of a decoder."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocabulary: int
    dtype: torch.dtype = torch.bfloat16


SIZES = {
    "tiny": DecoderSizes(layers=2, hidden=64, heads=4, kv_heads=2, ffn=128, vocabulary=96, dtype=torch.float32),
    "1b": DecoderSizes(layers=16, hidden=2048, heads=32, kv_heads=8, ffn=8192, vocabulary=32000),
    "3b": DecoderSizes(layers=28, hidden=3072, heads=24, kv_heads=8, ffn=8192, vocabulary=32000),
}


class Norm(nn.Module):  # type: ignore[misc]
    """RMSNorm, in fp32 inside."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Any) -> Any:
        """Hidden states of mean square 1, weighted."""
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * self.weight


class Layer(nn.Module):  # type: ignore[misc]
    """Attention and the gated feed-forward network, each after a norm and beside a residual."""

    def __init__(self, sizes: DecoderSizes) -> None:
        super().__init__()
        h = sizes.hidden
        self.head_size = h // sizes.heads
        self.repeats = sizes.heads // sizes.kv_heads
        kv = sizes.kv_heads * self.head_size
        self.before_attention, self.before_ffn = Norm(h), Norm(h)
        self.q, self.o = nn.Linear(h, h, bias=False), nn.Linear(h, h, bias=False)
        self.k, self.v = nn.Linear(h, kv, bias=False), nn.Linear(h, kv, bias=False)
        self.gate, self.up = nn.Linear(h, sizes.ffn, bias=False), nn.Linear(h, sizes.ffn, bias=False)
        self.down = nn.Linear(sizes.ffn, h, bias=False)

    def forward(self, x: Any, cosines: Any, sines: Any) -> Any:
        """Hidden states ``[batch, length, hidden]`` after this layer."""
        batch, length, hidden = x.shape
        y = self.before_attention(x)
        q, k, v = (w(y).view(batch, length, -1, self.head_size).transpose(1, 2) for w in (self.q, self.k, self.v))
        q, k = _rotate(q, cosines, sines), _rotate(k, cosines, sines)
        k, v = (t.repeat_interleave(self.repeats, dim=1) for t in (k, v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(batch, length, hidden))
        y = self.before_ffn(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class TorchDecoder(nn.Module):  # type: ignore[misc]
    """The whole model. ``forward`` gives logits; :meth:`loss` the cross entropy of the next token."""

    def __init__(self, sizes: DecoderSizes, length: int, seed: int = 1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.hidden)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.layers))
        self.norm = Norm(sizes.hidden)
        self.head = nn.Linear(sizes.hidden, sizes.vocabulary, bias=False)
        size = sizes.hidden // sizes.heads
        angles = torch.outer(torch.arange(length).float(), 500_000.0 ** (-torch.arange(0, size, 2).float() / size)).repeat(1, 2)
        self.register_buffer("cosines", angles.cos())
        self.register_buffer("sines", angles.sin())
        generator = torch.Generator(device=self.head.weight.device).manual_seed(seed)
        with torch.no_grad():
            for weight in self.parameters():
                if weight.dim() > 1:
                    weight.normal_(0.0, 0.02, generator=generator)
        self.to(sizes.dtype)

    def forward(self, tokens: Any) -> Any:
        """Logits ``[batch, length, vocabulary]`` of tokens ``[batch, length]``."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.cosines, self.sines)
        return self.head(self.norm(x))

    def loss(self, tokens: Any, targets: Any) -> Any:
        """Cross entropy against ``targets`` ``[batch, length]``."""
        return functional.cross_entropy(self(tokens).flatten(0, 1).float(), targets.flatten())


def _rotate(x: Any, cosines: Any, sines: Any) -> Any:
    left, right = x.chunk(2, dim=-1)
    return x * cosines + torch.cat((-right, left), dim=-1) * sines
