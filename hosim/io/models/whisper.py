"""Whisper: an encoder of sound, and a decoder of text that attends to it."""

from dataclasses import dataclass

from hosim.io.models.attention import AttentionKernel, attention
from hosim.io.models.config import Run, first_layers
from hosim.io.models.dense import convolution, dense, gelu, looked_up, mlp, normed, repeated, scored
from hosim.io.models.functions import add, dropout
from hosim.io.models.kv_cache import held_heads
from hosim.io.models.tape import Tape, Value


@dataclass(frozen=True, slots=True)
class Whisper:
    """The sizes of Whisper. Fields are named as in the public ``config.json`` files. The sound has
    ``2 * max_source_positions`` frames of ``num_mel_bins``.
    """

    d_model: int
    encoder_layers: int
    encoder_attention_heads: int
    encoder_ffn_dim: int
    decoder_layers: int
    decoder_attention_heads: int
    decoder_ffn_dim: int
    vocab_size: int = 51865
    num_mel_bins: int = 80
    max_source_positions: int = 1500
    max_target_positions: int = 448
    dropout: float = 0.0

    @property
    def num_hidden_layers(self) -> int:
        """The layers of the half that has more."""
        return max(self.encoder_layers, self.decoder_layers)


def whisper(t: Tape, config: Whisper, run: Run) -> Value:
    """The loss of ``sequence`` tokens in training, else their logits; in a decode the logits of the
    next token, from caches of both halves.
    """
    shape = (run.batch, run.tokens)
    with t.scope("model"):
        memory = None if run.phase == "decode" else _encoded(t, config, run)
        with t.scope("decoder"):
            ids = t.held("input_ids", shape, "int64", "input")
            table = t.parameter(
                "embed_tokens.weight", (config.vocab_size, config.d_model), run.dtype
            )
            tokens = looked_up(t, run, "embed_tokens", ids, config.vocab_size, config.d_model)
            places = t.ops("position_ids", "fill", [], [((1, run.tokens), "int64")])[0]
            x = add(
                t,
                tokens,
                looked_up(
                    t, run, "embed_positions", places, config.max_target_positions, config.d_model
                ),
            )
            x = dropout(t, x, config.dropout)
            x = repeated(
                t,
                run,
                first_layers(config.decoder_layers, run),
                "layers",
                x,
                lambda x: _decoder_layer(t, config, run, x, memory),
            )
            x = normed(t, run, "layer_norm", x)
    return scored(t, run, x, table, None, "proj_out")


def _encoded(t: Tape, config: Whisper, run: Run) -> Value:
    """The encoded sound: two convolutions, of which the second halves the frames, and layers
    without a mask.
    """
    frames = 2 * config.max_source_positions
    sound = t.held("input_features", (run.batch, frames, config.num_mel_bins), run.dtype, "input")
    with t.scope("encoder"):
        x = gelu(t, run, _convolved(t, run, "conv1", sound, config.d_model, frames))
        x = gelu(
            t, run, _convolved(t, run, "conv2", x, config.d_model, config.max_source_positions)
        )
        x = add(t, x, t.parameter("embed_positions.weight", x.shape[1:], run.dtype))
        x = dropout(t, x, config.dropout)
        x = repeated(
            t,
            run,
            first_layers(config.encoder_layers, run),
            "layers",
            x,
            lambda x: _encoder_layer(t, config, run, x),
        )
        return normed(t, run, "layer_norm", x)


def _convolved(t: Tape, run: Run, name: str, x: Value, width: int, frames: int) -> Value:
    """Return ``frames`` frames, each a vector of ``width`` computed from three frames of ``x``
    [batch, frames, channels].
    """
    with t.scope(name):
        return convolution(
            t, run, "conv1d", x, (width, x.shape[-1], 3), (x.shape[0], frames, width)
        )


def _encoder_layer(t: Tape, config: Whisper, run: Run, x: Value) -> Value:
    heads = config.encoder_attention_heads
    y = normed(t, run, "self_attn_layer_norm", x)
    with t.scope("self_attn"):
        k, v = _keys(t, run, y, heads)
        y = _attended(t, run, y, k, v, heads)
    x = add(t, x, dropout(t, y, config.dropout))
    y = normed(t, run, "final_layer_norm", x)
    return add(t, x, mlp(t, run, y, ("fc1", "fc2"), config.encoder_ffn_dim, gelu, config.dropout))


def _decoder_layer(t: Tape, config: Whisper, run: Run, x: Value, memory: Value | None) -> Value:
    heads = config.decoder_attention_heads
    width = config.d_model // heads
    y = normed(t, run, "self_attn_layer_norm", x)
    with t.scope("self_attn"):
        k, v = _keys(t, run, y, heads)
        if memory is None:
            k, v, _ = held_heads(t, run, run.context, heads, width).update(t, k, v)
        y = _attended(t, run, y, k, v, heads, causal=True)
    x = add(t, x, dropout(t, y, config.dropout))
    y = normed(t, run, "encoder_attn_layer_norm", x)
    with t.scope("encoder_attn"):
        if memory is None:
            cache = held_heads(t, run, config.max_source_positions, heads, width, grows=False)
            k, v = cache.first, cache.second
        else:
            k, v = _keys(t, run, memory, heads)
        y = _attended(t, run, y, k, v, heads)
    x = add(t, x, dropout(t, y, config.dropout))
    y = normed(t, run, "final_layer_norm", x)
    return add(t, x, mlp(t, run, y, ("fc1", "fc2"), config.decoder_ffn_dim, gelu, config.dropout))


def _keys(t: Tape, run: Run, x: Value, heads: int) -> tuple[Value, Value]:
    """Return the keys and the values of ``x``, each [batch, heads, tokens, width]. The keys have no
    bias.
    """
    batch, tokens, hidden = x.shape
    k, v = [dense(t, run, f"{name}_proj", x, hidden, bias=name == "v") for name in "kv"]
    shape = (batch, heads, tokens, hidden // heads)
    return k.view(*shape), v.view(*shape)


def _attended(
    t: Tape, run: Run, x: Value, k: Value, v: Value, heads: int, *, causal: bool = False
) -> Value:
    batch, tokens, hidden = x.shape
    q = dense(t, run, "q_proj", x, hidden).view(batch, heads, tokens, hidden // heads)
    y = attention(t, q, k, v, AttentionKernel(causal=causal or tokens == 1))
    return dense(t, run, "out_proj", y.view(batch, tokens, hidden), hidden)
