"""Attention with learned scores over a sequence that several devices share: each gets all tokens of
some of the heads.

As in Transformer Engine, which takes scores beside those of keys in this way alone
(``cp_comm_type="a2a"``; after DeepSpeed-Ulysses, Jacobs et al., 2023): queries, keys and values are
put in order by device, exchanged, and put in the order of the sequence; what attention gives goes
back, and in the backward pass the gradients do. A device uses its own heads' scores, whose
gradients all devices gather.
"""

from __future__ import annotations

from hosim.models.attention import attention
from hosim.models.collectives import shared
from hosim.models.config import Run
from hosim.models.ring_attention import STREAM
from hosim.models.tape import Tape, Value


def exchanged_attention(
    t: Tape, run: Run, q: Value, k: Value, v: Value, scores: Value, window: int, label: str = "sdpa"
) -> Value:
    """Causal attention of the device's queries [batch, heads, tokens, width], each over ``window``
    keys: [batch, tokens, heads, width].

    ``scores``: those that the model learns, of each of the heads.
    """
    devices, (batch, heads, tokens, width) = run.context_parallel, q.shape
    by_head = [
        _exchanged(
            t, run, x, f"{label}.{name}", (batch, x.shape[1] // devices, tokens * devices, width)
        )
        for name, x in zip("qkv", (q, k, v), strict=True)
    ]
    extra = (_own(t, run, scores, label),)
    y = attention(
        t,
        *by_head,
        extra=extra,
        label=label,
        causal=True,
        window=window,
        library=run.attention_kernel,
    )
    return _exchanged(t, run, y, f"{label}.out", (batch, tokens, heads, width))


def _exchanged(t: Tape, run: Run, x: Value, label: str, shape: tuple[int, ...]) -> Value:
    """``x`` as other devices have it, in another shape of as many elements; gradients go back."""

    def sent(value: Value, name: str, made: tuple[int, ...]) -> Value:
        packed = t.op(f"{name}.pack", "copy", [value], value.shape)
        there = shared(
            t, run, packed, f"{name}.exchange", "all_to_all", made, run.context_parallel, STREAM
        )
        return t.op(f"{name}.order", "copy", [there], made)

    y = sent(x, label, shape)
    t.note(y, lambda g: t.give(x, sent(g, f"{label}.grad", x.shape)))
    return y


def _own(t: Tape, run: Run, scores: Value, label: str) -> Value:
    """The learned scores of the device's heads; their gradients are gathered."""
    devices = run.context_parallel
    own = t.op(f"{label}.own_scores", "copy", [scores], (scores.shape[0] // devices,))

    def gradient(g: Value) -> None:
        t.give(
            scores,
            shared(
                t,
                run,
                g,
                f"{label}.gather_scores.grad",
                "all_gather",
                scores.shape,
                devices,
                STREAM,
                gradient_of=scores,
            ),
        )

    t.note(own, gradient)
    return own
