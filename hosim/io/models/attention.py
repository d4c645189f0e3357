"""Attention over queries, keys and values, fused or not, and rotary positions."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from hosim.analysis.costmodel.kernels import NO_WINDOW, UNKNOWN, KernelSizes, causal_kernel
from hosim.io.models.functions import copied
from hosim.io.models.tape import ITEM_BYTES, Tape, Value

MODES = ("causal", "masked", "math", "scores")
"""``causal``: the fused kernel in causal mode, with grouped heads inside. ``masked``: the fused
kernel with an explicit mask, and keys repeated to the queries' heads; transformers runs it if it
cannot see that the mask is causal (when traced). ``math``: no fused kernel supports these heads,
and scores are in memory (torch with heads of unequal width). ``scores``: scores are in memory in
the dtype of the step, between two products and one kernel that scales, masks and takes the softmax,
as in Megatron-LM without a fused kernel.
"""

_MOVED = {"math": (34, 0), "scores": (12, 17)}
"""The bytes that attention and its gradient move for each score, if scores are in memory (0: the
bytes that the gradient reads and writes).

torch's math path passes over its scores about nine times, in four bytes. With ``scores``, in two
bytes and one for a mask, a product writes them, the softmax and dropout read and write them, and a
product reads the result. In the backward pass, a product reads that result and another one writes
its gradient, which goes through dropout with the mask and through the softmax with its result; two
products read it.
"""


def scores_in_memory(mode: str, scores: int, dtype: str) -> tuple[int, int] | None:
    """Return the bytes of this many scores, and the bytes that attention moves for them; ``None``
    if the mode does not keep them in memory.
    """
    return (
        ({"math": 9, "scores": 2 * ITEM_BYTES[dtype]}[mode] * scores, _MOVED[mode][0] * scores)
        if mode in _MOVED
        else None
    )


@dataclass(frozen=True, slots=True)
class AttentionKernel:
    """The kernels that compute an attention.

    ``mode``: one of :data:`MODES`. ``causal``: a query sees the keys up to its own, and the last
    queries belong to the last keys; the op then names its kernel. ``drops``: training drops some
    scores; ``math`` keeps which. ``window``: the most keys that a query reads. ``library``: the
    library of these kernels, one of
    :data:`hosim.analysis.costmodel.kernels.op_families.attention_time.FLASH` (``None``: those of an
    inference engine).
    """

    mode: str = "causal"
    causal: bool = False
    drops: bool = False
    window: int = NO_WINDOW
    library: str | None = None


_CONTEXT = "context_attention"


@dataclass(frozen=True, slots=True)
class _Attended:
    """An attention op that is to be emitted: its inputs and their layout, and its cost."""

    kernel: AttentionKernel
    heads: tuple[Value, Value, Value]
    mask: Value | None
    extra: Sequence[Value]
    training: bool

    @property
    def seen(self) -> list[Value]:
        return [x for x in (self.mask, *self.heads) if x is not None]

    @property
    def inputs(self) -> list[Value]:
        seen = self.seen
        return [*seen, *(x for x in self.extra if x.tensor not in {s.tensor for s in seen})]

    @property
    def in_memory(self) -> bool:
        return self.kernel.mode in _MOVED

    @property
    def result(self) -> tuple[int, ...]:
        q, _, v = self.heads
        batch, heads, queries, _ = q.shape
        return batch, queries, heads, v.shape[-1]

    @property
    def scores(self) -> int:
        """The number of scores."""
        q, k, _ = self.heads
        return prod(q.shape[:-1]) * min(k.shape[2], self.kernel.window)

    @property
    def statistics(self) -> int:
        """The bytes of the softmax statistics of all queries."""
        return prod(self.heads[0].shape[:-1]) * 4

    @property
    def of_class(self) -> KernelSizes:
        """The class of kernels that it belongs to, in any library, and its sizes."""
        q, k, v = self.heads
        if not self.kernel.causal or self.kernel.mode != "causal":
            return UNKNOWN
        return causal_kernel(q.shape, k.shape, v.shape[-1], self.kernel.window)

    def op(self) -> dict[str, Any]:
        """FLOP, bytes and kernel of the op."""
        q, _, v = self.heads
        # workspace: the statistics of the softmax and the mask as numbers; or the scores before and
        # after the softmax, and which rows are masked
        added = None if self.training else self.mask
        spare = 0 if added is None else prod(added.shape) * ITEM_BYTES[q.dtype]
        workspace, moved = scores_in_memory(self.kernel.mode, self.scores, q.dtype) or (spare, 0)
        if not self.training and not self.in_memory:
            workspace += self.statistics
        written = q.rows * v.shape[-1] * ITEM_BYTES[q.dtype]
        kernel, sizes = self.of_class
        if kernel == _CONTEXT and self.kernel.library is not None:
            kernel = f"{self.kernel.library}_attention"
        return {
            "flops": 2 * self.scores * (q.shape[-1] + v.shape[-1]),
            "accessed": sum([x.size for x in self.inputs]) + written + moved,
            "workspace": workspace,
            "kernel": kernel,
            "sizes": sizes,
        }

    def results(self) -> list[tuple[tuple[int, ...], str]]:
        """The tensors that a training step keeps: the result, the statistics of the softmax or the
        scores, and the scores after dropout.
        """
        q, k, _ = self.heads
        every = (*q.shape[:-1], k.shape[2])
        if not self.in_memory:
            return [(self.result, q.dtype), (every[:-1], "fp32")]
        wide = "fp32" if self.kernel.mode == "math" else q.dtype
        dropped = [(every, "bool"), (every, wide)][: 2 if self.kernel.mode == "scores" else 1]
        return [(self.result, q.dtype), (every, wide), *(dropped if self.kernel.drops else ())]


def attention(
    t: Tape,
    q: Value,
    k: Value,
    v: Value,
    kernel: AttentionKernel,
    mask: Value | None = None,
    *,
    extra: Sequence[Value] = (),
    label: str = "sdpa",
    again: bool = False,
) -> Value:
    """Return ``softmax(q k') v`` of ``q`` [batch, heads, queries, width], ``k`` and ``v`` [batch,
    fewer heads, keys, width].

    The result is [batch, queries, heads, width of v]. FLOP count every key for every query, as
    torch's counter does. ``extra`` are other tensors that the kernel reads: parts of keys and
    values, slopes, learned scores. ``again``: attention is recomputed for its gradient, so that
    only its inputs and its result are kept.
    """
    if again:
        return t.checkpointed(
            lambda q, k, v: attention(t, q, k, v, kernel, mask, extra=extra, label=label), q, k, v
        )
    heads, training = q.shape[1], any([each.node for each in (q, k, v)])
    if kernel.mode != "causal" and k.shape[1] < heads:
        k = copied(t, k, (*k.shape[:1], heads, *k.shape[2:]), f"{label}.repeat_k")
        v = copied(t, v, (*k.shape[:1], heads, k.shape[2], v.shape[-1]), f"{label}.repeat_v")
    if mask is not None and training and kernel.mode == "masked":
        # what the kernel adds to the scores, and keeps for its gradient
        mask = t.op(f"{label}.mask", "copy", [mask], mask.shape, q.dtype)
    made = _Attended(kernel, (q, k, v), mask, extra, training)
    if not training:
        computes = k.computes or q.dtype
        return t.op(
            label, "attention", made.inputs, made.result, q.dtype, computes=computes, **made.op()
        )
    results = t.ops(label, "attention", made.inputs, made.results(), computes=q.dtype, **made.op())
    t.note(results[0], lambda g: _give_back(t, made, results, g, label))
    return results[0]


def _give_back(t: Tape, made: _Attended, results: Sequence[Value], g: Value, label: str) -> None:
    """Emit the gradient of an attention, and pass it on."""
    (q, k, v), (y, lse, *dropped) = made.heads, results
    # the fused kernel computes the scores again: five products for the two going forward
    products = (2 if made.in_memory else 3) * q.shape[-1] + 2 * v.shape[-1]
    moved = made.scores * _MOVED.get(made.kernel.mode, (0, 0))[1]
    taken = [g, *made.seen, y, lse]
    name, sizes = made.of_class
    grads = t.ops(
        f"{label}.grad",
        "attention",
        [*taken, *dropped],
        [(x.shape, x.dtype) for x in made.heads],
        flops=2 * made.scores * products,
        accessed=sum([x.size for x in (*taken[:-1], q, k, v)]) + moved if moved else None,
        workspace=lse.size if made.in_memory else made.statistics,
        kernel=f"{made.kernel.library or 'context'}_gradient" if name == _CONTEXT else "",
        sizes=sizes if name == _CONTEXT else (),
    )
    for x, grad in zip(made.heads, grads, strict=True):
        t.give(x, grad)
    for x in made.extra:
        if x.node:  # scores that the model learns beside those of keys
            name = f"{label}.grad_extra"
            grad = t.op(name, "reduction", [g, y, lse, x], x.shape, x.dtype, gradient_of=x)
            t.give(x, grad)


def rotated(
    t: Tape, x: Value, cos: Value, sin: Value, *, fused: bool = False, label: str = "rope"
) -> Value:
    """Apply rotary positions to ``x``. ``cos`` and ``sin`` have no gradient, and only they are
    kept.
    """
    if fused:
        return t.note(
            t.op(label, "elementwise", [x, cos, sin], x.shape),
            lambda g: t.give(x, t.op(f"{label}.grad", "elementwise", [g, cos, sin], x.shape)),
        )
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

    return t.note(y, gradient)


def rotated_pairs(
    t: Tape, x: Value, cos: Value, sin: Value, *, fused: bool = False, label: str = "rope"
) -> Value:
    """Apply rotary positions to interleaved pairs of ``x``, as DeepSeek lays them out."""
    if fused:
        return rotated(t, x, cos, sin, fused=True, label=label)
    half = (*x.shape[:-1], x.shape[-1] // 2)
    touched = x.size + cos.size // 2

    def turned(part: str, join: str) -> Value:
        one = t.op(f"{label}.{part}_mul_cos", "elementwise", [x, cos], half, accessed=touched)
        other = t.op(f"{label}.{part}_mul_sin", "elementwise", [x, sin], half, accessed=touched)
        return t.op(f"{label}.{part}_{join}", "elementwise", [one, other], half)

    return t.note(
        t.op(f"{label}.cat", "copy", [turned("even", "sub"), turned("odd", "add")], x.shape),
        lambda g: t.give(
            x, t.op(f"{label}.grad", "elementwise", [g, cos, sin], x.shape, workspace=2 * x.size)
        ),
    )
