"""Decoder language models: Llama, Qwen3-MoE and DeepSeek-V3 are one family with different sizes."""

from __future__ import annotations

from dataclasses import replace

from hosim.models.attention import attention, rotated, rotated_pairs
from hosim.models.collectives import all_reduced, received, replicated, sent
from hosim.models.config import Decoder, Run, layers_of
from hosim.models.engine_layer import added_norm, engine_layer
from hosim.models.functions import add, concatenated, copied, cross_entropy, dropout_added, embedding, linear, split
from hosim.models.kv_cache import Cache, make_blocks, make_cache
from hosim.models.mlp import gated_mlp, mixture, plain_mlp
from hosim.models.norms import rms_norm
from hosim.models.sparse_attention import keys_read, select_blocks, sparse_attention
from hosim.models.tape import Tape, Value


def decoder(t: Tape, config: Decoder, run: Run) -> Value:
    """The loss in training (a stage that is not the last: what it sends on), else the logits."""
    first, last = run.stage == 0, run.stage == run.pipeline - 1
    shape = (run.batch, run.tokens, config.hidden_size)
    with t.scope("model"):
        if first:
            ids = t.held("input_ids", shape[:2], "int64", "input")
            table = t.parameter("embed_tokens.weight", (config.vocab_size // run.tensor, config.hidden_size), run.dtype)
            x = all_reduced(t, run, embedding(t, table, ids))
        else:
            x = received(t, run, shape)
        cos, sin = _rotary(t, config, run)
        mask = _mask(t, run)
        pending: Value | None = None
        for n in layers_of(config, run):

            def layer(x: Value, n: int = n) -> Value:
                with t.scope(f"layers.{n}"):
                    return _layer(t, config, run, n, x, cos, sin, mask)

            if run.merged:
                with t.scope(f"layers.{n}"):
                    x, pending = engine_layer(t, config, run, n, x, pending, (cos, sin))
            else:
                x = t.checkpointed(layer, x) if run.checkpoints(n) else layer(x)
        if not last:
            x = x if pending is None else add(t, x, pending, "add_mlp")
            sent(t, run, x)
            return x
        with t.scope("norm"):
            if run.merged:
                x = added_norm(t, run, x, pending)[1]
            else:
                x = rms_norm(t, x, t.parameter("weight", (config.hidden_size,), run.dtype), fused=run.fused)
    return _head(t, config, run, x)


def _head(t: Tape, config: Decoder, run: Run, x: Value) -> Value:
    if run.phase == "prefill" and run.logits == "last":
        x = x.view(run.batch, 1, config.hidden_size)
    x = replicated(t, run, x)
    rows = config.vocab_size // run.tensor
    name = "model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"
    weight = t.parameter(name, (rows, config.hidden_size), run.dtype)
    if not run.training:
        return t.op(
            "lm_head",
            "matmul",
            [x, weight],
            (*x.shape[:-1], rows),
            flops=2 * x.rows * rows * config.hidden_size,
            result_kind="output",
            kernel="gemm",
            sizes=(x.rows, rows, config.hidden_size),
        )
    logits = linear(t, x, weight, label="lm_head")
    labels = t.held("labels", (logits.rows,), "int64", "input")
    return cross_entropy(t, logits.view(logits.rows, rows), labels)


def _rotary(t: Tape, config: Decoder, run: Run) -> tuple[Value, Value]:
    """Cosines and sines of every position; they have no gradient."""
    width = config.qk_rope_head_dim or config.head_dim
    shape = (1, run.tokens, width)
    with t.scope("rotary_emb"):
        inverse = t.held("inv_freq", (width // 2,), "fp32", "buffer")
        angles = t.op("angles", "elementwise", [inverse], shape)
        cos = t.op("cos.to", "copy", [t.op("cos", "elementwise", [angles], shape)], shape, run.dtype)
        sin = t.op("sin.to", "copy", [t.op("sin", "elementwise", [angles], shape)], shape, run.dtype)
    return cos, sin


def _mask(t: Tape, run: Run) -> Value | None:
    """The mask of the keys that each query sees; the causal kernel and a single query need none."""
    if run.attention == "causal" or run.phase == "decode":
        return None
    return t.ops("mask", "elementwise", [], [((1, 1, run.sequence, run.sequence), "bool")])[0]


def _layer(t: Tape, config: Decoder, run: Run, n: int, x: Value, cos: Value, sin: Value, mask: Value | None) -> Value:
    hidden = (config.hidden_size,)
    with t.scope("input_layernorm"):
        normed = rms_norm(t, x, t.parameter("weight", hidden, run.dtype), fused=run.fused)
    with t.scope("self_attn"):
        cache = make_cache(t, config, run)
        attend = _latent_attention if config.kv_lora_rank else _grouped_attention
        y = attend(t, config, run, replicated(t, run, normed), cos, sin, mask, cache)
    x = dropout_added(t, x, y, config.dropout, "add_attn", fused=run.fused)
    with t.scope("post_attention_layernorm"):
        normed = rms_norm(t, x, t.parameter("weight", hidden, run.dtype), fused=run.fused)
    with t.scope("mlp"):
        if config.num_experts and n >= config.first_k_dense_replace:
            y = mixture(t, config, run, normed)
        else:
            y = (gated_mlp if config.gated_mlp else plain_mlp)(t, run, normed, config.intermediate_size)
    return dropout_added(t, x, y, config.dropout, "add_mlp", fused=run.fused)


def _grouped_attention(
    t: Tape, config: Decoder, run: Run, x: Value, cos: Value, sin: Value, mask: Value | None, cache: Cache | None
) -> Value:
    """Heads of queries that share heads of keys and values."""
    batch, tokens, hidden = x.shape
    width = config.head_dim
    heads, kv_heads = config.num_attention_heads // run.tensor, config.num_key_value_heads // run.tensor

    def projected(name: str, count: int, turned: bool, normed: bool) -> Value:
        weight = t.parameter(f"{name}_proj.weight", (count * width, hidden), run.dtype)
        bias = t.parameter(f"{name}_proj.bias", (count * width,), run.dtype) if config.qkv_bias else None
        y = linear(t, x, weight, bias, label=f"{name}_proj").view(batch, tokens, count, width)
        if normed:
            with t.scope(f"{name}_norm"):
                y = rms_norm(t, y, t.parameter("weight", (width,), run.dtype), fused=run.fused)
        y = y.view(batch, count, tokens, width)
        return rotated(t, y, cos, sin, fused=run.fused, label=f"rope_{name}") if turned else y

    q = projected("q", heads, True, config.qk_norm)
    k = projected("k", kv_heads, True, config.qk_norm)
    v = projected("v", kv_heads, False, False)
    if run.phase == "decode" and run.kv_block is not None:
        y = sparse_attention(t, run, q, (k, v), make_blocks(t, config, run), width)
    else:
        extra: tuple[Value, ...] = ()
        if cache is not None:
            k, v, extra = cache.update(t, k, v)
        select_blocks(t, run, q, kv_heads)
        drops, window = config.dropout > 0, keys_read(config, run)
        y = attention(t, q, k, v, mask, mode=run.attention, extra=extra, causal=True, drops=drops, window=window)
    weight = t.parameter("o_proj.weight", (hidden, heads * width), run.dtype)
    return all_reduced(t, run, linear(t, y.view(batch, tokens, heads * width), weight, label="o_proj"))


def _latent_attention(
    t: Tape, config: Decoder, run: Run, x: Value, cos: Value, sin: Value, mask: Value | None, cache: Cache | None
) -> Value:
    """Keys and values from one latent vector a token, which is what the cache keeps (DeepSeek-V2)."""
    batch, tokens, hidden = x.shape
    heads = config.num_attention_heads // run.tensor
    nope, turned, wide, rank = config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim, config.kv_lora_rank

    def parameter(name: str, *shape: int) -> Value:
        return t.parameter(f"{name}.weight", shape, run.dtype)

    def normed(name: str, y: Value) -> Value:
        with t.scope(name):
            return rms_norm(t, y, t.parameter("weight", y.shape[-1:], run.dtype), fused=run.fused)

    q_width = heads * (nope + turned)
    if config.q_lora_rank:
        down = linear(t, x, parameter("q_a_proj", config.q_lora_rank, hidden), label="q_a_proj")
        q = linear(t, normed("q_a_layernorm", down), parameter("q_b_proj", q_width, config.q_lora_rank), label="q_b_proj")
    else:
        q = linear(t, x, parameter("q_proj", q_width, hidden), label="q_proj")
    q_pass, q_turn = split(t, q.view(batch, tokens, heads, nope + turned), (nope, turned), "split_q")
    both = linear(t, x, parameter("kv_a_proj_with_mqa", rank + turned, hidden), label="kv_a_proj_with_mqa")
    latent, k_turn = split(t, both, (rank, turned), "split_kv")
    latent = normed("kv_a_layernorm", latent)
    q_turn = rotated_pairs(t, q_turn, cos, sin, fused=run.fused, label="rope_q")
    k_turn = rotated_pairs(t, k_turn, cos, sin, fused=run.fused, label="rope_k")
    up = parameter("kv_b_proj", heads * (nope + wide), rank)
    if run.phase == "decode":
        y = _absorbed(t, config, run, q_pass, q_turn, latent, k_turn, up, cache)
    else:
        if cache is not None:
            cache.update(t, latent, k_turn)
        q = concatenated(t, (q_pass, q_turn), "cat_q").view(batch, heads, tokens, nope + turned)
        expanded = linear(t, latent, up, label="kv_b_proj").view(batch, tokens, heads, nope + wide)
        k_pass, v = split(t, expanded, (nope, wide), "split_kv_b")
        k = concatenated(t, (k_pass, k_turn), "cat_k").view(batch, heads, tokens, nope + turned)
        select_blocks(t, run, q, heads)
        v = v.view(batch, heads, tokens, wide)
        y = attention(t, q, k, v, mask, mode=run.attention, causal=True, window=keys_read(config, run))
        if run.attention == "math":  # its result lies in the order of heads, and is put in that of tokens
            y = copied(t, y, label="contiguous")
    return all_reduced(t, run, linear(t, y.view(batch, tokens, heads * wide), parameter("o_proj", hidden, heads * wide), label="o_proj"))


def _absorbed(
    t: Tape, config: Decoder, run: Run, q_pass: Value, q_turn: Value, latent: Value, k_turn: Value, up: Value, cache: Cache | None
) -> Value:
    """Attention over the latents themselves: the queries take up the keys' half of ``up``, the result its values' half."""
    batch, tokens, heads, nope = q_pass.shape
    rank, wide = config.kv_lora_rank, config.v_head_dim
    if cache is not None:
        keys, _, extra = cache.update(t, latent, k_turn)
    half = replace(up, shape=(heads, nope, rank))
    rows = batch * tokens
    flops, sizes = 2 * rows * heads * nope * rank, (rows, heads * rank, nope)
    absorbed = t.op("absorb_k", "matmul", [q_pass, half], (batch, tokens, heads, rank), flops=flops, kernel="gemm", sizes=sizes)
    q = concatenated(t, (absorbed, q_turn), "cat_q").view(batch, heads, tokens, rank + q_turn.shape[-1])
    if cache is not None:
        seen = attention(t, q, keys, keys.view(*keys.shape[:-1], rank), extra=extra, causal=True)
    else:
        seen = sparse_attention(t, run, q, (latent, k_turn), make_blocks(t, config, run), rank)
    half = replace(up, shape=(heads, wide, rank))
    flops, sizes = 2 * rows * heads * wide * rank, (rows, heads * wide, rank)
    return t.op("absorb_v", "matmul", [seen, half], (batch, tokens, heads, wide), flops=flops, kernel="gemm", sizes=sizes)
