"""Attention of one new token over a cache in blocks: always the first and the last blocks, and those between that a gate selects.

The gate scores a summary of each block against the query, as trained sparse attention does (NSA: J. Yuan et al., Native Sparse Attention,
2025). Each selected block gives a result and the statistics by which the results are put together (split-k decoding).
"""

from __future__ import annotations

from collections.abc import Sequence

from hosim.models.config import Run
from hosim.models.kv_cache import BlockCache
from hosim.models.tape import Tape, Value


def sparse_attention(t: Tape, run: Run, q: Value, k: Value, v: Value, cache: BlockCache) -> Value:
    """The result for ``q`` [batch, heads, 1, width], with the new ``k`` and ``v`` written to the last block."""
    batch, heads, _, width = q.shape
    t.ops("write", "scatter", [k, v], [], mutates=[cache.window[-1]], accessed=2 * (k.size + v.size))
    parts = [_over(t, run, "always", q, [*cache.sinks, *cache.window], None)]
    if cache.older:
        summaries = t.held("kv_summaries", (len(cache.older), *k.shape[:2], width), run.dtype, "buffer")
        work = 2 * batch * heads * width * len(cache.older)
        gate = t.op("select", "sort", [q, summaries], (batch, k.shape[1], run.chosen_blocks), "int64", flops=work)
        candidates = []
        for n, block in enumerate(cache.older):
            with t.scope(f"older.{n}"):
                parts.append(_over(t, run, "attention", q, [block], gate))
            candidates.append(((block,), (parts[-1],)))
        t.choose(gate, candidates)
    read = (1 + min(run.chosen_blocks, len(cache.older))) * parts[0].size
    return t.op("merge", "reduction", parts, (batch, 1, heads, width), run.dtype, accessed=read + q.size)


def _over(t: Tape, run: Run, label: str, q: Value, blocks: Sequence[Value], gate: Value | None) -> Value:
    """The unscaled result over some blocks in fp32, with maximum and sum of each head's scores behind it."""
    batch, heads, _, width = q.shape
    tokens = sum([block.shape[3] for block in blocks])
    inputs = [q, *blocks] if gate is None else [q, gate, *blocks]
    return t.op(label, "attention", inputs, (batch, heads, width + 2), "fp32", flops=4 * batch * heads * width * tokens)
