"""Decoder language models: from GPT-2 to DeepSeek-V3 they are one family with different sizes and options."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from hosim.models.attention import attention, rotated
from hosim.models.collectives import all_reduced, of_own_heads, received, replicated, sent
from hosim.models.config import Decoder, Run, key_heads, layer_sizes, layers_of, vocabulary
from hosim.models.dense import projected, table
from hosim.models.engine_layer import added_norm, engine_layer, sinks
from hosim.models.exchanged_attention import exchanged_attention
from hosim.models.functions import (
    activation,
    add,
    concatenated,
    cross_entropy,
    dropout,
    dropout_added,
    embedding,
    linear,
    scale,
    split,
)
from hosim.models.gathered_attention import gathered_attention
from hosim.models.kv_cache import Cache, make_blocks, make_cache
from hosim.models.latent_attention import latent_attention
from hosim.models.mlp import feed_forward, mixture
from hosim.models.names import NAMES
from hosim.models.norms import decoder_norm, rms_norm
from hosim.models.ring_attention import ring_attention
from hosim.models.sparse_attention import keys_read, select_blocks, sparse_attention
from hosim.models.tape import Tape, Value


@dataclass(frozen=True, slots=True)
class Positions:
    """What the layers share: cosines and sines of rotary positions, slopes of scores, the mask of keys."""

    turns: tuple[Value, Value] | None
    slopes: tuple[Value, ...]
    mask: Value | None


def decoder(t: Tape, config: Decoder, run: Run) -> Value:
    """The loss in training (a stage that is not the last: what it sends on), else the logits."""
    first, last = run.stage == 0, run.stage == run.pipeline - 1
    names = NAMES[config.names]
    with t.scope(names.model):
        x = _embedded(t, config, run) if first else received(t, run, (run.batch, run.own_tokens, config.hidden_size))
        shared = Positions(_rotary(t, config, run), _slopes(t, config, run), _mask(t, run))
        pending: Value | None = None
        for n in layers_of(config, run):

            def layer(x: Value, n: int = n) -> Value:
                with t.scope(f"{names.layers}.{n}"):
                    return _layer(t, layer_sizes(config, n), run, n, x, shared)

            if run.merged:
                with t.scope(f"{names.layers}.{n}"):
                    x, pending = engine_layer(t, layer_sizes(config, n), run, n, x, pending, (*(shared.turns or ()), *shared.slopes))
            else:
                x = t.checkpointed(layer, x, run=run) if run.checkpoints(n) else layer(x)
        if not last:
            x = x if pending is None else add(t, x, pending, "add_mlp")
            sent(t, run, x)
            return x
        if run.merged:
            x = added_norm(t, config, run, names.norm, x, pending)[1]
        else:
            x = decoder_norm(t, config, run, names.norm, x)
    return _head(t, config, run, x)


def _embedded(t: Tape, config: Decoder, run: Run) -> Value:
    """The tokens' entries in the table, with what the family adds to them."""
    names, shape = NAMES[config.names], (run.batch, run.tokens)
    ids = t.held("input_ids", shape, "int64", "input")
    x = all_reduced(
        t, run, embedding(t, table(t, run, f"{names.table}.weight", vocabulary(config, run), config.hidden_size, prod(shape)), ids)
    )
    if config.positions == "learned":
        places = t.ops("position_ids", "fill", [], [((1, run.tokens), "int64")])[0]
        rows = config.max_position_embeddings + config.extra_positions
        learned = table(t, run, f"{names.positions}.weight", rows, config.hidden_size, run.tokens)
        x = add(t, x, embedding(t, learned, places, names.positions), "add_positions")
    if config.embedding_scale:
        x = scale(t, x, "embedding_scale")
    if config.embedding_norm:
        x = decoder_norm(t, config, run, names.table_norm, x)
    return dropout(t, x, config.embedding_dropout)


def _head(t: Tape, config: Decoder, run: Run, x: Value) -> Value:
    if run.phase == "prefill" and run.logits == "last":
        x = x.view(run.batch, 1, config.hidden_size)
    x = replicated(t, run, x)
    rows, names = vocabulary(config, run), NAMES[config.names]
    name = f"{names.model}.{names.table}.weight" if config.tie_word_embeddings else "lm_head.weight"
    weight = t.parameter(name, (rows, config.hidden_size), run.dtype)
    bias = t.parameter("lm_head.bias", (rows,), run.dtype) if config.head_bias else None
    if run.training:
        logits = linear(t, x, weight, bias, label="lm_head")
        if config.final_softcap:
            logits = scale(t, activation(t, scale(t, logits, "softcap.div"), "softcap.tanh", keeps="output"), "softcap.mul")
        labels = t.held("labels", (logits.rows,), "int64", "input")
        return cross_entropy(t, logits.view(logits.rows, rows), labels)
    logits = t.op(
        "lm_head",
        "matmul",
        [x, weight] if bias is None else [x, weight, bias],
        (*x.shape[:-1], rows),
        flops=2 * x.rows * rows * config.hidden_size,
        result_kind="activation" if config.final_softcap else "output",
        kernel="gemm",
        sizes=(x.rows, rows, config.hidden_size),
    )
    if config.final_softcap:
        return t.op("softcap", "elementwise", [logits], logits.shape, result_kind="output")
    return logits


def _rotary(t: Tape, config: Decoder, run: Run) -> tuple[Value, Value] | None:
    """Cosines and sines of every position; they have no gradient."""
    if config.positions != "rotary":
        return None
    width = config.qk_rope_head_dim or config.rotary_width or config.head_dim
    shape = (1, run.tokens, width)
    with t.scope("rotary_emb"):
        inverse = t.held("inv_freq", (width // 2,), "fp32", "buffer")
        angles = t.op("angles", "elementwise", [inverse], shape)
        cos = t.op("cos.to", "copy", [t.op("cos", "elementwise", [angles], shape)], shape, run.dtype)
        sin = t.op("sin.to", "copy", [t.op("sin", "elementwise", [angles], shape)], shape, run.dtype)
    return cos, sin


def _slopes(t: Tape, config: Decoder, run: Run) -> tuple[Value, ...]:
    """By how much each head's scores fall with the distance of a key."""
    if config.positions != "alibi":
        return ()
    return (t.held("alibi_slopes", (config.num_attention_heads // run.tensor,), "fp32", "buffer"),)


def _mask(t: Tape, run: Run) -> Value | None:
    """The mask of the keys that each query sees; the causal kernel and a single query need none."""
    if run.attention == "causal" or run.phase == "decode":
        return None
    return t.ops("mask", "elementwise", [], [((1, 1, run.sequence, run.sequence), "bool")])[0]


def _layer(t: Tape, config: Decoder, run: Run, n: int, x: Value, shared: Positions) -> Value:
    names = NAMES[config.names]
    inside = decoder_norm(t, config, run, names.before_attention, x)
    with t.scope(names.attention):
        cache = make_cache(t, config, run)
        if config.kv_lora_rank:
            y = latent_attention(t, config, run, inside, shared.turns, shared.mask, cache)
        else:
            y = _grouped_attention(t, config, run, inside, shared, cache)
    if config.post_norms:
        y = decoder_norm(t, config, run, names.after_attention, y)
    if config.parallel_block:
        if not config.shared_norm:
            inside = decoder_norm(t, config, run, names.before_mlp, x)
        z = _mlp(t, config, run, n, inside)
        return add(t, x, add(t, dropout(t, y, config.dropout), dropout(t, z, config.dropout), "add_mlp"), "add_block")
    x = dropout_added(t, x, y, config.dropout, "add_attn", fused=run.fused)
    y = _mlp(t, config, run, n, decoder_norm(t, config, run, names.before_mlp, x))
    if config.post_norms:
        y = decoder_norm(t, config, run, names.after_mlp, y)
    return dropout_added(t, x, y, config.dropout, "add_mlp", fused=run.fused)


def _mlp(t: Tape, config: Decoder, run: Run, n: int, x: Value) -> Value:
    with t.scope(NAMES[config.names].mlp):
        if config.num_experts and n >= config.first_k_dense_replace:
            return mixture(t, config, run, x)
        return feed_forward(t, config, run, x, config.intermediate_size)


def _grouped_attention(t: Tape, config: Decoder, run: Run, x: Value, shared: Positions, cache: Cache | None) -> Value:
    """Heads of queries that share heads of keys and values."""
    x = replicated(t, run, x)
    batch, tokens, hidden = x.shape
    names, width = NAMES[config.names], config.head_dim
    heads, kv_heads = config.num_attention_heads // run.tensor, key_heads(config, run)
    parts, copied = {"q": heads, "k": kv_heads, "v": kv_heads}, max(1, run.tensor // config.num_key_value_heads)

    def by_head(name: str, y: Value) -> Value:
        y = y.view(batch, tokens, parts[name], width)
        if config.qk_norm and name != "v":
            with t.scope(f"{name}_norm"):
                y = rms_norm(t, y, of_own_heads(t, run, t.parameter("weight", (width,), run.dtype)), fused=run.fused)
        y = y.view(batch, parts[name], tokens, width)
        return y if name == "v" else _turned(t, config, run, y, shared.turns, f"rope_{name}")

    if config.fused_projections:
        copies = 2 * kv_heads * width, copied
        both = projected(t, run, names.qkv, x, sum(parts.values()) * width, bias=config.qkv_bias, copies=copies)
        pieces = split(t, both, [count * width for count in parts.values()], "split_qkv")
        q, k, v = [by_head(name, piece) for name, piece in zip(parts, pieces, strict=True)]
    else:
        q, k, v = [
            by_head(name, projected(t, run, f"{name}_proj", x, count * width, bias=config.qkv_bias, copies=(count * width, of)))
            for (name, count), of in zip(parts.items(), (1, copied, copied), strict=True)
        ]
    if run.phase == "decode" and run.kv_block is not None:
        y = sparse_attention(t, run, q, (k, v), make_blocks(t, config, run), width)
    else:
        extra: tuple[Value, ...] = ()
        if cache is not None:
            k, v, extra = cache.update(t, k, v)
        select_blocks(t, run, q, kv_heads)
        drops, window = config.attention_dropout > 0, keys_read(config, run)
        scores = sinks(t, config, run)
        extra = (*extra, *shared.slopes, *scores)
        if run.context_parallel > 1 and scores:
            y = exchanged_attention(t, run, q, k, v, scores[0], window)
        elif run.context_parallel > 1 and config.sliding_window:
            y = gathered_attention(t, run, q, k, v, window)
        elif run.context_parallel > 1:
            y = ring_attention(t, run, q, k, v)
        else:
            mode, library, again = run.attention, run.attention_kernel, run.recompute_attention
            y = attention(
                t, q, k, v, shared.mask, mode=mode, extra=extra, causal=True, drops=drops, window=window, library=library, again=again
            )
    y = projected(t, run, names.out, y.view(batch, tokens, heads * width), hidden, bias=config.out_bias)
    return all_reduced(t, run, y)


def _turned(t: Tape, config: Decoder, run: Run, x: Value, turns: tuple[Value, Value] | None, label: str) -> Value:
    """Rotary positions on the part of each head that has them."""
    if turns is None:
        return x
    if config.rotary_width in (0, config.head_dim) or run.fused:
        return rotated(t, x, *turns, fused=run.fused, label=label)
    turned, kept = split(t, x, (config.rotary_width, config.head_dim - config.rotary_width), f"{label}.split")
    return concatenated(t, (rotated(t, turned, *turns, label=label), kept), f"{label}.join")
