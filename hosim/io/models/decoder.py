"""Decoder language models: from GPT-2 to DeepSeek-V3, one family with different sizes
and options.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod

from hosim.io.models.collectives import all_reduced, received, replicated, sent
from hosim.io.models.config import Decoder, Run, layer_sizes, layers_of, vocabulary
from hosim.io.models.dense import projected, table
from hosim.io.models.engine_layer import added_norm, engine_layer
from hosim.io.models.functions import (
    activation,
    add,
    chunked_loss,
    compiled_cross_entropy,
    concatenated,
    copied,
    cross_entropy,
    dropout,
    dropout_added,
    embedding,
    linear,
    mul,
    scale,
)
from hosim.io.models.grouped_attention import grouped_attention
from hosim.io.models.kv_cache import make_cache
from hosim.io.models.latent_attention import compressed_attention, latent_attention
from hosim.io.models.layer_inputs import Positions, from_input, inputs_of_layers
from hosim.io.models.mixers import by_mixers
from hosim.io.models.mlp import beside, feed_forward, half_of_layer, mixture
from hosim.io.models.names import NAMES
from hosim.io.models.norms import decoder_norm
from hosim.io.models.tape import Tape, Value

# -- alternating updates
# --------------------------------------------------------------------------------------------------
# Several hidden states side by side: a layer computes one of them, and predicts and corrects the
# others (AltUp, Gemma 3n).
#
# References ---------- C. Baykal et al., Alternating Updates for Efficient Transformers, 2023.


def states_of(t: Tape, config: Decoder, run: Run, x: Value) -> Value:
    """``x`` and a projection of it for each other state, [batch, tokens, states * hidden]."""
    others = [
        projected(t, run, f"altup_projections.{n}", x, config.hidden_size)
        for n in range(config.streams - 1)
    ]
    return concatenated(t, (x, *others), "states")


def state_after(t: Tape, config: Decoder, run: Run, x: Value) -> Value:
    """The mean of the first state and of a projection of each other state."""
    one = _first(config, x)
    others = [
        projected(t, run, f"altup_unembed_projections.{n}", one, config.hidden_size)
        for n in range(config.streams - 1)
    ]
    return t.op(
        "states.mean",
        "reduction",
        [x, *others],
        one.shape,
        accessed=(config.streams + 1) * one.size,
    )


def updated(
    t: Tape,
    config: Decoder,
    run: Run,
    x: Value,
    inputs: Value,
    mixed: Callable[[Value], Value],
    mlp: Callable[[Value], Value],
) -> Value:
    """Return all states after a layer. Its attention and MLP, ``mixed`` and ``mlp``, read only the
    first state.
    """
    names = NAMES[config.names]
    predicted = _mixture(t, config, run, x, "prediction_coefs", config.streams**2, [x])
    active = _first(config, predicted)
    inside = decoder_norm(t, config, run, names.before_attention, active)
    with t.scope("laurel"):
        narrow = projected(t, run, "linear_left", inside, config.laurel_rank)
        beside = add(
            t,
            inside,
            decoder_norm(
                t,
                config,
                run,
                "post_laurel_norm",
                projected(t, run, "linear_right", narrow, inside.shape[-1]),
            ),
        )
    y = add(
        t, active, decoder_norm(t, config, run, names.after_attention, mixed(inside)), "add_attn"
    )
    y = scale(t, add(t, y, beside, "add_laurel"), "halve")
    z = mlp(decoder_norm(t, config, run, names.before_mlp, y))
    y = add(t, y, decoder_norm(t, config, run, names.after_mlp, z), "add_mlp")
    corrected = _mixture(t, config, run, y, "correction_coefs", config.streams, [predicted, y])
    first = mul(
        t,
        _first(config, corrected),
        t.parameter("altup.correct_output_scale", (config.hidden_size,), run.dtype),
        "correct_scale",
    )
    return add(t, corrected, from_input(t, config, run, first, inputs), "add_input")


def _first(config: Decoder, x: Value) -> Value:
    return x.view(*x.shape[:2], config.hidden_size)


def _mixture(
    t: Tape, config: Decoder, run: Run, x: Value, name: str, count: int, mixed: list[Value]
) -> Value:
    """Return the states mixed by ``count`` weights of each token, which are computed from its first
    state.
    """
    rows = (x.shape[0], x.shape[1])
    with t.scope("altup"):
        normed = scale(
            t, decoder_norm(t, config, run, "router_norm", _first(config, x)), "router_norm.scale"
        )
        shares = activation(
            t, projected(t, run, "modality_router", normed, config.streams), "tanh", keeps="output"
        )
        weights = projected(t, run, name, shares, count)
        flops = 2 * rows[0] * rows[1] * count * config.hidden_size
        return t.op(
            name.partition("_")[0],
            "elementwise",
            [*mixed, weights],
            (*rows, config.streams * config.hidden_size),
            flops=flops,
        )


# -- hyper-connections -----------------------------------------------------------------------------


def streams_of(t: Tape, config: Decoder, x: Value) -> Value:
    """``x`` in each of the streams, [batch, tokens, streams * hidden]."""
    return copied(t, x, (*x.shape[:-1], config.streams * x.shape[-1]), "streams")


def through(
    t: Tape,
    config: Decoder,
    run: Run,
    x: Value,
    names: tuple[str, str],
    half: Callable[[Value], Value],
) -> Value:
    """Return the streams ``x`` after one half of a layer. It reads one mixture of them, and its
    result is added to another.

    ``names`` are those of the weights' module and of the norm.
    """
    n, hidden = config.streams, config.hidden_size
    with t.scope(names[0]):
        weights = _weights(t, run, x, (2 + n) * n, 3, ("fn", "base", "scale"))
        inside = t.op(
            "collapse",
            "reduction",
            [x, weights],
            (*x.shape[:-1], hidden),
            flops=2 * x.rows * n * hidden,
        )
    y = half(decoder_norm(t, config, run, names[1], inside))
    with t.scope(names[0]):
        return t.op(
            "mix", "elementwise", [x, y, weights], x.shape, flops=2 * x.rows * (n * n + n) * hidden
        )


def collapsed(t: Tape, config: Decoder, run: Run, x: Value) -> Value:
    """The weighted sum of the streams, which the output layer reads."""
    with t.scope("hc_head"):
        weights = _weights(t, run, x, config.streams, 1, ("hc_fn", "hc_base", "hc_scale"))
        shape = (*x.shape[:-1], config.hidden_size)
        return t.op("collapse", "reduction", [x, weights], shape, flops=2 * x.rows * x.shape[-1])


def _weights(
    t: Tape, run: Run, x: Value, count: int, scales: int, names: tuple[str, str, str]
) -> Value:
    """Return ``count`` weights of each token in fp32, from all its streams: a product, and a kernel
    that makes them sum to one.
    """
    shapes = ((count, x.shape[-1]), (count,), (scales,))
    factor, base, scale = [
        t.parameter(name, shape, run.dtype) for name, shape in zip(names, shapes, strict=True)
    ]
    sizes = (x.rows, count, x.shape[-1])
    flops = 2 * x.rows * count * x.shape[-1]
    scores = t.op(
        "scores",
        "matmul",
        [x, factor],
        (*x.shape[:-1], count),
        "fp32",
        flops=flops,
        kernel="gemm",
        sizes=sizes,
    )
    return t.op("weights", "elementwise", [scores, base, scale], scores.shape)


# -- the decoder -----------------------------------------------------------------------------------


def decoder(t: Tape, config: Decoder, run: Run) -> Value:
    """Return the loss in training, else the logits; a pipeline stage before the last one returns
    what it sends.
    """
    first, last = run.stage == 0, run.stage == run.pipeline - 1
    names = NAMES[config.names]
    with t.scope(names.model):
        if first:
            with t.on(run.layers_on):
                x = _embedded(t, config, run)
        else:
            x = received(t, run, (run.batch, run.own_tokens, config.hidden_size))
        inputs = inputs_of_layers(t, config, run, x) if first else None
        if config.streams:
            x = states_of(t, config, run, x) if config.laurel_rank else streams_of(t, config, x)
        turns, slopes, mask = _all_turns(t, config, run), _slopes(t, config, run), _mask(t, run)
        pending: Value | None = None
        made: dict[bool, tuple[Value, Value, tuple[Value, ...]]] = {}
        for n in layers_of(config, run):
            sizes = layer_sizes(config, n)
            shared = Positions(turns.get(_turned_width(sizes)), slopes, mask, inputs, made)

            def layer(
                x: Value, n: int = n, sizes: Decoder = sizes, shared: Positions = shared
            ) -> Value:
                with t.scope(f"{names.layers}.{n}"):
                    return _layer(t, sizes, run, n, x, shared)

            with t.on(run.layers_on):
                if run.merged and not config.streams:
                    with t.scope(f"{names.layers}.{n}"):
                        x, pending = engine_layer(t, sizes, run, n, x, pending, shared)
                else:
                    x = t.checkpointed(layer, x, run=run) if run.checkpoints(n) else layer(x)
        if not last:
            with t.on(run.layers_on):
                x = x if pending is None else add(t, x, pending, "add_mlp")
            sent(t, run, x)
            return x
        with t.on(run.layers_on):
            if config.streams:
                x = (state_after if config.laurel_rank else collapsed)(t, config, run, x)
            if run.merged:
                x = added_norm(t, config, run, names.norm, x, pending)[1]
            else:
                x = decoder_norm(t, config, run, names.norm, x)
    with t.on(run.layers_on):
        return _head(t, config, run, x)


def _embedded(t: Tape, config: Decoder, run: Run) -> Value:
    """The embeddings of the tokens, with what the family adds to them."""
    names, shape = NAMES[config.names], (run.batch, run.tokens)
    ids = t.held("input_ids", shape, "int64", "input")
    x = all_reduced(
        t,
        run,
        embedding(
            t,
            table(
                t,
                run,
                f"{names.table}.weight",
                vocabulary(config, run),
                config.hidden_size,
                prod(shape),
            ),
            ids,
        ),
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
    if run.training and run.loss == "chunked":
        labels = t.held("labels", (x.rows,), "int64", "input")
        return chunked_loss(t, x.view(x.rows, config.hidden_size), weight, labels)
    if run.training:
        logits = linear(t, x, weight, bias, label="lm_head")
        if config.final_softcap:
            logits = scale(
                t,
                activation(t, scale(t, logits, "softcap.div"), "softcap.tanh", keeps="output"),
                "softcap.mul",
            )
        labels = t.held("labels", (logits.rows,), "int64", "input")
        return (cross_entropy if run.loss == "whole" else compiled_cross_entropy)(
            t, logits.view(logits.rows, rows), labels
        )
    logits = t.op(
        "lm_head",
        "matmul",
        [x, weight] if bias is None else [x, weight, bias],
        (*x.shape[:-1], rows),
        flops=2 * x.rows * rows * config.hidden_size,
        result_kind="activation" if config.final_softcap else "output",
        kernel="gemm",
        sizes=(x.rows, rows, config.hidden_size),
        computes=weight.computes,
    )
    if config.final_softcap:
        return t.op("softcap", "elementwise", [logits], logits.shape, result_kind="output")
    return logits


def _turned_width(config: Decoder) -> int:
    """Return the width of the part of a layer's head that has rotary positions; 0 if
    there is none.
    """
    if config.positions != "rotary" or not config.mixer.startswith("attention"):
        return 0
    return config.qk_rope_head_dim or config.rotary_width or config.head_dim


def _all_turns(t: Tape, config: Decoder, run: Run) -> Mapping[int, tuple[Value, Value]]:
    """The cosines and sines for each width that has rotary positions in some layer."""
    kinds = [replace(config, **dict(kind), kinds=(), pattern=()) for kind in config.kinds] or [  # type: ignore[arg-type]
        config
    ]
    widths = sorted({_turned_width(kind) for kind in kinds} - {0})
    return {
        width: _rotary(t, run, width, f"rotary_emb.{width}" if n else "rotary_emb")
        for n, width in enumerate(widths)
    }


def _rotary(t: Tape, run: Run, width: int, scope: str) -> tuple[Value, Value]:
    """The cosines and sines of every position; they have no gradient."""
    shape = (1, run.tokens, width)
    with t.scope(scope):
        angles = t.op(
            "angles", "elementwise", [t.held("inv_freq", (width // 2,), "fp32", "buffer")], shape
        )
        cos = t.op(
            "cos.to", "copy", [t.op("cos", "elementwise", [angles], shape)], shape, run.dtype
        )
        sin = t.op(
            "sin.to", "copy", [t.op("sin", "elementwise", [angles], shape)], shape, run.dtype
        )
    return cos, sin


def _slopes(t: Tape, config: Decoder, run: Run) -> tuple[Value, ...]:
    """Return the slopes by which each head's scores fall with the distance of a key; empty without
    them.
    """
    if config.positions != "alibi":
        return ()
    return (t.held("alibi_slopes", (config.num_attention_heads // run.tensor,), "fp32", "buffer"),)


def _mask(t: Tape, run: Run) -> Value | None:
    """The mask of the keys that each query sees; None for the causal kernel and for a
    single query.
    """
    if run.attention == "causal" or run.phase == "decode":
        return None
    return t.ops("mask", "elementwise", [], [((1, 1, run.sequence, run.sequence), "bool")])[0]


def _layer(t: Tape, config: Decoder, run: Run, n: int, x: Value, shared: Positions) -> Value:
    names = NAMES[config.names]
    if config.laurel_rank and shared.inputs is not None:
        both = (lambda y: _mixed(t, config, run, y, shared)), (lambda y: _mlp(t, config, run, n, y))
        return updated(t, config, run, x, shared.inputs, *both)
    if config.streams:
        x = through(
            t,
            config,
            run,
            x,
            ("attn_hc", names.before_attention),
            lambda y: _mixed(t, config, run, y, shared),
        )
        return through(
            t, config, run, x, ("ffn_hc", names.before_mlp), lambda y: _mlp(t, config, run, n, y)
        )
    if config.mixer == "none":
        return _with_mlp(t, config, run, n, x, shared.inputs)
    inside = decoder_norm(t, config, run, names.before_attention, x) if config.pre_norms else x
    y = _mixed(t, config, run, inside, shared)
    if config.post_norms:
        y = decoder_norm(t, config, run, names.after_attention, y)
    if config.parallel_block:
        if not config.shared_norm:
            inside = decoder_norm(t, config, run, names.before_mlp, x)
        z = _mlp(t, config, run, n, inside)
        return add(
            t,
            x,
            add(t, dropout(t, y, config.dropout), dropout(t, z, config.dropout), "add_mlp"),
            "add_block",
        )
    x = dropout_added(t, x, y, config.dropout, "add_attn", fused=run.fused)
    return _with_mlp(t, config, run, n, x, shared.inputs) if config.has_mlp else x


def _mixed(t: Tape, config: Decoder, run: Run, inside: Value, shared: Positions) -> Value:
    """Return the result of attention for ``inside``, of another mixer of tokens, or of both side by
    side.
    """

    def attend() -> Value:
        if config.output_rank:
            return compressed_attention(t, config, run, inside, shared)
        cache = make_cache(t, config, run)
        if config.kv_lora_rank:
            return latent_attention(t, config, run, inside, shared.turns, shared.mask, cache)
        return grouped_attention(t, config, run, inside, shared, cache)

    return by_mixers(t, config, run, inside, attend)


def _with_mlp(t: Tape, config: Decoder, run: Run, n: int, x: Value, inputs: Value | None) -> Value:
    """``x`` plus the result of the MLP or the mixture and, if the layer has one, of its
    own input.
    """
    names = NAMES[config.names]
    y = _mlp(
        t,
        config,
        run,
        n,
        decoder_norm(t, config, run, names.before_mlp, x) if config.pre_norms else x,
    )
    if config.mixture_beside and config.num_experts:
        y = beside(t, config, run, x, y, mixture)
    if config.post_norms:
        y = decoder_norm(t, config, run, names.after_mlp, y)
    x = dropout_added(t, x, y, config.dropout, "add_mlp", fused=run.fused)
    return x if inputs is None else add(t, x, from_input(t, config, run, x, inputs), "add_input")


def _mlp(t: Tape, config: Decoder, run: Run, n: int, x: Value) -> Value:
    return half_of_layer(t, config, run, n, x, mixture, feed_forward)
