"""T5: an encoder and a decoder that attends to it, with learned biases of relative positions on the
scores.

Scores are in memory, because no fused kernel supports a learned bias.
"""

from dataclasses import dataclass

from hosim.io.models.config import Run, first_layers
from hosim.io.models.dense import dense, gelu_new, repeated, scored, table
from hosim.io.models.functions import (
    activation,
    add,
    cast,
    dropout,
    embedding,
    mean,
    mul,
    scale,
    softmax,
    square,
)
from hosim.io.models.kv_cache import held_heads
from hosim.io.models.tape import Tape, Value


@dataclass(frozen=True, slots=True)
class T5:
    """The sizes of T5. Fields are named as in the public ``config.json`` files.

    ``num_layers`` are those of the encoder; ``num_decoder_layers`` 0 means as many. ``gated``: an
    MLP is ``wo(gelu(wi_0) * wi_1)``, else ``wo(relu(wi))``. If the output layer is not the
    embedding, its input is not scaled (T5 1.1, FLAN-T5).
    """

    d_model: int
    num_layers: int
    num_heads: int
    d_kv: int
    d_ff: int
    vocab_size: int = 32128
    relative_attention_num_buckets: int = 32
    dropout: float = 0.1
    num_decoder_layers: int = 0
    gated: bool = False
    tie_word_embeddings: bool = True

    @property
    def num_hidden_layers(self) -> int:
        """The layers of the half that has more."""
        return max(self.num_layers, self.num_decoder_layers)


def t5(t: Tape, config: T5, run: Run) -> Value:
    """The loss in training, else the logits; source and target have ``sequence`` tokens each.

    A decode returns the logits of the next token, from caches of ``context`` tokens of the target
    and ``sequence`` of the source.
    """
    shape = (run.batch, run.tokens)
    rows = run.batch * run.tokens * (1 if run.phase == "decode" else 2)
    shared = table(t, run, "shared.weight", config.vocab_size, config.d_model, rows)
    memory: Value | None = None
    if run.phase != "decode":
        source = dropout(
            t,
            embedding(t, shared, t.held("input_ids", shape, "int64", "input"), "encoder.embedding"),
            config.dropout,
        )
        with t.scope("encoder"):
            memory = _stack(
                t, config, run, source, first_layers(config.num_layers, run), "encoder", None
            )
    target = dropout(
        t,
        embedding(
            t, shared, t.held("decoder_input_ids", shape, "int64", "input"), "decoder.embedding"
        ),
        config.dropout,
    )
    with t.scope("decoder"):
        x = _stack(
            t,
            config,
            run,
            target,
            first_layers(config.num_decoder_layers or config.num_layers, run),
            "decoder",
            memory,
        )
    if config.tie_word_embeddings:
        x, head = scale(t, x, "scale_outputs"), shared
    else:
        head = t.parameter("lm_head.weight", (config.vocab_size, config.d_model), run.dtype)
    return scored(t, run, x, head, None, "lm_head", kernel="")


def _stack(
    t: Tape, config: T5, run: Run, x: Value, layers: range, half: str, memory: Value | None
) -> Value:
    with t.scope("block.0.layer.0.SelfAttention"):
        bias = _bias(t, config, run)
    x = repeated(
        t, run, layers, "block", x, lambda x: _layer(t, config, run, x, half, memory, bias)
    )
    return dropout(t, _norm(t, run, "final_layer_norm", x), config.dropout)


def _bias(t: Tape, config: T5, run: Run) -> Value:
    """Return the bias that the distance of query and key adds to each head's scores, [1, heads,
    queries, keys].
    """
    shape = (1, run.context) if run.phase == "decode" else (run.sequence, run.sequence)
    buckets = t.ops("buckets", "elementwise", [], [(shape, "int64")])[0]
    entries = config.relative_attention_num_buckets
    with t.scope("relative_attention_bias"):
        values = embedding(
            t, t.parameter("weight", (entries, config.num_heads), run.dtype), buckets
        )
    return values.view(1, config.num_heads, *shape)


def _layer(
    t: Tape, config: T5, run: Run, x: Value, half: str, memory: Value | None, bias: Value
) -> Value:
    def part(n: int, name: str) -> str:
        return f"layer.{n}.{name}"

    y = _norm(t, run, part(0, "layer_norm"), x)
    with t.scope(part(0, "SelfAttention")):
        (q,), (k, v) = _heads(t, config, run, y, "q"), _heads(t, config, run, y, "kv")
        if run.phase == "decode":
            k, v, _ = held_heads(t, run, run.context, config.num_heads, config.d_kv).update(t, k, v)
        y = _attention(t, config, run, q, k, v, bias)
    x = add(t, x, dropout(t, y, config.dropout))
    if half == "decoder":
        y = _norm(t, run, part(1, "layer_norm"), x)
        with t.scope(part(1, "EncDecAttention")):
            (q,) = _heads(t, config, run, y, "q")
            if memory is None:
                cache = held_heads(t, run, run.sequence, config.num_heads, config.d_kv, grows=False)
                k, v = cache.first, cache.second
            else:
                k, v = _heads(t, config, run, memory, "kv")
            y = _attention(t, config, run, q, k, v, None)
        x = add(t, x, dropout(t, y, config.dropout))
    last = 1 if half == "encoder" else 2
    y = _norm(t, run, part(last, "layer_norm"), x)
    with t.scope(part(last, "DenseReluDense")):
        if config.gated:
            opened = gelu_new(t, run, dense(t, run, "wi_0", y, config.d_ff, bias=False))
            inside = mul(t, opened, dense(t, run, "wi_1", y, config.d_ff, bias=False))
        else:
            inside = activation(
                t, dense(t, run, "wi", y, config.d_ff, bias=False), "relu", keeps="output"
            )
        y = dense(t, run, "wo", dropout(t, inside, config.dropout), config.d_model, bias=False)
    return add(t, x, dropout(t, y, config.dropout))


def _heads(t: Tape, config: T5, run: Run, x: Value, names: str) -> list[Value]:
    """Queries, keys or values [batch, heads, tokens, width] of ``x``."""
    batch, tokens, _ = x.shape
    heads, width = config.num_heads, config.d_kv
    return [
        dense(t, run, name, x, heads * width, bias=False).view(batch, heads, tokens, width)
        for name in names
    ]


def _attention(
    t: Tape, config: T5, run: Run, q: Value, k: Value, v: Value, bias: Value | None
) -> Value:
    batch, heads, tokens, width = q.shape
    keys = k.shape[2]
    scores = _product(t, q, k, (batch, heads, tokens, keys), width, "scores")
    if bias is not None:
        scores = add(t, scores, bias, "add_bias")
    chances = dropout(t, softmax(t, scores), config.dropout)
    y = _product(t, chances, v, (batch, heads, tokens, width), keys, "weighted")
    return dense(t, run, "o", y.view(batch, tokens, heads * width), config.d_model, bias=False)


def _product(t: Tape, a: Value, b: Value, shape: tuple[int, ...], inner: int, label: str) -> Value:
    """A matrix product for each head, with sums of ``inner`` products."""
    flops = 2 * shape[0] * shape[1] * shape[2] * shape[3] * inner
    y = t.op(label, "matmul", [a, b], shape, flops=flops)

    def gradient(g: Value) -> None:
        for value, other, which in ((a, b, "a"), (b, a, "b")):
            t.give(
                value, t.op(f"{label}.grad_{which}", "matmul", [g, other], value.shape, flops=flops)
            )

    return t.note(y, gradient)


def _norm(t: Tape, run: Run, name: str, x: Value) -> Value:
    """The norm of ``x``: the root mean square in fp32, and the scaling in the dtype of ``x``."""
    with t.scope(name):
        weight = t.parameter("weight", x.shape[-1:], run.dtype)
        variance = mean(t, square(t, cast(t, x, "fp32")))
        deviation = activation(t, scale(t, variance, "add"), "rsqrt", keeps="output")
        return mul(t, cast(t, mul(t, x, deviation), run.dtype), weight)
