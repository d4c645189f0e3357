"""The functions that models are made of. They work on values of a tape, and each has the ops of its
gradient.

The ops are those of eager PyTorch, with the granularity of its kernels: a gradient keeps what
torch's formula keeps. Views have no op.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

from hosim.data.graph_parts import READ
from hosim.edits import SEEDED
from hosim.io.models.packed import FOR_TRANSFER, SEPARATE
from hosim.io.models.tape import ITEM_BYTES, Tape, Value

SCALAR: tuple[int, ...] = ()

LOSSES = ("whole", "compiled", "chunked")
"""The ways to compute a decoder's loss from the result of its last layer."""


def linear(
    t: Tape, x: Value, weight: Value, bias: Value | None = None, label: str = "linear"
) -> Value:
    """``x @ weight.T + bias``; ``weight`` is [out, in].

    If the weight computes in fp8, so do the gradients: they read the output's gradient rounded to
    fp8, and ``x`` as it was rounded in the forward pass.
    """
    wide, narrow = weight.shape
    flops = 2 * x.rows * wide * narrow
    read, factor = operands(t, x, weight)
    inputs = [read, factor] if bias is None else [read, factor, bias]
    rows = x.rows
    y = t.op(
        label,
        "matmul",
        inputs,
        (*x.shape[:-1], wide),
        x.dtype,
        flops=flops,
        kernel="gemm",
        sizes=(rows, wide, narrow),
        computes=factor.computes,
    )

    def gradient(g: Value) -> None:
        # later additions change a gradient's tensor in place, so its rounded copy is not reused
        arrived, factor = operands(t, replace(g, node=0), weight, once=True)
        how: dict[str, Any] = {"flops": flops, "kernel": "gemm", "computes": factor.computes}
        if x.node:
            t.give(
                x,
                t.op(
                    f"{label}.grad_input",
                    "matmul",
                    [arrived, factor],
                    x.shape,
                    x.dtype,
                    sizes=(rows, narrow, wide),
                    **how,
                ),
            )
        if weight.node:
            shape, sizes = weight.shape, (wide, narrow, rows)
            t.give(
                weight,
                t.op(
                    f"{label}.grad_weight",
                    "matmul",
                    [arrived, read],
                    shape,
                    weight.dtype,
                    gradient_of=weight,
                    sizes=sizes,
                    **how,
                ),
            )
        if bias is not None:
            t.give(bias, t.op(f"{label}.grad_bias", "reduction", [g], bias.shape, gradient_of=bias))

    return t.note(y, gradient)


def operands(t: Tape, x: Value, weight: Value, *, once: bool = False) -> tuple[Value, Value]:
    """``x`` and ``weight`` as a product reads them: some packed weights need a narrower ``x``,
    others are unpacked first.
    """
    if weight.dtype in FOR_TRANSFER or (weight.dtype in SEPARATE and x.rows > 1):
        return x, t.op("dequantise", "copy", [weight], weight.shape, x.dtype)
    narrow = {"fp8": "fp8", "fp8_block": "fp8", "int8": "int8"}.get(weight.computes)
    if (
        narrow is not None and weight.dtype in ITEM_BYTES
    ):  # in training, where the weight itself is wider
        rounded = (
            t.op("quantise", "elementwise", [x], x.shape, narrow) if once else t.narrowed(x, narrow)
        )
        return rounded, replace(
            t.narrowed(weight, narrow, "quantise_weight"), computes=weight.computes
        )
    return x if narrow is None else t.narrowed(x, narrow), weight


def add(t: Tape, a: Value, b: Value, label: str = "add") -> Value:
    """``a + b``; the smaller one is broadcast."""
    y = t.op(label, "elementwise", [a, b], _wider(a, b).shape, _wider_dtype(a, b))

    def gradient(g: Value) -> None:
        for value in (a, b):
            if value.node:
                t.give(value, _reduced(t, g, value, label))

    return t.note(y, gradient)


def mul(t: Tape, a: Value, b: Value, label: str = "mul") -> Value:
    """``a * b``; the smaller one is broadcast."""
    y = t.op(label, "elementwise", [a, b], _wider(a, b).shape, _wider_dtype(a, b))

    def gradient(g: Value) -> None:
        for value, other in ((a, b), (b, a)):
            if value.node:
                whole = t.op(
                    f"{label}.grad",
                    "elementwise",
                    [g, other],
                    g.shape,
                    value.dtype,
                    gradient_of=value if prod(value.shape) == prod(g.shape) else None,
                )
                t.give(value, _reduced(t, whole, value, label))

    return t.note(y, gradient)


def scale(t: Tape, x: Value, label: str = "mul") -> Value:
    """``x`` times a number, or plus a number."""
    return t.note(
        t.op(label, "elementwise", [x], x.shape),
        lambda g: t.give(x, t.op(f"{label}.grad", "elementwise", [g], x.shape)),
    )


def activation(t: Tape, x: Value, label: str, *, keeps: str = "input") -> Value:
    """An elementwise function whose gradient needs its ``input`` (silu, gelu) or its ``output``
    (tanh, sigmoid, rsqrt).
    """
    y = t.op(label, "elementwise", [x], x.shape)
    return t.note(
        y,
        lambda g: t.give(
            x, t.op(f"{label}.grad", "elementwise", [g, x if keeps == "input" else y], x.shape)
        ),
    )


def square(t: Tape, x: Value, label: str = "pow") -> Value:
    """``x ** 2``."""
    return t.note(
        t.op(label, "elementwise", [x], x.shape),
        lambda g: t.give(
            x, t.op(f"{label}.grad", "elementwise", [g, x], x.shape, workspace=x.size)
        ),
    )


def mean(t: Tape, x: Value, label: str = "mean") -> Value:
    """The mean over the last dimension, which becomes 1."""
    return t.note(
        t.op(label, "reduction", [x], (*x.shape[:-1], 1)),
        lambda g: t.give(x, t.op(f"{label}.grad", "elementwise", [g], x.shape)),
    )


def cast(t: Tape, x: Value, dtype: str, label: str = "to") -> Value:
    """``x`` in another dtype."""
    if x.dtype == dtype:
        return x
    return t.note(
        t.op(label, "copy", [x], x.shape, dtype),
        lambda g: t.give(x, t.op(f"{label}.grad", "copy", [g], x.shape, x.dtype)),
    )


def copied(
    t: Tape, x: Value, shape: tuple[int, ...] | None = None, label: str = "reshape"
) -> Value:
    """A copy of ``x`` in memory of its own, as for a reshape that no view can express. A larger
    ``shape`` repeats it.
    """
    wanted = shape or x.shape
    y = t.op(label, "copy", [x], wanted)
    repeats = prod(wanted) > prod(x.shape)
    return t.note(
        y,
        lambda g: t.give(
            x, t.op(f"{label}.grad", "reduction", [g], x.shape) if repeats else g.view(*x.shape)
        ),
    )


def concatenated(t: Tape, parts: Sequence[Value], label: str = "cat") -> Value:
    """The parts, concatenated along the last dimension; a part with fewer rows is repeated. The
    parts' gradients are views of the result's gradient, or sums.
    """
    rows = max(p.rows for p in parts)
    shape = next(p.shape[:-1] for p in parts if p.rows == rows)
    y = t.op(label, "copy", list(parts), (*shape, sum(p.shape[-1] for p in parts)))

    def gradient(g: Value) -> None:
        for part in parts:
            if part.node and part.rows < rows:
                t.give(
                    part,
                    t.op(
                        f"{label}.grad",
                        "reduction",
                        [g],
                        part.shape,
                        accessed=(rows // part.rows + 1) * part.size,
                    ),
                )
            else:
                t.give(part, replace(g, shape=part.shape))

    return t.note(y, gradient)


def split(t: Tape, x: Value, sizes: Sequence[int], label: str = "split") -> list[Value]:
    """Views of ``x`` along its last dimension. In the backward pass their gradients are
    concatenated.
    """
    whole = t.alias(x)
    parts = [replace(t.alias(whole), shape=(*x.shape[:-1], n)) for n in sizes]
    if not whole.node:
        return parts
    arrived: dict[int, Value] = {}

    # the backward pass meets the first part last: by then the gradients of the others have arrived
    def first(g: Value) -> None:
        together = [g, *arrived.values()]
        t.give(
            x,
            t.op(
                f"{label}.grad",
                "copy",
                together,
                x.shape,
                accessed=sum(sizes) * x.rows * ITEM_BYTES[x.dtype] * 2,
            ),
        )

    def later(n: int) -> None:
        t.note(parts[n], lambda g: arrived.__setitem__(n, g))

    t.note(parts[0], first)
    for n in range(1, len(parts)):
        later(n)
    return parts


def embedding(t: Tape, weight: Value, ids: Value, label: str = "embedding") -> Value:
    """The rows ``ids`` of ``weight`` [entries, n]."""
    shape = (*ids.shape, weight.shape[-1])
    result = prod(shape) * ITEM_BYTES[weight.dtype]
    y = t.op(
        label,
        "embedding",
        [weight.part(READ), ids],
        shape,
        weight.dtype,
        accessed=ids.size + result + min(weight.size, result),
    )

    def gradient(g: Value) -> None:
        accessed = weight.size + 3 * g.size + ids.size
        t.give(
            weight,
            t.op(
                f"{label}.grad_weight",
                "embedding",
                [g, ids],
                weight.shape,
                accessed=accessed,
                gradient_of=weight,
            ),
        )

    return t.note(y, gradient)


def gathered(t: Tape, x: Value, index: Value, rows: int, label: str = "index") -> Value:
    """``rows`` rows of ``x`` [n, width], selected by ``index``. In the backward pass they are added
    to the rows that they came from.
    """
    shape = (rows, *x.shape[1:])
    size = prod(shape) * ITEM_BYTES[x.dtype]
    return t.note(
        t.op(label, "gather", [x, index], shape, accessed=size + min(size, x.size) + index.size),
        lambda g: t.give(
            x,
            t.op(
                f"{label}.grad",
                "scatter",
                [g, index],
                x.shape,
                accessed=x.size + 3 * g.size + index.size,
            ),
        ),
    )


def summed(t: Tape, x: Value, shape: tuple[int, ...], label: str = "sum") -> Value:
    """``x`` summed to ``shape``; its gradient is expanded and copied."""
    return t.note(
        t.op(label, "reduction", [x], shape),
        lambda g: t.give(x, t.op(f"{label}.grad", "copy", [g], x.shape)),
    )


def softmax(t: Tape, x: Value, dtype: str | None = None, label: str = "softmax") -> Value:
    """The softmax over the last dimension, in ``dtype``."""
    kept = dtype or x.dtype
    workspace = x.size * ITEM_BYTES[kept] // ITEM_BYTES[x.dtype] if kept != x.dtype else 0
    y = t.op(label, "softmax", [x], x.shape, kept, workspace=workspace)
    return t.note(
        y, lambda g: t.give(x, t.op(f"{label}.grad", "softmax", [g, y], x.shape, x.dtype))
    )


def _masked(t: Tape, label: str, inputs: Sequence[Value]) -> tuple[Value, ...]:
    """A random op with two results: one like its first input, and the mask of the kept elements. If
    it runs again, as in a checkpoint, it draws the same.
    """
    t.builder.meta[SEEDED] = True
    shape = inputs[0].shape
    return t.ops(label, "random", inputs, [(shape, inputs[0].dtype), (shape, "bool")])


def dropout(t: Tape, x: Value, rate: float, label: str = "dropout") -> Value:
    """``x`` after dropout, which training applies and whose mask it keeps."""
    if not rate or not t.training:
        return x
    y, mask = _masked(t, label, [x])
    return t.note(y, lambda g: t.give(x, t.op(f"{label}.grad", "elementwise", [g, mask], x.shape)))


def dropout_added(
    t: Tape, x: Value, y: Value, rate: float, label: str, *, fused: bool = False
) -> Value:
    """``x`` plus ``y`` after dropout; as one kernel if ``fused``."""
    if not fused or not rate or not t.training:
        return add(t, x, dropout(t, y, rate), label)
    z, mask = _masked(t, label, [x, y])

    def gradient(g: Value) -> None:
        if y.node:
            t.give(y, t.op(f"{label}.grad", "elementwise", [g, mask], y.shape))
        t.give(x, g)

    return t.note(z, gradient)


def cross_entropy(t: Tape, logits: Value, labels: Value) -> Value:
    """The mean loss of ``logits`` [rows, classes], computed in fp32; its gradient keeps the
    log-probabilities.
    """
    wide = cast(t, logits, "fp32", "logits.to")
    chances = t.op("log_softmax", "softmax", [wide], wide.shape)
    t.note(
        chances,
        lambda g: t.give(wide, t.op("log_softmax.grad", "softmax", [g, chances], wide.shape)),
    )
    return t.note(
        t.op(
            "nll_loss",
            "reduction",
            [chances, labels],
            SCALAR,
            accessed=labels.size + 4 * labels.rows,
        ),
        lambda g: t.give(chances, t.op("nll_loss.grad", "elementwise", [g, labels], chances.shape)),
    )


def compiled_cross_entropy(t: Tape, logits: Value, labels: Value) -> Value:
    """The same loss with a kernel for the sums and one for each way, as a compiler fuses it: it
    keeps the logarithm of a sum for each row, and the logits unchanged.
    """
    sums = t.op("log_sum_exp", "reduction", [logits], (logits.rows, 1), "fp32")
    return t.note(
        t.op(
            "nll_loss",
            "reduction",
            [logits, sums, labels],
            SCALAR,
            "fp32",
            accessed=labels.size + sums.size + 4 * labels.rows,
        ),
        lambda g: t.give(
            logits,
            t.op(
                "nll_loss.grad",
                "elementwise",
                [g, logits, sums, labels],
                logits.shape,
                logits.dtype,
            ),
        ),
    )


def chunked_loss(t: Tape, x: Value, weight: Value, labels: Value) -> Value:
    """Head and mean loss for one chunk of the rows at a time, with their gradients, so that no
    chunk's logits are kept.

    The number of chunks is the ratio of the vocabulary to the hidden size, rounded up to a power of
    two: the logits of one chunk then take about as much as ``x`` (Liger Kernel, P.-L. Hsu et al.,
    arXiv 2410.10989, section 3.2). ``x`` is [rows, n], ``weight`` [classes, n].
    """
    classes, width = weight.shape
    count = min(1 << max(0, -(-classes // width) - 1).bit_length(), x.rows)
    inside, head = replace(x, node=0), replace(weight, node=0)
    whole = t.op("loss.grad_input", "fill", [], x.shape, x.dtype)
    sums = [whole]
    if weight.node:
        filled = t.op(
            "loss.grad_weight", "fill", [], weight.shape, weight.dtype, gradient_of=weight
        )
        sums.append(filled)
    flops, losses = 0, []
    for i in range(count):
        rows = x.rows * (i + 1) // count - x.rows * i // count
        flops = 2 * rows * classes * width
        how: dict[str, Any] = {"flops": flops, "kernel": "gemm", "computes": x.dtype}
        part, part_of_weight = rows * width * ITEM_BYTES[x.dtype], weight.size
        logits = t.op(
            f"lm_head.{i}", "matmul", [inside, head], (rows, classes), x.dtype, sizes=(rows, classes, width),
            accessed=part + part_of_weight + rows * classes * ITEM_BYTES[x.dtype], **how,
        )  # fmt: skip
        losses.append(
            t.ops(f"loss.{i}", "softmax", [labels], [((rows,), "fp32")], mutates=[logits])[0]
        )
        t.ops(f"loss.{i}.grad_input", "matmul", [logits, head], [], mutates=[whole], sizes=(rows, width, classes),
              accessed=logits.size + part_of_weight + part, **how)  # fmt: skip
        for learns in sums[1:]:
            t.ops(f"loss.{i}.grad_weight", "matmul", [logits, inside], [], mutates=[learns], sizes=(classes, width, rows),
                  accessed=logits.size + part + 2 * learns.size, **how)  # fmt: skip
    loss = t.op("loss", "reduction", losses, SCALAR, "fp32")
    loss = replace(loss, node=t.alias(x).node)

    def gradient(g: Value) -> None:
        t.ops("loss.scale", "elementwise", [g], [], mutates=sums)
        for value, gradient_of in zip((x, weight), sums, strict=False):
            t.give(value, gradient_of)

    return t.note(loss, gradient)


def _wider(a: Value, b: Value) -> Value:
    return a if prod(a.shape) >= prod(b.shape) else b


def _wider_dtype(a: Value, b: Value) -> str:
    return max(a.dtype, b.dtype, key=ITEM_BYTES.__getitem__)


def _reduced(t: Tape, g: Value, value: Value, label: str) -> Value:
    """``g`` summed to the shape of ``value``, if that is smaller."""
    if prod(value.shape) == prod(g.shape):
        return g.view(*value.shape)
    return t.op(f"{label}.grad_sum", "reduction", [g], value.shape, value.dtype, gradient_of=value)
