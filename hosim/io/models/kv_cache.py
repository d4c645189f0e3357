"""The keys and values that a decoder keeps of earlier tokens: whole, or in blocks of which
attention reads some.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

from hosim.analysis.costmodel.kernels import NO_WINDOW
from hosim.data.graph_parts import NEW, PAST
from hosim.io.models.config import Decoder, Run, key_heads
from hosim.io.models.packed import CACHES, FOR_TRANSFER, PACKINGS
from hosim.io.models.tape import ITEM_BYTES, Tape, Value


class Written(TypedDict, total=False):
    """The arguments of an op that writes to a cache."""

    mutates: Sequence[Value]
    overwrites: Sequence[Value]


def written(decoding: bool, *kept: Value) -> Written:
    """Return how an op writes new tokens to tensors of a cache. A prompt overwrites all of them; a
    decoding step writes a part, or mutates a tensor that is not held in parts.
    """
    whole = decoding and not any([value.parts for value in kept])
    return {"mutates": kept} if whole else {"overwrites": [value.part(NEW) for value in kept]}


@dataclass(frozen=True, slots=True)
class Cache:
    """One layer's cache as two tensors, which are allocated from the start for all tokens that it
    keeps: keys and values, or latents and their rotary keys.
    """

    first: Value
    second: Value
    decoding: bool

    def update(
        self, t: Tape, first: Value, second: Value
    ) -> tuple[Value, Value, tuple[Value, ...]]:
        """Write new tokens. Return the two tensors that attention reads, the cache in decoding and
        else the new ones, and further tensors that it reads with them.
        """
        for new, kept, label in (
            (first, self.first, "cache_first"),
            (second, self.second, "cache_second"),
        ):
            t.ops(
                label,
                "scatter",
                [new],
                [],
                **written(self.decoding, kept),
                accessed=new.size + replace(kept, shape=new.shape).size,
            )
        if not self.decoding:
            return first, second, ()
        if self.first.dtype in FOR_TRANSFER:
            pair = ((self.first, first, "unpack_first"), (self.second, second, "unpack_second"))
            whole = [
                t.op(label, "copy", [kept], kept.shape, new.dtype) for kept, new, label in pair
            ]
            return whole[0], whole[1], ()
        if self.first.shape[:3] == self.second.shape[:3] and len(self.first.shape) == 4:
            return self.first, self.second, ()
        batch, tokens, rank = (
            self.first.shape
        )  # latents: one head of keys, which are also the values
        keys = replace(self.first, shape=(batch, 1, tokens, rank + self.second.shape[-1]))
        return keys, keys, (replace(self.second, shape=(0,)),)


def make_cache(t: Tape, config: Decoder, run: Run) -> Cache | None:
    """The cache of the layer in the current scope; ``None`` if nothing is kept."""
    if (
        config.shares_keys
        or run.training
        or (run.phase == "prefill" and not run.cache)
        or (run.phase == "decode" and run.kv_block is not None)
    ):
        return None
    tokens = min(
        run.context if run.phase == "decode" else run.sequence, config.sliding_window or NO_WINDOW
    )
    if not config.kv_lora_rank:
        return held_heads(
            t, run, tokens, key_heads(config, run), config.head_dim, values=config.v_head_dim
        )
    first, second = [
        t.held(
            name,
            (run.batch, tokens, width),
            run.dtype,
            "kv_cache",
            run.cache_home,
            parts=parts_of_cache(run, (run.batch, tokens, width)),
        )
        for name, width in (
            ("latent_cache", config.kv_lora_rank),
            ("rope_cache", config.qk_rope_head_dim),
        )
    ]
    return Cache(first, second, run.phase == "decode")


def parts_of_cache(run: Run, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]] | None:
    """Return the parts of a cache [..., tokens, width] that a decoding step reads and extends: the
    earlier tokens and the new one; ``None`` in other phases.
    """
    *outer, tokens, width = shape
    return (
        {PAST: (*outer, tokens - 1, width), NEW: (*outer, 1, width)}
        if run.phase == "decode"
        else None
    )


def held_heads(
    t: Tape, run: Run, tokens: int, heads: int, width: int, *, values: int = 0, grows: bool = True
) -> Cache:
    """The keys and values of ``tokens`` tokens, for the attention in the current scope. ``grows``:
    a step adds a token to them.

    ``values``: the width of values, if it differs from that of keys.
    """
    dtype, computes = run.dtype, ""
    if run.cache_dtype is not None:
        dtype = CACHES[run.cache_dtype]
        computes = PACKINGS[dtype].computes
    made = []
    for name, wide in (("k_cache", width), ("v_cache", values or width)):
        shape = (run.batch, heads, tokens, wide)
        parts = parts_of_cache(run, shape) if grows else None
        made.append(
            t.held(name, shape, dtype, "kv_cache", run.cache_home, computes=computes, parts=parts)
        )
    first, second = made
    return Cache(first, second, run.phase == "decode")


@dataclass(frozen=True, slots=True)
class BlockCache:
    """One layer's keys and values, or latents and rotary keys, in blocks of tokens, in order. The
    last block of ``window`` is being written.

    A block is [2, batch, heads, tokens, width], or [1, batch, 1, tokens, width of both] for
    latents.
    """

    sinks: tuple[Value, ...]
    older: tuple[Value, ...]
    window: tuple[Value, ...]


def make_blocks(t: Tape, config: Decoder, run: Run) -> BlockCache:
    """The cache of the layer in the current scope, in blocks; the older ones live in
    ``run.cache_home``.
    """
    assert run.kv_block is not None
    count = -(-run.context // run.kv_block)
    first = min(run.sink_blocks, count - 1)  # the one being written is of the window
    last = max(first, count - run.window_blocks)
    if config.kv_lora_rank:
        shape = (1, run.batch, 1, run.kv_block, config.kv_lora_rank + config.qk_rope_head_dim)
    else:
        shape = (2, run.batch, key_heads(config, run), run.kv_block, config.head_dim)
    homes = [run.cache_home if first <= n < last else None for n in range(count)]
    blocks = [
        t.held(str(n), shape, run.dtype, "kv_cache", home, of="kv_blocks")
        for n, home in enumerate(homes)
    ]
    return BlockCache(tuple(blocks[:first]), tuple(blocks[first:last]), tuple(blocks[last:]))


# -- attention over a cache in blocks --------------------------------------------------------------
# Attention over a cache in blocks: it always reads the first and the last blocks, and of those
# between them the ones that a gate selects.
#
# The gate scores a summary of each block against the query, as trained sparse attention does (NSA:
# J. Yuan et al., Native Sparse Attention, 2025). Each block that a new token selects gives a result
# and the statistics for merging the results (split-k decoding). Each query of a prompt reads as
# many blocks, all of which the layer has just written.


def sparse_attention(
    t: Tape, run: Run, q: Value, new: Sequence[Value], cache: BlockCache, out_width: int
) -> Value:
    """The result [batch, 1, heads, ``out_width``] for ``q`` [batch, heads, 1, width]; ``new`` is
    written to the last block.

    ``out_width`` is the width of values: they are separate from keys, or the first part of latents,
    which serve as both.
    """
    batch, heads, *_ = q.shape
    t.ops(
        "write",
        "scatter",
        new,
        [],
        mutates=[cache.window[-1]],
        accessed=2 * sum([part.size for part in new]),
    )
    parts = [_over(t, "always", q, [*cache.sinks, *cache.window], None, out_width)]
    if cache.older:
        kv_heads = cache.older[0].shape[2]
        gate = _selected(t, run, q, kv_heads, len(cache.older))
        candidates = []
        for n, block in enumerate(cache.older):
            with t.scope(f"older.{n}"):
                parts.append(_over(t, "attention", q, [block], gate, out_width))
            candidates.append(((block,), (parts[-1],)))
        t.choose(gate, candidates, run.chosen_blocks)
    read = (1 + min(run.chosen_blocks, len(cache.older))) * parts[0].size
    size = batch * heads * out_width * ITEM_BYTES[run.dtype]
    return t.op(
        "merge", "reduction", parts, (batch, 1, heads, out_width), run.dtype, accessed=read + size
    )


def keys_read(config: Decoder, run: Run) -> int:
    """The most keys that a query of a prompt reads."""
    if run.kv_block is not None:
        return (run.sink_blocks + run.window_blocks + run.chosen_blocks) * run.kv_block
    return config.sliding_window or NO_WINDOW


def select_blocks(t: Tape, run: Run, q: Value, kv_heads: int) -> None:
    """Emit the ops that select blocks for every query of a prompt, ``q`` [batch, heads, tokens,
    width]; none without blocks.
    """
    older = (
        -(-q.shape[2] // run.kv_block) - run.sink_blocks - run.window_blocks
        if run.kv_block is not None
        else 0
    )
    if older > 0:
        _selected(t, run, q, kv_heads, older)


def _selected(t: Tape, run: Run, q: Value, kv_heads: int, older: int) -> Value:
    """Return the blocks that each query selects from the ``older`` ones, by a summary of each block
    for each head of keys.
    """
    batch, heads, queries, width = q.shape
    summaries = t.held("kv_summaries", (older, batch, kv_heads, width), run.dtype, "buffer")
    shape = (
        (batch, kv_heads, run.chosen_blocks)
        if queries == 1
        else (batch, kv_heads, queries, run.chosen_blocks)
    )
    return t.op(
        "select",
        "sort",
        [q, summaries],
        shape,
        "int64",
        flops=2 * batch * heads * queries * width * older,
    )


def _over(
    t: Tape, label: str, q: Value, blocks: Sequence[Value], gate: Value | None, out_width: int
) -> Value:
    """The unscaled result over some blocks in fp32, followed by the maximum and the sum of each
    head's scores.
    """
    batch, heads, _, width = q.shape
    tokens = sum([block.shape[3] for block in blocks])
    inputs = [q, *blocks] if gate is None else [q, gate, *blocks]
    return t.op(
        label,
        "attention",
        inputs,
        (batch, heads, out_width + 2),
        "fp32",
        flops=2 * batch * heads * (width + out_width) * tokens,
    )
