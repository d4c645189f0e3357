"""Describe what chooses the latents that a query of sparse latent attention sees (DeepSeek-V3.2's
lightning indexer).
"""

from __future__ import annotations

from dataclasses import replace

from hosim.costmodel.kernels import NO_WINDOW
from hosim.models.attention import rotated
from hosim.models.config import Decoder, Run
from hosim.models.dense import projected
from hosim.models.functions import linear
from hosim.models.kv_cache import parts_of_cache, written
from hosim.models.norms import layer_norm
from hosim.models.tape import Tape, Value


def latents_seen(
    t: Tape,
    config: Decoder,
    run: Run,
    x: Value,
    latent: Value | None,
    turns: tuple[Value, Value] | None,
) -> int:
    """Return how many latents a query sees at most, after the ops that choose them.

    Heads of queries from their own ``latent`` are multiplied with one key a token, which is kept;
    the sum of what is positive of their products, by weights from ``x``, is the score of a token
    for a query. A layer that takes another one's choice has no such ops.
    """
    if not config.index_topk:
        return NO_WINDOW
    if not config.index_n_heads or latent is None:
        return config.index_topk
    batch, tokens, _ = x.shape
    heads, width = config.index_n_heads, config.index_head_dim
    with t.scope("indexer"):
        q = projected(t, run, "wq_b", latent, heads * width)
        k = projected(t, run, "wk", x, width)
        with t.scope("k_norm"):
            k = layer_norm(
                t,
                k,
                t.parameter("weight", (width,), run.dtype),
                t.parameter("bias", (width,), run.dtype),
            )
        if turns is not None:
            q, k = [
                rotated(t, y, *turns, fused=True, label=f"rope_{name}")
                for name, y in (("q", q), ("k", k))
            ]
        weights = linear(
            t,
            x,
            t.parameter("weights_proj.weight", (heads, x.shape[-1]), run.dtype),
            label="weights_proj",
        )
        keys, kept = _kept(t, run, k)
        flops = 2 * batch * heads * tokens * keys.shape[1] * width
        scores = t.op(
            "scores", "matmul", [q, keys, weights], (batch, tokens, keys.shape[1]), flops=flops
        )
        t.op("topk", "sort", [scores], (batch, tokens, min(kept, config.index_topk)), "int64")
    return config.index_topk


def _kept(t: Tape, run: Run, k: Value) -> tuple[Value, int]:
    """The keys that queries are compared with, and how many there are: those of the cache in
    decoding, else the new ones.
    """
    tokens = run.context if run.phase == "decode" else run.sequence
    if run.training or (run.phase == "prefill" and not run.cache):
        return k, tokens
    shape = (k.shape[0], tokens, k.shape[-1])
    cache = t.held(
        "index_cache",
        shape,
        run.dtype,
        "kv_cache",
        run.cache_home,
        parts=parts_of_cache(run, shape),
    )
    accessed = k.size + replace(cache, shape=k.shape).size
    t.ops(
        "cache_index",
        "scatter",
        [k],
        [],
        **written(run.phase == "decode", cache),
        accessed=accessed,
    )
    return (cache if run.phase == "decode" else k), tokens
