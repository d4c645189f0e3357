"""The keys and values that a decoder keeps of earlier tokens: whole, or in blocks of which attention reads some."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hosim.costmodel.kernels.sizes_of_ops import NO_WINDOW
from hosim.models.config import Decoder, Run, key_heads
from hosim.models.packed import CACHES, FOR_TRANSFER, PACKINGS
from hosim.models.tape import Tape, Value


@dataclass(frozen=True, slots=True)
class Cache:
    """One layer's cache as two tensors, allocated from the start for all tokens that it keeps: keys and values, or latents and theirs."""

    first: Value
    second: Value
    decoding: bool

    def update(self, t: Tape, first: Value, second: Value) -> tuple[Value, Value, tuple[Value, ...]]:
        """Write new tokens; returns what attention reads: the cache when decoding, else what was written, and the other tensors with it."""
        for new, kept, label in ((first, self.first, "cache_first"), (second, self.second, "cache_second")):
            t.ops(label, "scatter", [new], [], mutates=[kept], accessed=new.size + replace(kept, shape=new.shape).size)
        if not self.decoding:
            return first, second, ()
        if self.first.dtype in FOR_TRANSFER:
            pair = ((self.first, first, "unpack_first"), (self.second, second, "unpack_second"))
            whole = [t.op(label, "copy", [kept], kept.shape, new.dtype) for kept, new, label in pair]
            return whole[0], whole[1], ()
        if self.first.shape[:3] == self.second.shape[:3] and len(self.first.shape) == 4:
            return self.first, self.second, ()
        batch, tokens, rank = self.first.shape  # latents: one head of keys, which are the values too
        keys = Value(self.first.tensor, (batch, 1, tokens, rank + self.second.shape[-1]), self.first.dtype)
        return keys, keys, (Value(self.second.tensor, (0,), self.second.dtype),)


def make_cache(t: Tape, config: Decoder, run: Run) -> Cache | None:
    """The cache of the layer whose scope it is; ``None`` where nothing is kept."""
    if run.training or (run.phase == "prefill" and not run.cache) or (run.phase == "decode" and run.kv_block is not None):
        return None
    tokens = min(run.context if run.phase == "decode" else run.sequence, config.sliding_window or NO_WINDOW)
    if not config.kv_lora_rank:
        return held_heads(t, run, tokens, key_heads(config, run), config.head_dim)
    first, second = [
        t.held(name, (run.batch, tokens, width), run.dtype, "kv_cache", run.cache_home)
        for name, width in (("latent_cache", config.kv_lora_rank), ("rope_cache", config.qk_rope_head_dim))
    ]
    return Cache(first, second, run.phase == "decode")


def held_heads(t: Tape, run: Run, tokens: int, heads: int, width: int) -> Cache:
    """The keys and values of ``tokens`` tokens, of the attention whose scope it is."""
    shape = (run.batch, heads, tokens, width)
    dtype, computes = run.dtype, ""
    if run.cache_dtype is not None:
        dtype = CACHES[run.cache_dtype]
        computes = PACKINGS[dtype].computes
    first, second = [t.held(name, shape, dtype, "kv_cache", run.cache_home, computes=computes) for name in ("k_cache", "v_cache")]
    return Cache(first, second, run.phase == "decode")


@dataclass(frozen=True, slots=True)
class BlockCache:
    """One layer's keys and values, or latents and rotated keys, in blocks of tokens, in order; the last of ``window`` is being written.

    A block is [2, batch, heads, tokens, width], or [1, batch, 1, tokens, width of both] for latents.
    """

    sinks: tuple[Value, ...]
    older: tuple[Value, ...]
    window: tuple[Value, ...]


def make_blocks(t: Tape, config: Decoder, run: Run) -> BlockCache:
    """The cache of the layer whose scope it is, in blocks; the older ones live in ``run.cache_home``."""
    assert run.kv_block is not None
    count = -(-run.context // run.kv_block)
    first = min(run.sink_blocks, count)
    last = max(first, count - run.window_blocks)
    if config.kv_lora_rank:
        shape = (1, run.batch, 1, run.kv_block, config.kv_lora_rank + config.qk_rope_head_dim)
    else:
        shape = (2, run.batch, key_heads(config, run), run.kv_block, config.head_dim)
    blocks = [t.held(f"kv_block.{n}", shape, run.dtype, "kv_cache", run.cache_home if first <= n < last else None) for n in range(count)]
    return BlockCache(tuple(blocks[:first]), tuple(blocks[first:last]), tuple(blocks[last:]))
