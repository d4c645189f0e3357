"""Attention over a window of a sequence that several devices share: each gathers the keys and
values of all.

As in Transformer Engine, whose ring takes no windows (``cp_comm_type="all_gather"``, in its
``context_parallel.py``): a device has two chunks of the sequence, as in
:mod:`hosim.models.ring_attention`. Keys and values are gathered, which nothing overlaps, and put in
the order of the sequence. Each chunk of queries then has one kernel, which gets the keys from the
first to the last that these queries see, and no others. Going backward keys and values are gathered
again; their gradients are added up for the whole sequence, in its order, and each device gets the
sum of its own. The layout is ``sbhd``, in which a chunk is no copy.
"""

from __future__ import annotations

from math import prod

from hosim.costmodel.kernels import causal_kernel
from hosim.models.collectives import shared
from hosim.models.config import Run
from hosim.models.ring_attention import STREAM
from hosim.models.tape import ITEM_BYTES, Tape, Value


def gathered_attention(
    t: Tape, run: Run, q: Value, k: Value, v: Value, window: int, label: str = "sdpa"
) -> Value:
    """Causal attention of the device's queries [batch, heads, tokens, width], each over ``window``
    keys: [batch, tokens, heads, width].

    Selective recomputation keeps its result, and gathers nothing again.
    """
    y, *kept = t.kept(lambda: _forward(t, run, (q, k, v), window, label))
    t.note(y, lambda g: _gradient(t, run, (q, k, v), kept, g, window, label))
    return y


def keys_of_chunk(chunk: int, size: int, window: int) -> range:
    """The keys that the queries of a chunk of ``size`` see, each its own and those before it,
    ``window`` in all.

    >>> keys_of_chunk(3, 4, 6)
    range(7, 16)
    """
    return range(max(0, chunk * size - window + 1), (chunk + 1) * size)


def _forward(
    t: Tape, run: Run, operands: tuple[Value, Value, Value], window: int, label: str
) -> tuple[Value, ...]:
    q, k, v = operands
    batch, heads, tokens, width = q.shape
    whole = _gathered(t, run, (k, v), label)
    kept: list[Value] = []
    for n, (keys, flops, kernel, sizes) in enumerate(_chunks(run, q, k, window)):
        part = q.view(batch, heads, tokens // 2, width)
        seen = [x.view(batch, x.shape[1], keys, width) for x in whole]
        results = [(part.shape, q.dtype), (part.shape[:3], "fp32")]
        accessed = 2 * part.size + sum([x.size for x in seen])
        name = f"{run.attention_kernel or 'context'}_attention"
        kept += t.ops(
            f"{label}.chunk_{n}",
            "attention",
            [part, *seen],
            results,
            flops=flops,
            accessed=accessed,
            kernel=kernel and name,
            sizes=sizes,
        )
    y = t.op(f"{label}.join", "copy", [kept[0], kept[2]], (batch, tokens, heads, width), q.dtype)
    return (y, *kept)


def _gathered(t: Tape, run: Run, pair: tuple[Value, Value], label: str) -> list[Value]:
    """Keys and values of the whole sequence, in its order."""
    found = []
    for name, x in zip("kv", pair, strict=True):
        shape = (*x.shape[:2], run.sequence, x.shape[3])
        whole = shared(
            t, run, x, f"{label}.gather_{name}", "all_gather", shape, run.context_parallel, STREAM
        )
        found.append(t.op(f"{label}.order_{name}", "copy", [whole], shape))
    return found


def _chunks(
    run: Run, q: Value, k: Value, window: int
) -> list[tuple[int, int, str, tuple[int, ...]]]:
    """Return, for each chunk of the last device, how many keys it sees, FLOP of all queries with so
    many as each sees, and the kernel.
    """
    batch, heads, tokens, width = q.shape
    size, found = tokens // 2, []
    for chunk in (run.context_parallel - 1, run.context_parallel):
        keys = len(keys_of_chunk(chunk, size, window))
        kernel, sizes = causal_kernel(
            (batch, heads, size, width), (batch, k.shape[1], keys, width), width, window
        )
        found.append((keys, 4 * batch * heads * size * min(keys, window) * width, kernel, sizes))
    return found


def _gradient(
    t: Tape,
    run: Run,
    operands: tuple[Value, Value, Value],
    kept: list[Value],
    g: Value,
    window: int,
    label: str,
) -> None:
    q, k, v = operands
    batch, heads, tokens, width = q.shape
    whole = _gathered(t, run, (k, v), f"{label}.grad")
    totals = [
        t.ops(f"{label}.grad.zero_{name}", "fill", [], [(x.shape, x.dtype)])[0]
        for name, x in zip("kv", whole, strict=True)
    ]
    parts = []
    for n, (keys, flops, kernel, sizes) in enumerate(_chunks(run, q, k, window)):
        out, lse = kept[2 * n : 2 * n + 2]
        part = q.view(batch, heads, tokens // 2, width)
        seen = [x.view(batch, x.shape[1], keys, width) for x in whole]
        name = f"{run.attention_kernel or 'context'}_gradient"
        results = [(x.shape, x.dtype) for x in (part, *seen)]
        dq, *pair = t.ops(
            f"{label}.grad.chunk_{n}",
            "attention",
            [g.view(*part.shape), part, *seen, out, lse],
            results,
            flops=flops * 5 // 2,
            workspace=prod(lse.shape) * ITEM_BYTES[lse.dtype],
            kernel=kernel and name,
            sizes=sizes,
        )
        parts.append(dq)
        for which, total, own in zip("kv", totals, pair, strict=True):
            t.ops(
                f"{label}.grad.add_{which}_{n}",
                "elementwise",
                [own],
                [],
                mutates=[total],
                accessed=3 * own.size,
            )
    t.give(q, t.op(f"{label}.grad.join", "copy", parts, q.shape))
    for name, x, total in zip("kv", (k, v), totals, strict=True):
        ordered = t.op(f"{label}.grad.order_d{name}", "copy", [total], total.shape)
        t.give(
            x,
            shared(
                t,
                run,
                ordered,
                f"{label}.grad.scatter_{name}",
                "reduce_scatter",
                x.shape,
                run.context_parallel,
                STREAM,
            ),
        )
