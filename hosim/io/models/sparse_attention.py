"""Attention over a cache in blocks: always the first and the last blocks, and those between that a
gate selects.

The gate scores a summary of each block against the query, as trained sparse attention does (NSA: J.
Yuan et al., Native Sparse Attention, 2025). Each block that a new token selects gives a result and
the statistics by which the results are put together (split-k decoding). The queries of a prompt
read so many blocks each, all of which the layer has just written.
"""

from collections.abc import Sequence

from hosim.analysis.costmodel.kernels import NO_WINDOW
from hosim.io.models.config import Decoder, Run
from hosim.io.models.kv_cache import BlockCache
from hosim.io.models.tape import ITEM_BYTES, Tape, Value


def sparse_attention(
    t: Tape, run: Run, q: Value, new: Sequence[Value], cache: BlockCache, out_width: int
) -> Value:
    """The result [batch, 1, heads, ``out_width``] for ``q`` [batch, heads, 1, width], with what is
    ``new`` written to the last block.

    Values are as wide as ``out_width``: keys and values apart, or the first part of latents, which
    are both.
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
    """The number of keys that a query of a prompt reads at most."""
    if run.kv_block is not None:
        return (run.sink_blocks + run.window_blocks + run.chosen_blocks) * run.kv_block
    return config.sliding_window or NO_WINDOW


def select_blocks(t: Tape, run: Run, q: Value, kv_heads: int) -> None:
    """Emit the ops that select blocks for every query of a prompt, ``q`` [batch, heads, tokens,
    width]; nothing without blocks.
    """
    older = (
        -(-q.shape[2] // run.kv_block) - run.sink_blocks - run.window_blocks
        if run.kv_block is not None
        else 0
    )
    if older > 0:
        _selected(t, run, q, kv_heads, older)


def _selected(t: Tape, run: Run, q: Value, kv_heads: int, older: int) -> Value:
    """Return the ``older`` blocks that each query takes, from a summary of each for each head of
    keys.
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
    """The unscaled result over some blocks in fp32, with maximum and sum of each head's scores
    behind it.
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
