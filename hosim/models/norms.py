"""Normalisation: root mean square as transformers writes it, and the layer norm kernel."""

from __future__ import annotations

from hosim.models.config import Decoder, Run
from hosim.models.functions import activation, cast, mean, mul, scale, square
from hosim.models.tape import Tape, Value


def rms_norm(t: Tape, x: Value, weight: Value, *, fused: bool = False) -> Value:
    """``weight * x / sqrt(mean(x**2) + eps)`` over the last extent, in fp32 inside; ``fused``: as one kernel."""
    if fused:
        return _kernel(t, x, [weight], "rms_norm", 1)
    wide = cast(t, x, "fp32")
    deviation = activation(t, scale(t, mean(t, square(t, wide)), "add"), "rsqrt", keeps="output")
    return mul(t, cast(t, mul(t, wide, deviation), x.dtype), weight)


def layer_norm(t: Tape, x: Value, weight: Value | None, bias: Value | None) -> Value:
    """``(x - mean) / deviation * weight + bias`` over the last extent: one kernel that keeps mean and deviation."""
    return _kernel(t, x, [p for p in (weight, bias) if p is not None], "layer_norm", 2)


def decoder_norm(t: Tape, config: Decoder, run: Run, name: str, x: Value) -> Value:
    """The norm ``name`` of a decoder."""
    with t.scope(name):
        weight, *bias = norm_parameters(t, config, run, x.shape[-1])
        if config.norm == "rms":
            return rms_norm(t, x, weight, fused=run.fused or run.merged)
        return layer_norm(t, x, weight, bias[0] if bias else None)


def norm_parameters(t: Tape, config: Decoder, run: Run, width: int) -> list[Value]:
    """The parameters of the norm of a decoder whose scope it is."""
    return [t.parameter(name, (width,), run.dtype) for name in ("weight", "bias")[: 2 if config.norm == "layer" else 1]]


def _kernel(t: Tape, x: Value, parameters: list[Value], label: str, statistics: int) -> Value:
    kept = ((*x.shape[:-1], statistics), "fp32")
    if not x.node:
        return t.op(label, "norm", [x, *parameters], x.shape, workspace=4 * statistics * x.rows)
    y, found = t.ops(label, "norm", [x, *parameters], [(x.shape, x.dtype), kept])

    def gradient(g: Value) -> None:
        # the kernel of the input's gradient, and for each parameter a sum over the rows
        t.give(x, t.op(f"{label}.grad_input", "norm", [g, x, found, *parameters[:1]], x.shape))
        for p in parameters:
            name = p.tensor.rpartition(".")[2]
            t.give(p, t.op(f"{label}.grad_{name}", "reduction", [g, x, found], p.shape, gradient_of=p))

    t.note(y, gradient)
    return y
