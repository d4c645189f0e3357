"""Layers with their parameters: linear, layer norm, embedding table, attention of equal heads, and
an MLP of two layers.
"""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

from hosim.data.graph_parts import READ, REST
from hosim.io.models.attention import AttentionKernel, attention
from hosim.io.models.collectives import of_copies
from hosim.io.models.config import Run
from hosim.io.models.functions import (
    activation,
    add,
    cross_entropy,
    dropout,
    embedding,
    linear,
    mul,
    scale,
    square,
)
from hosim.io.models.norms import layer_norm
from hosim.io.models.packed import PACKINGS
from hosim.io.models.tape import Tape, Value


def dense(t: Tape, run: Run, name: str, x: Value, width: int, *, bias: bool = True) -> Value:
    """A linear layer ``name`` to ``width``."""
    with t.scope(name):
        weight = t.parameter("weight", (width, x.shape[-1]), run.dtype)
        offset = t.parameter("bias", (width,), run.dtype) if bias else None
        return linear(t, x, weight, offset)


def projected(
    t: Tape,
    run: Run,
    name: str,
    x: Value,
    width: int,
    *,
    bias: bool = False,
    copies: tuple[int, int] = (0, 1),
) -> Value:
    """A linear layer ``name`` to ``width``, emitted as one op of that name. ``copies`` has the
    number of its last rows that are copies, and the number of devices that have them.
    """
    weight = factor(t, run, f"{name}.weight", (width, x.shape[-1]))
    offset = t.parameter(f"{name}.bias", (width,), run.dtype) if bias else None
    for each in (weight, offset):
        if each is not None:
            of_copies(t, run, each, *copies)
    return adapted(t, run, name, x, linear(t, x, weight, offset, label=name))


def adapted(t: Tape, run: Run, name: str, x: Value, y: Value) -> Value:
    """Return ``y``, the result of a projection ``name`` of ``x``, plus the result of its adapter,
    if it has one (LoRA, E. Hu et al., ICLR 2022): two products, a factor, and the sum.
    """
    rank, modules = run.lora_rank, run.lora_modules
    if rank is None or (modules is not None and name not in modules.split("/")):
        return y
    t.adapted.add(name)
    for part, shape in (("lora_A", (rank, x.shape[-1])), ("lora_B", (y.shape[-1], rank))):
        weight = t.parameter(f"{name}.{part}.weight", shape, run.dtype, adapter=True)
        x = linear(t, x, weight, label=f"{name}.{part}")
    return add(t, y, x if run.fused else scale(t, x, f"{name}.lora_scale"), f"{name}.add_lora")


def factor(
    t: Tape,
    run: Run,
    name: str,
    shape: tuple[int, ...],
    kind: str = "parameter",
    home: str | None = None,
    parts: Mapping[str, tuple[int, ...]] | None = None,
) -> Value:
    """The weight of a product, packed if the run says so."""
    if run.weights is None or (run.packed == "experts" and kind != "expert"):
        return t.parameter(
            name, shape, run.dtype, kind, home, computes=run.products or "", parts=parts
        )
    computes = run.activations or PACKINGS[run.weights].computes
    if run.activations == "fp8" and run.group:
        computes = "fp8_block"
    return t.parameter(
        name, shape, run.weights, kind, home, group=run.group or 0, computes=computes, parts=parts
    )


def convolution(
    t: Tape, run: Run, label: str, x: Value, factor: tuple[int, ...], made: tuple[int, ...]
) -> Value:
    """Convolve ``x`` with a weight of the shape ``factor``, [width, ...], and add a bias; the
    result has the shape ``made``, [..., width].
    """
    weight = t.parameter("weight", factor, run.dtype)
    bias = t.parameter("bias", factor[:1], run.dtype)
    flops = 2 * prod(made) * prod(factor[1:])
    y = t.op(label, "convolution", [x, weight, bias], made, flops=flops)

    def gradient(g: Value) -> None:
        of_input, of_weight = f"{label}.grad_input", f"{label}.grad_weight"
        if x.node:
            t.give(x, t.op(of_input, "convolution", [g, weight], x.shape, flops=flops))
        how: dict[str, Any] = {"flops": flops, "gradient_of": weight}
        t.give(weight, t.op(of_weight, "convolution", [g, x], weight.shape, **how))
        t.give(bias, t.op(f"{label}.grad_bias", "reduction", [g], bias.shape, gradient_of=bias))

    return t.note(y, gradient)


def normed(t: Tape, run: Run, name: str, x: Value, *, affine: bool = True) -> Value:
    """A layer norm ``name``, with weight and bias if it is ``affine``."""
    with t.scope(name):
        shape = x.shape[-1:]
        return layer_norm(
            t,
            x,
            t.parameter("weight", shape, run.dtype) if affine else None,
            t.parameter("bias", shape, run.dtype) if affine else None,
        )


def looked_up(t: Tape, run: Run, name: str, ids: Value, entries: int, width: int) -> Value:
    """The rows ``ids`` of an embedding table ``name``."""
    with t.scope(name):
        return embedding(t, table(t, run, "weight", entries, width, prod(ids.shape)), ids)


def table(t: Tape, run: Run, name: str, entries: int, width: int, rows: int) -> Value:
    """An embedding table ``name``. In inference, the ``rows`` that are read are a part of it; they
    count as all different.
    """
    read = min(entries, rows)
    return t.parameter(
        name,
        (entries, width),
        run.dtype,
        parts={READ: (read, width), REST: (entries - read, width)},
    )


def attended(
    t: Tape, run: Run, q: Value, k: Value, v: Value, heads: int, *, causal: bool = False
) -> Value:
    """Attention of equal heads over ``q``, ``k`` and ``v`` [batch, tokens, heads * width]; if
    ``causal``, only over earlier tokens.
    """

    def by_head(x: Value) -> Value:
        batch, tokens, hidden = x.shape
        return x.view(batch, heads, tokens, hidden // heads)

    return attention(t, by_head(q), by_head(k), by_head(v), AttentionKernel(causal=causal)).view(
        *q.shape
    )


def gelu(t: Tape, run: Run, x: Value) -> Value:
    """The exact GELU, as one kernel."""
    return activation(t, x, "gelu")


def gelu_new(t: Tape, run: Run, x: Value) -> Value:
    """The tanh approximation of GELU: op by op as in transformers, or ``fused`` as one kernel."""
    if run.fused:
        return gelu(t, run, x)
    half = scale(t, x)  # made first, and live until the last op
    inside = scale(t, add(t, x, scale(t, square(t, x))))
    return mul(t, half, scale(t, activation(t, inside, "tanh", keeps="output"), "add"))


def activated(t: Tape, run: Run, name: str, x: Value) -> Value:
    """The activation that a config calls ``name``."""
    if name == "gelu_new":
        return gelu_new(t, run, x)
    return activation(t, x, name, keeps="output" if name == "relu" else "input")


def mlp(
    t: Tape,
    run: Run,
    x: Value,
    names: tuple[str, str],
    width: int,
    act: Callable[[Tape, Run, Value], Value],
    drop: float = 0.0,
) -> Value:
    """Two linear layers with ``act`` between them, and dropout after."""
    inside = act(t, run, dense(t, run, names[0], x, width))
    return dropout(t, dense(t, run, names[1], inside, x.shape[-1]), drop)


def repeated(
    t: Tape, run: Run, numbers: range, name: str, x: Value, layer: Callable[[Value], Value]
) -> Value:
    """Return ``x`` after a layer for each of ``numbers``, in a scope of ``name`` and the number. Of
    checkpointed layers only the input is kept.
    """
    for n in numbers:

        def scoped(x: Value, n: int = n) -> Value:
            with t.scope(f"{name}.{n}"):
                return layer(x)

        x = t.checkpointed(scoped, x, run=run) if run.checkpoints(n) else scoped(x)
    return x


def scored(
    t: Tape, run: Run, x: Value, weight: Value, bias: Value | None, label: str, kernel: str = "gemm"
) -> Value:
    """Return the loss of a model's last product in training, else its result; ``kernel`` is the
    kernel for the latter.
    """
    classes, width = weight.shape
    if run.training:
        logits = linear(t, x, weight, bias, label=label)
        labels = t.held("labels", (logits.rows,), "int64", "input")
        return cross_entropy(t, logits.view(logits.rows, classes), labels)
    return t.op(
        label,
        "matmul",
        [x, weight] if bias is None else [x, weight, bias],
        (*x.shape[:-1], classes),
        flops=2 * x.rows * classes * width,
        result_kind="output",
        kernel=kernel,
        sizes=(x.rows, classes, width) if kernel else (),
    )
