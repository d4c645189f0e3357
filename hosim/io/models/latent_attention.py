"""Attention over latent vectors, one for each token, from which keys and values are made
(DeepSeek-V2).
"""

from dataclasses import replace

from hosim.analysis.costmodel.kernels import NO_WINDOW
from hosim.data.graph_parts import NEW
from hosim.io.models.attention import AttentionKernel, attention, rotated, rotated_pairs
from hosim.io.models.collectives import all_reduced, replicated
from hosim.io.models.config import Decoder, Run
from hosim.io.models.dense import adapted, projected
from hosim.io.models.functions import concatenated, copied, linear, split
from hosim.io.models.kv_cache import (
    Cache,
    keys_read,
    make_blocks,
    parts_of_cache,
    select_blocks,
    sparse_attention,
    written,
)
from hosim.io.models.layer_inputs import Positions, sinks
from hosim.io.models.norms import layer_norm, rms_norm, weighted_norm
from hosim.io.models.tape import Tape, Value

# -- the index of latent attention -----------------------------------------------------------------


def latents_seen(
    t: Tape,
    config: Decoder,
    run: Run,
    x: Value,
    latent: Value | None,
    turns: tuple[Value, Value] | None,
) -> int:
    """Return the most latents that a query sees, and emit the ops that choose them.

    Heads of queries, made from their own ``latent``, are multiplied with one key for each token,
    which is kept. A token's score for a query is the sum of the positive products, weighted by
    weights from ``x``. A layer that uses another layer's choice has no such ops.
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
    """The keys that queries are compared with, and their number: those of the cache in decoding,
    else the new ones.
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


# -- latent attention ------------------------------------------------------------------------------


def latent_attention(
    t: Tape,
    config: Decoder,
    run: Run,
    x: Value,
    turns: tuple[Value, Value] | None,
    mask: Value | None,
    cache: Cache | None,
) -> Value:
    """Attention whose keys and values come from one latent vector for each token, which the cache
    keeps (DeepSeek-V2).

    Devices that share heads each make all latent vectors, or those of their own tokens, and add up
    the gradients of these.
    """
    batch, tokens, hidden = x.shape[0], run.tokens, x.shape[-1]
    heads = config.num_attention_heads // run.tensor
    nope, turned = config.qk_nope_head_dim, config.qk_rope_head_dim
    wide, rank = config.v_head_dim, config.kv_lora_rank
    found, q = _queries(t, config, run, x, heads * (nope + turned))
    q_pass, q_turn = split(
        t, q.view(batch, tokens, heads, nope + turned), (nope, turned), "split_q"
    )
    both = projected(t, run, "kv_a_proj_with_mqa", x, rank + turned)
    latent, k_turn = split(t, both, (rank, turned), "split_kv")
    latent = replicated(t, run, weighted_norm(t, run, "kv_a_layernorm", latent, fused=run.fused))
    k_turn = replicated(t, run, k_turn)
    if turns is not None:
        cos, sin = turns
        q_turn = rotated_pairs(t, q_turn, cos, sin, fused=run.fused, label="rope_q")
        k_turn = rotated_pairs(t, k_turn, cos, sin, fused=run.fused, label="rope_k")
    seen = latents_seen(t, config, run, x, found, turns)
    up = t.parameter(
        "kv_b_proj.weight", (heads * (nope + wide), rank), run.dtype
    )  # engines unpack it, because decoding uses its halves separately
    if run.phase == "decode":
        y = _absorbed(t, config, run, q_pass, q_turn, latent, k_turn, up, cache, seen)
    else:
        if cache is not None:
            cache.update(t, latent, k_turn)
        q = concatenated(t, (q_pass, q_turn), "cat_q").view(batch, heads, tokens, nope + turned)
        both = adapted(t, run, "kv_b_proj", latent, linear(t, latent, up, label="kv_b_proj")).view(
            batch, tokens, heads, nope + wide
        )
        k_pass, v = split(t, both, (nope, wide), "split_kv_b")
        k = concatenated(t, (k_pass, k_turn), "cat_k").view(batch, heads, tokens, nope + turned)
        select_blocks(t, run, q, heads)
        v = v.view(batch, heads, tokens, wide)
        window = min(seen, keys_read(config, run))
        kernel = AttentionKernel(run.attention, causal=True, window=window)
        y = attention(t, q, k, v, kernel, mask, again=run.recompute_attention)
        if run.attention in ("math", "scores"):
            # its result is in the order of heads, and is copied into that of tokens
            y = copied(t, y, label="contiguous")
    y = y.view(batch, tokens, heads * wide)
    return all_reduced(t, run, projected(t, run, "o_proj", y, hidden))


def _queries(
    t: Tape, config: Decoder, run: Run, x: Value, width: int
) -> tuple[Value | None, Value]:
    """The latent vectors of the queries, if they have any, and the queries, ``width`` wide."""
    if not config.q_lora_rank:
        return None, projected(t, run, "q_proj", replicated(t, run, x), width)
    down = projected(t, run, "q_a_proj", x, config.q_lora_rank)
    found = replicated(t, run, weighted_norm(t, run, "q_a_layernorm", down, fused=run.fused))
    return found, projected(t, run, "q_b_proj", found, width)


def _absorbed(
    t: Tape,
    config: Decoder,
    run: Run,
    q_pass: Value,
    q_turn: Value,
    latent: Value,
    k_turn: Value,
    up: Value,
    cache: Cache | None,
    seen: int,
) -> Value:
    """Attention over ``seen`` latents: the queries absorb the keys' half of ``up``, and the result
    absorbs the values' half.
    """
    batch, tokens, heads, nope = q_pass.shape
    rank, wide = config.kv_lora_rank, config.v_head_dim
    if cache is not None:
        keys, _, extra = cache.update(t, latent, k_turn)
        keys = replace(keys, shape=(*keys.shape[:2], min(keys.shape[2], seen), keys.shape[3]))
    half = replace(up, shape=(heads, nope, rank))
    rows = batch * tokens
    flops, sizes = 2 * rows * heads * nope * rank, (rows, heads * rank, nope)
    absorbed = t.op(
        "absorb_k",
        "matmul",
        [q_pass, half],
        (batch, tokens, heads, rank),
        flops=flops,
        kernel="gemm",
        sizes=sizes,
    )
    q = concatenated(t, (absorbed, q_turn), "cat_q").view(
        batch, heads, tokens, rank + q_turn.shape[-1]
    )
    if cache is not None:
        y = attention(
            t, q, keys, keys.view(*keys.shape[:-1], rank), AttentionKernel(causal=True), extra=extra
        )
    else:
        y = sparse_attention(t, run, q, (latent, k_turn), make_blocks(t, config, run), rank)
    half = replace(up, shape=(heads, wide, rank))
    flops, sizes = 2 * rows * heads * wide * rank, (rows, heads * wide, rank)
    return t.op(
        "absorb_v",
        "matmul",
        [y, half],
        (batch, tokens, heads, wide),
        flops=flops,
        kernel="gemm",
        sizes=sizes,
    )


# -- attention over compressed entries -------------------------------------------------------------
# Attention over the last tokens and over entries that stand for several earlier ones each
# (DeepSeek-V4).
#
# One head has the keys and values of all queries. A compressor makes an entry of every
# ``compress_rate`` tokens with weights of its own. With an indexer it takes twice as many tokens,
# and a query sees only the entries that the indexer chooses. A decoding step keeps the tokens of
# its unfinished entry, and is timed as the step that completes it.


def compressed_attention(t: Tape, config: Decoder, run: Run, x: Value, shared: Positions) -> Value:
    """Return the result of attention over ``x`` [batch, tokens, hidden]."""
    batch, tokens, hidden = x.shape
    heads, width = config.num_attention_heads, config.head_dim
    narrow = projected(t, run, "q_a_proj", x, config.q_lora_rank)
    latent = weighted_norm(t, run, "q_a_norm", narrow, fused=True)
    q = projected(t, run, "q_b_proj", latent, heads * width).view(batch, tokens, heads, width)
    with t.scope("q_b_norm"):
        q = rms_norm(t, q, None, fused=True).view(batch, heads, tokens, width)
    kv = weighted_norm(t, run, "kv_norm", projected(t, run, "kv_proj", x, width), fused=True).view(
        batch, 1, tokens, width
    )
    assert shared.turns is not None
    q, kv = [
        rotated(t, y, *shared.turns, fused=True, label=f"rope_{name}")
        for name, y in (("q", q), ("kv", kv))
    ]
    whole = run.context if run.phase == "decode" else run.sequence
    near, extra = _cached(t, run, kv, min(whole, config.sliding_window or whole), "kv_cache")
    seen = min(whole, config.sliding_window or whole)
    if config.compress_rate:
        entries, more = _compressed(t, config, run, x, latent, whole)
        extra, seen = (*extra, *more), seen + entries
    keys = replace(near, shape=(batch, 1, seen if run.phase == "decode" else tokens, width))
    kernel = AttentionKernel(causal=True, window=seen)
    y = attention(t, q, keys, keys, kernel, extra=(*extra, *sinks(t, config, run)))
    y = rotated(
        t, y.view(batch, heads, tokens, width), *shared.turns, fused=True, label="rope_back"
    )
    return projected(
        t, run, "o_b_proj", _grouped(t, config, run, y.view(batch, tokens, heads * width)), hidden
    )


def _grouped(t: Tape, config: Decoder, run: Run, y: Value) -> Value:
    """The product of each group of heads with its weights."""
    groups, rank = config.output_groups, config.output_rank
    wide, narrow = groups * rank, y.shape[-1] // groups
    weight = t.parameter("o_a_proj.weight", (wide, narrow), run.dtype)
    flops = 2 * y.rows * wide * narrow
    sizes = (y.rows * groups, rank, narrow)
    return t.op(
        "o_a_proj",
        "matmul",
        [y, weight],
        (*y.shape[:-1], wide),
        flops=flops,
        kernel="gemm",
        sizes=sizes,
    )


def _cached(
    t: Tape, run: Run, new: Value, entries: int, name: str
) -> tuple[Value, tuple[Value, ...]]:
    """Write ``new`` to a cache of ``entries``, and return the tensor that attention reads: the
    cache in decoding, else ``new``; and further tensors.
    """
    if run.phase == "prefill" and not run.cache:
        return new, ()
    shape = (new.shape[0], entries, new.shape[-1])
    cache = t.held(
        name, shape, run.dtype, "kv_cache", run.cache_home, parts=parts_of_cache(run, shape)
    )
    t.ops(
        f"{name}.write", "scatter", [new], [], overwrites=[cache.part(NEW)], accessed=2 * new.size
    )
    return (cache, ()) if run.phase == "decode" else (new, ())


def _compressed(
    t: Tape, config: Decoder, run: Run, x: Value, latent: Value, whole: int
) -> tuple[int, tuple[Value, ...]]:
    """Return the number of entries that a query sees, and the tensors that hold them."""
    count = max(1, whole // config.compress_rate)
    with t.scope("compressor"):
        entries = _entries(t, config, run, x, config.head_dim, count, "compressed_cache")
        if not config.index_n_heads:
            return count, (replace(entries, shape=(*entries.shape[:-1], entries.shape[-1])),)
        with t.scope("indexer"):
            _choose(t, config, run, x, latent, count)
    seen = min(count, config.index_topk)
    return seen, (
        replace(entries, shape=(entries.shape[0], min(seen, entries.shape[1]), entries.shape[2])),
    )


def _entries(
    t: Tape, config: Decoder, run: Run, x: Value, width: int, count: int, name: str
) -> Value:
    """Return the entries so far: those of the cache in decoding, else those of the prompt."""
    batch, rate = x.shape[0], config.compress_rate
    wide = 2 * width if config.index_n_heads else width
    kv, gate = projected(t, run, "kv_proj", x, wide), projected(t, run, "gate_proj", x, wide)
    inputs = [kv, gate, t.parameter("position_bias", (rate, wide), run.dtype)]
    norm = t.parameter("kv_norm.weight", (width,), run.dtype)
    decoding = run.phase == "decode"
    made = 1 if decoding else count
    shape = (batch, made, width)
    if decoding:
        waiting = t.held(
            "compressor_state", (batch, 2, rate, wide), run.dtype, "kv_cache", run.cache_home
        )
        new = t.ops(
            "compress", "reduction", [*inputs, norm], [(shape, run.dtype)], mutates=[waiting]
        )[0]
    else:
        new = t.op("compress", "reduction", [*inputs, norm], shape, run.dtype)
    return _cached(t, run, new, count, name)[0]


def _choose(t: Tape, config: Decoder, run: Run, x: Value, latent: Value, count: int) -> None:
    """Choose which of ``count`` entries each query sees."""
    batch, tokens, hidden = x.shape
    heads, width = config.index_n_heads, config.index_head_dim
    keys = _entries(t, config, run, x, width, count, "index_cache")
    q = projected(t, run, "q_b_proj", latent, heads * width)
    weights = linear(
        t,
        x,
        t.parameter("scorer.weights_proj.weight", (heads, hidden), run.dtype),
        label="weights_proj",
    )
    flops = 2 * batch * heads * tokens * count * width
    scores = t.op("scores", "matmul", [q, keys, weights], (batch, tokens, count), flops=flops)
    t.op("topk", "sort", [scores], (batch, tokens, min(count, config.index_topk)), "int64")
