"""Attention over a sequence that several devices share: keys and values go round a ring (Liu et
al., ICLR 2024).

As in torch's context parallel, a sequence is cut into two chunks for each of n devices, of which
device r has r and 2n - 1 - r, so that all compute as much. A device begins with its own tokens, and
sends its keys and values on meanwhile; then it has those of the device before it, and so on. Of
another device's chunks half of the scores count: for the last device, which this is, those of all
its queries with the first chunk. Going backward keys and values go round again, and so do their
gradients in fp32, once more, to come home.
"""

from __future__ import annotations

from hosim.analysis.costmodel.kernels import NO_WINDOW
from hosim.io.models.collectives import ns_to_send
from hosim.io.models.config import Run
from hosim.io.models.tape import Tape, Value

STREAM = "ring"
"""The stream of what goes round."""

Pair = tuple[Value, ...]
"""Keys and values, or their gradients."""


def ring_attention(t: Tape, run: Run, q: Value, k: Value, v: Value, label: str = "sdpa") -> Value:
    """Causal attention of the device's queries [batch, heads, tokens, width] over the keys of all:
    [batch, tokens, heads, width].

    Selective recomputation keeps its result, and sends nothing again, as in torch, where the ring
    is inside of one op.
    """
    y, lse = t.kept(lambda: _forward(t, run, q, k, v, label))
    t.note(y, lambda g: _gradient(t, run, (q, k, v), y, lse, g, label))
    return y


def _forward(t: Tape, run: Run, q: Value, k: Value, v: Value, label: str) -> tuple[Value, Value]:
    batch, heads, queries, width = q.shape
    own: Pair = (k, v)
    acc: Value | None = None
    for n in range(run.context_parallel):
        beside = own
        if n < run.context_parallel - 1:
            own = exchanged_round(t, run, own, f"{label}.send_{n}")
        flops, kernel, sizes = _block(run, q, k, n, "attention")
        results = [((batch, heads, queries, width), q.dtype), (q.shape[:3], "fp32")]
        # the kernel also computes as many scores as that of a whole causal context of these queries
        # does
        accessed = q.size * 2 + sum([x.size for x in beside]) // (2 if n else 1)
        out, seen = t.ops(
            f"{label}.block_{n}",
            "attention",
            [q, *beside],
            results,
            flops=flops,
            accessed=accessed,
            kernel=kernel,
            sizes=sizes,
        )
        if acc is None:
            acc, lse = t.op(f"{label}.begin", "copy", [out], out.shape, "fp32"), seen
        else:
            t.ops(f"{label}.merge_{n}", "elementwise", [out, seen], [], mutates=[acc, lse])
    assert acc is not None
    return t.op(f"{label}.end", "copy", [acc], (batch, queries, heads, width), q.dtype), lse


def exchanged_round(t: Tape, run: Run, sent: Pair, label: str) -> Pair:
    """Return the pair that the device before sends, while this one sends as much on."""
    size = sum([x.size for x in sent])
    results = [(x.shape, x.dtype) for x in sent]
    # two devices that exchange all they have send half of both
    return t.ops(
        label,
        "all_to_all",
        sent,
        results,
        stream=STREAM,
        accessed=2 * size,
        duration_ns=ns_to_send(run, size),
        kernel="all_to_all",
        sizes=(2, 2 * size),
    )


def _block(run: Run, q: Value, k: Value, n: int, what: str) -> tuple[int, str, tuple[int, ...]]:
    """The FLOP of the products of queries with a device's keys, which torch counts in full, and the
    kernel of as many scores.
    """
    batch, heads, queries, width = q.shape
    flops = 4 * batch * heads * queries * (k.shape[2] // (2 if n else 1)) * width
    kernel = f"{run.attention_kernel or 'context'}_{what}"
    return flops, kernel, (batch, queries, 0, heads, k.shape[1], width, NO_WINDOW)


def _gradient(
    t: Tape,
    run: Run,
    operands: tuple[Value, Value, Value],
    y: Value,
    lse: Value,
    g: Value,
    label: str,
) -> None:
    q, k, v = operands
    own: Pair = (k, v)
    queries: Value | None = None
    total: Pair = ()
    for n in range(run.context_parallel):
        beside = own
        if n < run.context_parallel - 1:
            own = exchanged_round(t, run, own, f"{label}.grad.send_{n}")
        flops, kernel, sizes = _block(run, q, k, n, "gradient")
        seen = [
            (x.shape if n == 0 else (*x.shape[:2], x.shape[2] // 2, x.shape[3]), x.dtype)
            for x in beside
        ]
        dq, *pair = t.ops(
            f"{label}.grad.block_{n}",
            "attention",
            [g, q, *beside, y, lse],
            [(q.shape, q.dtype), *seen],
            flops=flops * 5 // 2,
            kernel=kernel,
            sizes=sizes,
        )
        if queries is None:
            queries = t.op(f"{label}.grad.begin", "copy", [dq], q.shape, "fp32")
            total = t.ops(
                f"{label}.grad.begin_pair", "copy", pair, [(x.shape, "fp32") for x in pair]
            )
        else:
            accessed = 2 * (2 * queries.size + 3 * sum([x.size for x in pair])) // 2
            t.ops(
                f"{label}.grad.add_{n}",
                "elementwise",
                [dq, *pair],
                [],
                mutates=[queries, *total],
                accessed=dq.size + accessed,
            )
        total = exchanged_round(t, run, total, f"{label}.grad.send_back_{n}")
    assert queries is not None
    t.give(q, t.op(f"{label}.grad.end", "copy", [queries], q.shape, q.dtype))
    for name, x, whole in zip("kv", (k, v), total, strict=True):
        t.give(x, t.op(f"{label}.grad.end_{name}", "copy", [whole], x.shape, x.dtype))
