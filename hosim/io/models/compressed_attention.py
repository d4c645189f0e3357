"""Attention over the last tokens and over entries that stand for several earlier ones each
(DeepSeek-V4).

One head is keys and values of all queries. A compressor makes an entry of each ``compress_rate``
tokens by weights of its own. Where there is an indexer, it takes twice as many, and a query sees
only the entries that the indexer chooses. A decoding step keeps what its entry is to be made of,
and is timed as the one that completes it.
"""

from dataclasses import replace

from hosim.data.graph_parts import NEW
from hosim.io.models.attention import AttentionKernel, attention, rotated
from hosim.io.models.config import Decoder, Run
from hosim.io.models.dense import projected
from hosim.io.models.engine_layer import sinks
from hosim.io.models.functions import linear
from hosim.io.models.kv_cache import parts_of_cache
from hosim.io.models.layer_inputs import Positions
from hosim.io.models.norms import rms_norm, weighted_norm
from hosim.io.models.tape import Tape, Value


def compressed_attention(t: Tape, config: Decoder, run: Run, x: Value, shared: Positions) -> Value:
    """Return the result of attention over ``x`` [batch, tokens, hidden]."""
    batch, tokens, hidden = x.shape
    heads, width = config.num_attention_heads, config.head_dim
    narrow = projected(t, run, "q_a_proj", x, config.q_lora_rank)
    latent = weighted_norm(t, run, "q_a_norm", narrow, fused=True)
    q = projected(t, run, "q_b_proj", latent, heads * width).view(batch, tokens, heads, width)
    with t.scope("q_b_norm"):
        q = rms_norm(t, q, None, fused=True).view(batch, heads, tokens, width)
    made = projected(t, run, "kv_proj", x, width)
    kv = weighted_norm(t, run, "kv_norm", made, fused=True).view(batch, 1, tokens, width)
    assert shared.turns is not None
    q, kv = [
        rotated(t, y, *shared.turns, fused=True, label=f"rope_{name}")
        for name, y in (("q", q), ("kv", kv))
    ]
    whole = run.context if run.phase == "decode" else run.sequence
    near, extra = _kept(t, run, kv, min(whole, config.sliding_window or whole), "kv_cache")
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
    """A product for each group of heads."""
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


def _kept(
    t: Tape, run: Run, new: Value, entries: int, name: str
) -> tuple[Value, tuple[Value, ...]]:
    """Return the tensor that is read of a cache of ``entries`` when ``new`` has been written to it:
    the cache in decoding, else what is new.
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
    """Return the number of entries that a query sees, and the tensors that have them."""
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
    """The entries so far: those of the cache in decoding, else those of the prompt."""
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
    return _kept(t, run, new, count, name)[0]


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
