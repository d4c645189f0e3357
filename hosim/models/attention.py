"""Attention over queries, keys and values, fused or not, and rotary positions."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from hosim.costmodel.kernels import NO_WINDOW, UNKNOWN, causal_kernel
from hosim.models.functions import copied
from hosim.models.tape import ITEM_BYTES, Tape, Value

MODES = ("causal", "masked", "math", "scores")
"""``causal``: the fused kernel in causal mode, with grouped heads inside. ``masked``: the fused
kernel with an explicit mask and keys repeated to the queries' heads, which transformers runs if it
cannot see that the mask is causal (when traced). ``math``: no fused kernel supports these heads,
and scores are in memory (torch with heads of unequal width). ``scores``: they are in memory in the
dtype of the step, between two products and one kernel that scales, masks and takes the softmax, as
Megatron-LM has it without a fused kernel.
"""

_MOVED = {"math": (34, 0), "scores": (12, 17)}
"""Where scores are in memory, the bytes of each that attention and its gradient move (0: what the
gradient reads and writes).

torch's math path goes over its scores some nine times, in four bytes. With ``scores``, in two bytes
and one for a mask, a product writes them, the softmax and dropout read and write them, and a
product reads what is left. Going backward, a product reads that and another one writes its
gradient, which goes through dropout with the mask and through the softmax with its result, and two
products read it.
"""


def scores_in_memory(mode: str, scores: int, dtype: str) -> tuple[int, int] | None:
    """The bytes that so many scores take, and those that attention moves of them; ``None`` where no
    mode keeps them in memory.
    """
    return (
        ({"math": 9, "scores": 2 * ITEM_BYTES[dtype]}[mode] * scores, _MOVED[mode][0] * scores)
        if mode in _MOVED
        else None
    )


def attention(
    t: Tape,
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None = None,
    *,
    mode: str = "causal",
    extra: Sequence[Value] = (),
    label: str = "sdpa",
    causal: bool = False,
    drops: bool = False,
    window: int = NO_WINDOW,
    library: str | None = None,
    again: bool = False,
) -> Value:
    """``softmax(q k') v`` of ``q`` [batch, heads, queries, width], ``k`` and ``v`` [batch, fewer
    heads, keys, width].

    The result is [batch, queries, heads, width of v]. FLOP count every key for every query, as
    torch's counter does. ``extra`` are other tensors that the kernel reads: parts of keys and
    values, slopes, learned scores. ``causal``: a query sees the keys up to its own, the last
    queries being those of the last keys; then the op says which kernel it is. ``drops``: some
    scores are dropped in training; ``math`` keeps which. ``window``: how many keys a query reads at
    most.
    ``library``: whose kernels these are, of
    :data:`hosim.costmodel.kernels.op_families.attention_time.FLASH` (none: those of an inference
    engine).
    ``again``: it is computed again for its gradient, so that nothing but its inputs and its result
    is kept.
    """
    more: dict[str, Any]
    if again:
        more = {
            "mode": mode,
            "extra": extra,
            "label": label,
            "causal": causal,
            "drops": drops,
            "window": window,
            "library": library,
        }
        return t.checkpointed(lambda q, k, v: attention(t, q, k, v, mask, **more), q, k, v)
    batch, heads, queries, width = q.shape
    keys, out_width = k.shape[2], v.shape[-1]
    if mode != "causal" and k.shape[1] < heads:
        k = copied(t, k, (batch, heads, keys, k.shape[-1]), f"{label}.repeat_k")
        v = copied(t, v, (batch, heads, keys, out_width), f"{label}.repeat_v")
    scores = batch * heads * queries * min(keys, window)
    flops = 2 * scores * (width + out_width)
    shape = (batch, queries, heads, out_width)
    kernel, sizes = (
        causal_kernel(q.shape, k.shape, out_width, window)
        if causal and mode == "causal"
        else UNKNOWN
    )
    context = kernel == "context_attention"
    if context and library is not None:
        kernel = f"{library}_attention"
    statistics = batch * heads * queries * 4
    training = bool(q.node)
    if (
        mask is not None and training and mode == "masked"
    ):  # what the kernel adds to the scores, and keeps for its gradient
        mask = t.op(f"{label}.mask", "copy", [mask], mask.shape, q.dtype)
    seen = [x for x in (mask, q, k, v) if x is not None]
    inputs = [*seen, *(x for x in extra if x.tensor not in {s.tensor for s in seen})]
    # beside its result: the softmax' statistics, the mask as numbers; or scores before and after
    # softmax and which rows are masked
    spare = prod(mask.shape) * ITEM_BYTES[q.dtype] if mask is not None and not training else 0
    in_memory, wide = mode in _MOVED, "fp32" if mode == "math" else q.dtype
    workspace, moved = scores_in_memory(mode, scores, q.dtype) or (spare, 0)
    moved_back = scores * _MOVED.get(mode, (0, 0))[1]
    accessed = sum([x.size for x in inputs]) + q.rows * out_width * ITEM_BYTES[q.dtype] + moved
    if not training:
        workspace += 0 if in_memory else statistics
        return t.op(
            label,
            "attention",
            inputs,
            shape,
            q.dtype,
            flops=flops,
            accessed=accessed,
            workspace=workspace,
            kernel=kernel,
            sizes=sizes,
            computes=k.computes or q.dtype,
        )
    every = (batch, heads, queries, keys)
    results: list[tuple[tuple[int, ...], str]] = [
        (shape, q.dtype),
        (every, wide) if in_memory else (every[:-1], "fp32"),
    ]
    if (
        in_memory and drops
    ):  # the probabilities are kept, and of ``scores`` what dropout leaves of them
        results += [(every, "bool"), (every, wide)][: 2 if mode == "scores" else 1]
    more = {
        "flops": flops,
        "accessed": accessed,
        "workspace": workspace,
        "kernel": kernel,
        "sizes": sizes,
        "computes": q.dtype,
    }
    y, lse, *dropped = t.ops(label, "attention", inputs, results, **more)

    def gradient(g: Value) -> None:
        # the fused kernel computes the scores again: five products for the two going forward
        work = 2 * scores * ((2 if in_memory else 3) * width + 2 * out_width)
        taken = [g, *seen, y, lse, *dropped]
        grads = t.ops(
            f"{label}.grad",
            "attention",
            taken,
            [(x.shape, x.dtype) for x in (q, k, v)],
            flops=work,
            accessed=sum([x.size for x in (*taken[: -1 - len(dropped)], q, k, v)]) + moved_back
            if moved_back
            else None,
            workspace=lse.size if in_memory else statistics,
            kernel=f"{library or 'context'}_gradient" if context else "",
            sizes=sizes if context else (),
        )
        for x, grad in zip((q, k, v), grads, strict=True):
            t.give(x, grad)
        for x in extra:
            if x.node:  # scores that the model learns beside those of keys
                t.give(
                    x,
                    t.op(
                        f"{label}.grad_extra",
                        "reduction",
                        [g, y, lse, x],
                        x.shape,
                        x.dtype,
                        gradient_of=x,
                    ),
                )

    t.note(y, gradient)
    return y


def rotated(
    t: Tape, x: Value, cos: Value, sin: Value, *, fused: bool = False, label: str = "rope"
) -> Value:
    """Rotary positions on ``x``; ``cos`` and ``sin`` have no gradient, and only they are kept."""
    if fused:
        y = t.op(label, "elementwise", [x, cos, sin], x.shape)
        t.note(y, lambda g: t.give(x, t.op(f"{label}.grad", "elementwise", [g, cos, sin], x.shape)))
        return y
    half = (*x.shape[:-1], x.shape[-1] // 2)
    along = t.op(f"{label}.mul_cos", "elementwise", [x, cos], x.shape)
    minus = t.op(f"{label}.neg", "elementwise", [x], half, accessed=x.size)
    turned = t.op(f"{label}.cat", "copy", [minus, x], x.shape, accessed=2 * x.size)
    across = t.op(f"{label}.mul_sin", "elementwise", [turned, sin], x.shape)
    y = t.op(f"{label}.add", "elementwise", [along, across], x.shape)

    def gradient(g: Value) -> None:
        across = t.op(f"{label}.mul_sin.grad", "elementwise", [g, sin], x.shape)
        minus = t.op(f"{label}.neg.grad", "elementwise", [across], half, accessed=x.size)
        turned = t.op(f"{label}.slice.grad", "copy", [minus, across], x.shape, workspace=x.size)
        along = t.op(f"{label}.mul_cos.grad", "elementwise", [g, cos], x.shape)
        t.ops(
            f"{label}.accumulate", "elementwise", [turned], [], mutates=[along], accessed=3 * x.size
        )
        t.give(x, along)

    t.note(y, gradient)
    return y


def rotated_pairs(
    t: Tape, x: Value, cos: Value, sin: Value, *, fused: bool = False, label: str = "rope"
) -> Value:
    """Rotary positions on interleaved pairs of ``x``, as DeepSeek lays them out."""
    if fused:
        return rotated(t, x, cos, sin, fused=True, label=label)
    half = (*x.shape[:-1], x.shape[-1] // 2)
    touched = x.size + cos.size // 2

    def turned(part: str, join: str) -> Value:
        one = t.op(f"{label}.{part}_mul_cos", "elementwise", [x, cos], half, accessed=touched)
        other = t.op(f"{label}.{part}_mul_sin", "elementwise", [x, sin], half, accessed=touched)
        return t.op(f"{label}.{part}_{join}", "elementwise", [one, other], half)

    y = t.op(f"{label}.cat", "copy", [turned("even", "sub"), turned("odd", "add")], x.shape)
    t.note(
        y,
        lambda g: t.give(
            x, t.op(f"{label}.grad", "elementwise", [g, cos, sin], x.shape, workspace=2 * x.size)
        ),
    )
    return y
