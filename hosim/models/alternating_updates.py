"""Several hidden states beside each other, of which a layer computes one and predicts and corrects
the others (AltUp, Gemma 3n).

References
----------
C. Baykal et al., Alternating Updates for Efficient Transformers, 2023.
"""

from __future__ import annotations

from collections.abc import Callable

from hosim.models.config import Decoder, Run
from hosim.models.dense import projected
from hosim.models.functions import activation, add, concatenated, mul, scale
from hosim.models.layer_inputs import from_input
from hosim.models.names import NAMES
from hosim.models.norms import decoder_norm
from hosim.models.tape import Tape, Value


def states_of(t: Tape, config: Decoder, run: Run, x: Value) -> Value:
    """``x`` and a product of it for each other state, [batch, tokens, states * hidden]."""
    others = [
        projected(t, run, f"altup_projections.{n}", x, config.hidden_size)
        for n in range(config.streams - 1)
    ]
    return concatenated(t, (x, *others), "states")


def state_after(t: Tape, config: Decoder, run: Run, x: Value) -> Value:
    """The mean of the first state and of a product of each other one."""
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
    """All states after a layer, whose attention and MLP are ``mixed`` and ``mlp`` and read the
    first state alone.
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
    """States by ``count`` weights of each token, which its first state gives."""
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
