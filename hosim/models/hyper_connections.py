"""Several sums that go through the layers beside each other, mixed by weights that each token
computes (hyper-connections, DeepSeek-V4).
"""

from __future__ import annotations

from collections.abc import Callable

from hosim.models.config import Decoder, Run
from hosim.models.functions import copied
from hosim.models.norms import decoder_norm
from hosim.models.tape import Tape, Value


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
    """The streams ``x`` after one half of a layer: it reads one mixture of them, and its result is
    added to another.

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
    """The sum of the streams that the output layer reads."""
    with t.scope("hc_head"):
        weights = _weights(t, run, x, config.streams, 1, ("hc_fn", "hc_base", "hc_scale"))
        shape = (*x.shape[:-1], config.hidden_size)
        return t.op("collapse", "reduction", [x, weights], shape, flops=2 * x.rows * x.shape[-1])


def _weights(
    t: Tape, run: Run, x: Value, count: int, scales: int, names: tuple[str, str, str]
) -> Value:
    """``count`` weights of each token from all its streams, in fp32: a product, and a kernel that
    makes them sum to one.
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
