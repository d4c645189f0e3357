"""The inputs that layers have besides a token's hidden state, from a table of their own (Gemma 3n,
Gemma 4).
"""

from dataclasses import dataclass, field
from math import prod

from hosim.io.models.config import Decoder, Run
from hosim.io.models.dense import activated, projected, table
from hosim.io.models.functions import add, embedding, mul, scale
from hosim.io.models.norms import decoder_norm
from hosim.io.models.tape import Tape, Value


@dataclass(frozen=True, slots=True)
class Positions:
    """The values that layers share: cosines and sines of rotary positions, slopes of scores, the
    mask of keys, and the layers' own inputs.

    ``made`` has the keys and values of the last layers that made some, with a window and without,
    and the other tensors that attention reads with them.
    """

    turns: tuple[Value, Value] | None
    slopes: tuple[Value, ...]
    mask: Value | None
    inputs: Value | None = None
    made: dict[bool, tuple[Value, Value, tuple[Value, ...]]] = field(default_factory=dict)


def inputs_of_layers(t: Tape, config: Decoder, run: Run, x: Value) -> Value | None:
    """Return the inputs of all layers together, from the tokens and from their embedding ``x``;
    ``None`` if layers have none.
    """
    if not config.layer_input_size:
        return None
    shape = (run.batch, run.tokens)
    width = config.num_hidden_layers * config.layer_input_size
    rows = table(
        t, run, "embed_tokens_per_layer.weight", config.layer_input_vocab, width, prod(shape)
    )
    ids = t.held("input_ids", shape, "int64", "input")
    own = scale(t, embedding(t, rows, ids, "layer_inputs"), "layer_inputs.scale")
    made = scale(
        t, projected(t, run, "per_layer_model_projection", x, width), "layer_projection.scale"
    )
    by_layer = made.view(*shape, config.num_hidden_layers, config.layer_input_size)
    normed = decoder_norm(t, config, run, "per_layer_projection_norm", by_layer)
    return scale(
        t, add(t, normed, own.view(*by_layer.shape), "add_layer_inputs"), "layer_inputs.halve"
    )


def from_input(t: Tape, config: Decoder, run: Run, x: Value, inputs: Value) -> Value:
    """Return the tensor that a layer adds from its own input, gated by the hidden state ``x``."""
    width = config.layer_input_size
    gate = activated(t, run, config.hidden_act, projected(t, run, "per_layer_input_gate", x, width))
    y = mul(t, gate, inputs.view(*x.shape[:-1], width), "layer_input")
    return decoder_norm(
        t,
        config,
        run,
        "post_per_layer_input_norm",
        projected(t, run, "per_layer_projection", y, x.shape[-1]),
    )


def sinks(t: Tape, config: Decoder, run: Run) -> tuple[Value, ...]:
    """The learned scores of the heads in the current scope, which stand beside those of keys; empty
    without them.
    """
    return (
        (t.parameter("sinks", (config.num_attention_heads // run.tensor,), run.dtype),)
        if config.attention_sinks
        else ()
    )
