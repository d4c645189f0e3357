"""Norms: the root mean square as transformers writes it, and the layer norm kernel."""

from hosim.io.models.config import Decoder, Run
from hosim.io.models.functions import activation, cast, mean, mul, scale, square
from hosim.io.models.tape import Tape, Value


def rms_norm(t: Tape, x: Value, weight: Value | None, *, fused: bool = False) -> Value:
    """``weight * x / sqrt(mean(x**2) + eps)`` over the last dimension, computed in fp32; as one
    kernel if ``fused``.
    """
    if fused:
        return _kernel(t, x, [] if weight is None else [weight], "rms_norm", 1)
    wide = cast(t, x, "fp32")
    deviation = activation(t, scale(t, mean(t, square(t, wide)), "add"), "rsqrt", keeps="output")
    result = cast(t, mul(t, wide, deviation), x.dtype)
    return result if weight is None else mul(t, result, weight)


def weighted_norm(t: Tape, run: Run, name: str, x: Value, *, fused: bool) -> Value:
    """The root-mean-square norm ``name`` of ``x``, with a weight."""
    with t.scope(name):
        return rms_norm(t, x, t.parameter("weight", x.shape[-1:], run.dtype), fused=fused)


def layer_norm(t: Tape, x: Value, weight: Value | None, bias: Value | None) -> Value:
    """``(x - mean) / deviation * weight + bias`` over the last dimension: one kernel that keeps
    mean and deviation.
    """
    return _kernel(t, x, [p for p in (weight, bias) if p is not None], "layer_norm", 2)


def decoder_norm(t: Tape, config: Decoder, run: Run, name: str, x: Value) -> Value:
    """The norm ``name`` of a decoder."""
    with t.scope(name):
        return applied_norm(t, config, run, x, norm_parameters(t, config, run, x.shape[-1]))


def applied_norm(t: Tape, config: Decoder, run: Run, x: Value, parameters: list[Value]) -> Value:
    """Apply a decoder's kind of norm over the last dimension of ``x``."""
    weight, bias = (*parameters, None, None)[:2]
    if config.norm.startswith("rms"):
        return rms_norm(t, x, weight, fused=run.fused or run.merged)
    return layer_norm(t, x, weight, bias)


def norm_parameters(t: Tape, config: Decoder, run: Run, width: int) -> list[Value]:
    """The parameters of a decoder's norm in the current scope."""
    count = 2 if config.norm == "layer" else 0 if config.norm.endswith("without_weight") else 1
    return [t.parameter(name, (width,), run.dtype) for name in ("weight", "bias")[:count]]


def head_norm_parameters(t: Tape, config: Decoder, run: Run, heads: int, width: int) -> list[Value]:
    """The parameters of the norm of ``heads`` of queries or keys in the current scope."""
    shape = {"head": (width,), "each": (heads, width), "all": (heads * width,)}.get(
        config.qk_norm_over
    )
    if shape is None:
        return []
    return [
        t.parameter(name, shape, run.dtype)
        for name in ("weight", "bias")[: 2 if config.norm == "layer" else 1]
    ]


def _kernel(t: Tape, x: Value, parameters: list[Value], label: str, statistics: int) -> Value:
    kept = ((*x.shape[:-1], statistics), "fp32")
    if not x.node:
        return t.op(label, "norm", [x, *parameters], x.shape, workspace=4 * statistics * x.rows)
    y, found = t.ops(label, "norm", [x, *parameters], [(x.shape, x.dtype), kept])

    def gradient(g: Value) -> None:
        # one kernel for the input's gradient, and a sum over the rows for each parameter
        t.give(x, t.op(f"{label}.grad_input", "norm", [g, x, found, *parameters[:1]], x.shape))
        for p in parameters:
            name = p.tensor.rpartition(".")[2]
            t.give(
                p, t.op(f"{label}.grad_{name}", "reduction", [g, x, found], p.shape, gradient_of=p)
            )

    return t.note(y, gradient)
